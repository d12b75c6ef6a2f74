"""What every part of an agent is built on: components, recurring work, files, locks."""
