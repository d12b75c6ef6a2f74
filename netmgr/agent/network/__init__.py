"""Which addresses and routes a node has."""
