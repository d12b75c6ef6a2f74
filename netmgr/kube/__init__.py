"""What speaks to a Kubernetes API server: the range controller, the init container, the informer of Services."""
