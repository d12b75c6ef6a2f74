"""What the agent answers over its read-only socket: the shape, the server and the client."""
