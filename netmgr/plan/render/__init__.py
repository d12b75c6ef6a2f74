"""What a plan and its lock become: node documents, Kubernetes manifests and a map."""
