"""Every file of configs/prometheus and configs/grafana, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from exporter.catalog import POD_BYTES, POD_PACKETS, PODS
from exporter.monitoring.alerts import CONTROLLER, NODES, SITES, TRAFFIC, Alert
from exporter.monitoring.dashboard import render
from exporter.monitoring.dashboards import DASHBOARDS
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

RUNBOOKS_PAGE, RUNBOOKS_FILE = "reference/alerts/", "docs/reference/alerts.md"
"""Where each alert has a section of its name: on the site, and in the repository."""

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


def files(documentation: str = "") -> dict[str, str]:
    """Path below configs/ and content of each file.

    `documentation` is the address of the documentation's site, for the alerts' runbooks; without
    it they name the page in the repository.
    """
    recording = [_recording(group) for group in GROUPS]
    runbooks = f"{documentation.rstrip('/')}/{RUNBOOKS_PAGE}" if documentation else RUNBOOKS_FILE
    alerting = [
        _alerting("netmgr-traffic", TRAFFIC, runbooks),
        _alerting("netmgr-nodes", NODES, runbooks),
        _alerting("netmgr-sites", SITES, runbooks),
        _alerting("netmgr-controller", CONTROLLER, runbooks),
    ]
    dashboards = {
        f"{dashboard.uid}.json": json.dumps(render(dashboard), indent=2) + "\n"
        for dashboard in DASHBOARDS
    }
    return {
        "prometheus/scrape.yml": _scrape(),
        "prometheus/recording.yml": _yaml({"groups": recording}),
        "prometheus/alerts.yml": _yaml({"groups": alerting}),
        "prometheus/prometheus-rule.yaml": _yaml(_rule_object([*recording, *alerting])),
        "prometheus/kustomization.yaml": _component({"resources": ["prometheus-rule.yaml"]}),
        "grafana/kustomization.yaml": _component(_config_maps(dashboards)),
        "mixin.libsonnet": _mixin(dashboards),
        **{f"grafana/{name}": text for name, text in dashboards.items()},
    }


def _rule_object(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """The same rules for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "netmgr", "namespace": "netmgr"},
        "spec": {"groups": groups},
    }


def _component(content: Mapping[str, Any]) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    return _yaml({**head, **content})


def _config_maps(dashboards: Iterable[str]) -> dict[str, Any]:
    """A ConfigMap for each: together they would be too large for one `kubectl apply`."""
    return {
        "configMapGenerator": [
            {
                "name": name.removesuffix(".json") + "-dashboard",
                "namespace": "netmgr",
                "files": [name],
                # What the sidecar of Grafana's chart looks for.
                "options": {"labels": {"grafana_dashboard": "1"}, "disableNameSuffixHash": True},
            }
            for name in dashboards
        ]
    }


def _mixin(dashboards: Iterable[str]) -> str:
    shown = "".join(f"    '{name}': import 'grafana/{name}',\n" for name in dashboards)
    return (
        HEADER.replace("#", "//", 1)
        + f"{{\n  grafanaDashboards+:: {{\n{shown}  }},\n"
        + "  prometheusAlerts+:: std.parseYaml(importstr 'prometheus/alerts.yml'),\n"
        + "  prometheusRules+:: std.parseYaml(importstr 'prometheus/recording.yml'),\n}\n"
    )


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


def _alerting(name: str, alerts: Iterable[Alert], runbooks: str) -> dict[str, Any]:
    return {"name": name, "rules": [_alert(alert, runbooks) for alert in alerts]}


def _alert(alert: Alert, runbooks: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity.value},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbooks}#{alert.name.lower()}",
        },
    }


def _yaml(document: Mapping[str, Any]) -> str:
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=1000)
