"""Every alert fires when it should and keeps quiet when it should, in promtool's own simulation of
Prometheus.

Each case is played with the labels that configs/prometheus/scrape.yml gives its targets, and with
those of the PodMonitor.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import kustomize
from tests.unit.alert_cases import FIRES, QUIET, Case
from tests.unit.monitoring import ALERTS, CONFIGS, JOB, RULE_FILES, groups, promtool

RECORDING, _ = RULE_FILES
KUBERNETES = CONFIGS / "kubernetes"
COMPONENT = KUBERNETES / "components" / "pod-monitor"
OVERLAY = KUBERNETES / "overlays" / "cni"
Labels = dict[str, str]
Scrape = Callable[[Labels], Labels]


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


def shown(name: str, labels: Labels) -> str:
    return (
        name + "{" + ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items()) + "}"
    )


def firing(case: Case, scrape: Scrape) -> dict[str, Any]:
    alert = next(alert for alert in ALERTS if alert["alert"] == case.alert)
    labels = scrape(case.labels)
    summary = case.summary if "cluster" in labels else case.summary.replace(" in training", "")
    annotations = alert["annotations"] | {"summary": summary}
    return {"exp_labels": labels | alert["labels"], "exp_annotations": annotations}


def simulation(case: Case, expected: list[dict[str, Any]], scrape: Scrape) -> dict[str, Any]:
    """The case for promtool: nothing but `expected` may fire."""
    return {
        "name": f"{case.alert}: {case.summary}",
        "interval": "1m",
        "input_series": [
            {"series": shown(name, scrape(labels)), "values": values}
            for name, labels, values in case.series
        ],
        "alert_rule_test": [
            {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": expected}
        ],
    }


@pytest.mark.programs
@pytest.mark.parametrize(
    "scrape", [as_scraped, pytest.param(as_pod_monitor, marks=pytest.mark.slow)]
)
def test_alerts_fire_or_keep_quiet(scrape: Scrape, tmp_path: Path) -> None:
    """All in one promtool, and each alert beside the recording rules alone: else most of the time
    goes into rules that nobody asks for.
    """
    simulations = defaultdict(list)
    for case in FIRES:
        simulations[case.alert].append(simulation(case, [firing(case, scrape)], scrape))
    for case in QUIET:
        simulations[case.alert].append(simulation(case, [], scrape))
    for alert in ALERTS:
        name = alert["alert"]
        rules = {"groups": [*groups(RECORDING), {"name": name, "rules": [alert]}]}
        tests = {"rule_files": [f"{name}.rules"], "tests": simulations[name]}
        (tmp_path / f"{name}.rules").write_text(yaml.safe_dump(rules))
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(tests | {"evaluation_interval": "1m"}))
    promtool(tmp_path, "test", "rules", *tmp_path.glob("*.yml"))


@pytest.mark.parametrize("cases", [FIRES, QUIET], ids=["fires", "quiet"])
def test_every_alert_is_simulated(cases: list[Case]) -> None:
    assert {case.alert for case in cases} == {alert["alert"] for alert in ALERTS}
