"""The metrics in Prometheus and Grafana, from the catalogue: `python -m exporter.monitoring`."""
