"""What is recorded, in promtool's own simulation of Prometheus: dashboards' volumes are bytes that
were sent, and the documented rule names what came by other nodes' ports.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import catalog
from netmgr import programs
from tests.unit.monitoring import DASHBOARDS, PROMETHEUS

ACCOUNTING = Path(__file__).parents[2] / "docs" / "accounting.md"
PORT_RULE = "cluster_namespace_pod_traffic:netmgr_remote_pod_traffic_bytes:rate5m"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    selected = ",".join(f"{key}={json.dumps(value)}" for key, value in labels.items())
    return {"series": f"{name}{{{selected}}}", "values": values}


def simulate(folder: Path, rules: Path, interval: str = "1m", **test: Any) -> None:
    """Fail with what promtool has against the test."""
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": interval,
        "tests": [{"interval": "1m"} | test],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    promtool = programs.locate("promtool", "prometheus")
    outcome = programs.run([promtool, "test", "rules", "test.yml"], cwd=folder)
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr).decode()


@pytest.mark.programs
@pytest.mark.parametrize("interval", ["15s", "60s", "180s"])
def test_a_volume_is_the_bytes_sent_at_any_interval(interval: str, tmp_path: Path) -> None:
    """promtool evaluates every group at the interval of the test."""
    panels = DASHBOARDS["netmgr-egress.json"]["panels"]
    (panel,) = [panel for panel in panels if "24 hours" in panel["title"]]
    (target,) = panel["targets"]
    query = target["expr"].replace("$cluster", ".*")
    minutes, gigabyte = 24 * 60, 1_000_000_000
    sent, values = minutes * gigabyte, f"0+{gigabyte}x{minutes + 60}"
    labels = {"namespace": "data", "traffic": "internet-out"}
    volume = {
        "expr": f"abs({query} - {sent}) > bool {sent // 200}",
        "eval_time": f"{minutes + 60}m",
        "exp_samples": [{"labels": '{namespace="data"}', "value": 0}],
    }
    given = series(catalog.NAMESPACE_BYTES.name, values, **labels)
    rules = PROMETHEUS / "recording.yml"
    simulate(tmp_path, rules, interval, input_series=[given], promql_expr_test=[volume])


def remote(instance: str, address: str, rate: int) -> dict[str, str]:
    labels = {"cluster": "a", "instance": instance, "address": address, "traffic": "internet-in"}
    return series(catalog.REMOTE_POD_BYTES.name, f"0+{60 * rate}x20", **labels)


def pod(cluster: str, name: str, *, is_running: bool) -> list[dict[str, str]]:
    labels = {"cluster": cluster, "namespace": "data", "pod": name, "uid": name}
    return [
        series("kube_pod_info", "1x20", **labels, host_network="false", pod_ip="10.9.0.1"),
        series("kube_pod_status_phase", f"{int(is_running)}x20", **labels, phase="Running"),
    ]


@pytest.mark.programs
def test_bytes_of_all_entry_nodes_are_those_of_the_pod_that_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(groups:.*?)```", ACCOUNTING.read_text(), re.DOTALL)
    (tmp_path / "rules.yml").write_text(block)
    labels = '{cluster="a",namespace="data",pod="server",traffic="internet-in"}'
    named = {
        "expr": PORT_RULE,
        "eval_time": "15m",
        "exp_samples": [{"labels": PORT_RULE + labels, "value": 12}],
    }
    given = [
        remote("node-1", "10.9.0.1", 5),
        remote("node-2", "10.9.0.1", 7),
        remote("node-2", "10.9.0.2", 100),
        *pod("a", "server", is_running=True),
        *pod("a", "former", is_running=False),
        *pod("b", "other", is_running=True),
    ]
    simulate(tmp_path, tmp_path / "rules.yml", input_series=given, promql_expr_test=[named])
