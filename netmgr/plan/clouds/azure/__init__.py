"""Azure's limits, and its resources as Terraform, Bicep, ARM and az."""
