"""Prometheus' and Grafana's side of the metrics, rendered from the catalogue: `python -m exporter.monitoring`."""
