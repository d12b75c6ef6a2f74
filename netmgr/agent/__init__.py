"""The one privileged process of a node: CNI verbs, readings, reconciliation."""
