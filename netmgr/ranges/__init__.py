"""Where a node's ranges come from: its document, its Node object, or the cloud's metadata."""
