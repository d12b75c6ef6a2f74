"""Every file of configs/prometheus and configs/grafana, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from exporter.catalog import POD_BYTES, POD_PACKETS, PODS
from exporter.monitoring.alerts import CONTROLLER, NODES, SITES, TRAFFIC, Alert
from exporter.monitoring.dashboards import DASHBOARDS, render
from exporter.monitoring.promql import JOB
from exporter.monitoring.recording import GROUPS, Group

HEADER = (
    "# Made by `python -m exporter.monitoring` from exporter/catalog.py. "
    "Change it there, or a copy of it.\n"
)
PORT = 9119
"""Where exporters listen by default."""

CONTROLLER_PORT = 9121
"""Where range controllers do."""

SCRAPE = """\
{header}#
# Scrapes every node's netmgr exporter. `instance` is the node and `cluster` its cluster, in every
# rule, alert and dashboard; choose how nodes are found: a list as here, or Kubernetes' own
# (commented out; `role: node`, because `role: pod` would bring labels that collide with ours).
#
# Every pod has {series} series, so 7,500 nodes of 30 pods have {all_series:,}. Only recording.yml
# reads so many; it makes a few hundred of them, which alerts and dashboards read.
global:
  scrape_interval: 30s
  evaluation_interval: 30s

rule_files: [recording.yml, alerts.yml]

scrape_configs:
  - job_name: {job}
    # A pod's series outlives the pod by accounting.linger_seconds (15 minutes by default); scrape
    # at least twice in that time, and no byte of a short-lived pod is missed.
    scrape_interval: 30s
    scrape_timeout: 10s
    static_configs:
      - targets: ["node-1:{port}", "node-2:{port}"]
        labels: {{cluster: training}}
      # Where `netmgr controller` runs:
      # - targets: ["control-plane-1:{controller_port}", "control-plane-2:{controller_port}"]
      #   labels: {{cluster: training}}

    # Where exporters serve behind TLS and a token or a password (`netmgr exporter --help`):
    # scheme: https
    # tls_config: {{ca_file: /etc/prometheus/netmgr-ca.pem}}
    # authorization: {{credentials_file: /etc/prometheus/netmgr-token}}

    # kubernetes_sd_configs:
    #   - role: node
    # relabel_configs:
    #   - source_labels: [__meta_kubernetes_node_address_InternalIP]
    #     regex: (.+)
    #     replacement: $1:{port}
    #     target_label: __address__
    #   - source_labels: [__meta_kubernetes_node_name]
    #     target_label: instance
    #   - replacement: training
    #     target_label: cluster

# Long-term storage need not hold a series of every pod; the recorded ones are enough.
# remote_write:
#   - url: https://metrics.example/api/v1/write
#     write_relabel_configs:
#       - source_labels: [__name__]
#         regex: netmgr_pod_.+
#         action: drop
"""


def files() -> dict[str, str]:
    """Path below configs/ and content of each file."""
    dashboards = {
        f"grafana/{dashboard.uid}.json": json.dumps(render(dashboard), indent=2) + "\n"
        for dashboard in DASHBOARDS
    }
    return {
        "prometheus/scrape.yml": _scrape(),
        "prometheus/recording.yml": _yaml({"groups": [_recording(group) for group in GROUPS]}),
        "prometheus/alerts.yml": _yaml(
            {
                "groups": [
                    _alerting("netmgr-traffic", TRAFFIC),
                    _alerting("netmgr-nodes", NODES),
                    _alerting("netmgr-sites", SITES),
                    _alerting("netmgr-controller", CONTROLLER),
                ]
            }
        ),
        **dashboards,
    }


def _scrape() -> str:
    series = (POD_BYTES.series + POD_PACKETS.series) // PODS
    return SCRAPE.format(
        header=HEADER,
        job=JOB,
        port=PORT,
        controller_port=CONTROLLER_PORT,
        series=series,
        all_series=7_500 * 30 * series,
    )


def _recording(group: Group) -> dict[str, Any]:
    rules = [{"record": rule.name, "expr": rule.expression} for rule in group.rules]
    return {"name": group.name, "interval": f"{group.seconds}s", "rules": rules}


def _alerting(name: str, alerts: Iterable[Alert]) -> dict[str, Any]:
    return {"name": name, "rules": [_alert(alert) for alert in alerts]}


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity.value},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def _yaml(document: Mapping[str, Any]) -> str:
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=1000)
