"""Where a node's ranges come from: its document, or what the cloud says of its network interface."""
