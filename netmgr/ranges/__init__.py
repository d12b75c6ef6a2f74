"""Where a node's ranges come from: its node.yaml, or the cloud's metadata of its interface."""
