"""A world of network namespaces on one machine."""
