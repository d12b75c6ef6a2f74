"""Documents people write: YAML with lines, one diagnostic type, the node document and its parts."""
