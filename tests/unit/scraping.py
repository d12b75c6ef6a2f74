"""The labels that the shipped scrape configurations give to series and to the alerts made from
them.
"""

from __future__ import annotations

from functools import cache
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


@cache
def _by_monitor() -> tuple[dict[str, str], str]:
    """What the shipped PodMonitor adds to a series of the DaemonSet's pods, and its `job`."""
    monitor = yaml.safe_load((COMPONENT / "pod-monitor.yaml").read_text())
    metadata, spec = monitor["metadata"], monitor["spec"]
    (pods,) = [
        item["spec"]["template"] for item in kustomize.build(OVERLAY) if item["kind"] == "DaemonSet"
    ]
    carried = pods["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= carried.items()
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["honorLabels"]
    port = endpoint["port"]
    (container,) = [
        container["name"]
        for container in pods["spec"]["containers"]
        if port in [named["name"] for named in container.get("ports", ())]
    ]
    added = {"namespace": "netmgr", "pod": "netmgr-x7k2p", "container": container, "endpoint": port}
    default = f"{metadata['namespace']}/{metadata['name']}"
    return added, carried.get(spec.get("jobLabel"), default)


def as_pod_monitor(labels: dict[str, str]) -> dict[str, str]:
    """The same by the PodMonitor and the DaemonSet as they are shipped: no cluster, but the labels
    of a pod.

    The Prometheus operator takes `job` from the pod's label that `jobLabel` names, else from the
    monitor's namespace and name. `honorLabels` keeps the namespace and pod that a series is about.
    """
    labels = {name: value for name, value in labels.items() if name != "cluster"}
    if "job" not in labels:  # an alert that sums over such labels
        return labels
    added, job = _by_monitor()
    return added | labels | ({"job": job} if labels["job"] == JOB else {})
