"""The range controller and its reconcilers."""
