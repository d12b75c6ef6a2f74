"""One module for each CNI verb: what it means for a node (specification 1.1.0, section 2)."""
