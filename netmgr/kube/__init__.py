"""What asks a Kubernetes API server: range controller, init container, informer of Services."""
