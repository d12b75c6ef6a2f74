"""What talks to a Kubernetes API server; no agent and no exporter imports it."""
