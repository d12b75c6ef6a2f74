"""Azure's limits, and its resources as Terraform, ARM and az."""
