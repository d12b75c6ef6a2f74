"""The labels that the shipped scrape configurations give to series and to the alerts made from
them.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.fakes import kustomize
from tests.unit.monitoring import JOB

KUBERNETES = Path(__file__).parents[2] / "configs" / "kubernetes"
COMPONENT = KUBERNETES / "components" / "pod-monitor"
OVERLAY = KUBERNETES / "overlays" / "cni"


def as_scraped(labels: dict[str, str]) -> dict[str, str]:
    """The labels of a series, or of an alert made from it, by scrape.yml."""
    return labels


def as_pod_monitor(labels: dict[str, str]) -> dict[str, str]:
    """The same by the PodMonitor and the DaemonSet as they are shipped: no cluster, but the labels
    of a pod.

    The Prometheus operator takes `job` from the pod's label that `jobLabel` names, else from the
    monitor's namespace and name. `honorLabels` keeps the namespace and pod that a series is about.
    """
    monitor = yaml.safe_load((COMPONENT / "pod-monitor.yaml").read_text())
    (pods,) = [
        item["spec"]["template"] for item in kustomize.build(OVERLAY) if item["kind"] == "DaemonSet"
    ]
    carried = pods["metadata"]["labels"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= carried.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (container,) = [
        each["name"]
        for each in pods["spec"]["containers"]
        if any(port["name"] == endpoint["port"] for port in each.get("ports", ()))
    ]
    labels = {name: value for name, value in labels.items() if name != "cluster"}
    if "job" not in labels:  # an alert that sums over such labels
        return labels
    default = "{namespace}/{name}".format_map(monitor["metadata"])
    job = (
        {"job": carried.get(monitor["spec"].get("jobLabel"), default)}
        if labels["job"] == JOB
        else {}
    )
    of_pod = {
        "namespace": "netmgr",
        "pod": "netmgr-x7k2p",
        "container": container,
        "endpoint": endpoint["port"],
    }
    assert endpoint["honorLabels"]
    return of_pod | labels | job
