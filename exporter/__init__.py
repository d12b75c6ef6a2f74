"""The Prometheus exporter: unprivileged, reads the agent's read-only socket."""
