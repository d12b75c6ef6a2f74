"""The dashboards' volumes are bytes that were sent, in promtool's own simulation of Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from exporter import catalog
from netmgr import programs
from tests.unit.monitoring import DASHBOARDS, PROMETHEUS


@pytest.mark.programs
@pytest.mark.parametrize("interval", ["15s", "60s", "180s"])
def test_a_volume_is_the_bytes_that_were_sent_at_whatever_interval_rates_are_recorded(
    interval: str, tmp_path: Path
) -> None:
    """promtool evaluates every group at the interval of the test."""
    panels = DASHBOARDS["netmgr-egress.json"]["panels"]
    (panel,) = [panel for panel in panels if "24 hours" in panel["title"]]
    (target,) = panel["targets"]
    query = target["expr"].replace("$cluster", ".*")
    minutes, gigabyte = 24 * 60, 1_000_000_000
    sent = minutes * gigabyte
    off_by = f"abs({query} - {sent}) > bool {sent // 200}"
    test = {
        "interval": "1m",
        "input_series": [
            {
                "series": catalog.NAMESPACE_BYTES.name
                + '{namespace="data",traffic="internet-out"}',
                "values": f"0+{gigabyte}x{2 * minutes}",
            }
        ],
        "promql_expr_test": [
            {
                "expr": off_by,
                "eval_time": f"{2 * minutes}m",
                "exp_samples": [{"labels": '{namespace="data"}', "value": 0}],
            }
        ],
    }
    document = {
        "rule_files": [str(PROMETHEUS / "recording.yml")],
        "evaluation_interval": interval,
        "tests": [test],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    outcome = programs.run(
        [programs.locate("promtool", "prometheus"), "test", "rules", "test.yml"], cwd=tmp_path
    )
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr).decode()
