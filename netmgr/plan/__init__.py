"""One address plan for a hub and every cluster: documents, lock, allocation, renderings."""
