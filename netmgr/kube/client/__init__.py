"""What asks the API server: requests, watches, and the agents' pods."""
