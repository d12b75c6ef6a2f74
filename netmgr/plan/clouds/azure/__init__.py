"""Azure's limits, the network as Terraform, and a node's interface as an ARM template."""
