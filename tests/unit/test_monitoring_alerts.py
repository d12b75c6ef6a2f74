"""Every alert fires when it should and keeps quiet when it should, in promtool's own simulation of
Prometheus.

Each case is played with the labels that configs/prometheus/scrape.yml gives its targets, and with
those of the PodMonitor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from netmgr import programs
from tests.unit.alert_cases import FIRES, Case
from tests.unit.alert_quiet_cases import QUIET
from tests.unit.monitoring import ALERTS, PROMETHEUS, RULE_FILES
from tests.unit.scraping import as_pod_monitor, as_scraped

SCRAPES = [as_scraped, as_pod_monitor]
Scrape = Callable[[dict[str, str]], dict[str, str]]


def simulate(case: Case, expected: list[dict], directory: Path, scrape: Scrape) -> str:
    """What promtool has against the case: nothing if exactly `expected` fires."""
    test = {
        "interval": "1m",
        "input_series": [
            {
                "series": name
                + "{"
                + ",".join(f"{k}={json.dumps(v)}" for k, v in scrape(labels).items())
                + "}",
                "values": v,
            }
            for name, labels, v in case.series
        ],
        "alert_rule_test": [
            {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": expected}
        ],
    }
    document = {
        "rule_files": [str(PROMETHEUS / name) for name in RULE_FILES],
        "evaluation_interval": "1m",
        "tests": [test],
    }
    (directory / "test.yml").write_text(yaml.safe_dump(document))
    outcome = programs.run(
        [programs.locate("promtool", "prometheus"), "test", "rules", "test.yml"], cwd=directory
    )
    return "" if outcome.returncode == 0 else (outcome.stdout + outcome.stderr).decode()


@pytest.mark.programs
@pytest.mark.parametrize("scrape", SCRAPES)
@pytest.mark.parametrize("case", FIRES, ids=lambda case: case.alert)
def test_the_alert_fires(case: Case, scrape: Scrape, tmp_path: Path) -> None:
    alert = next(alert for alert in ALERTS if alert["alert"] == case.alert)
    labels = scrape(case.labels)
    summary = case.summary if "cluster" in labels else case.summary.replace(" in training", "")
    annotations = alert["annotations"] | {"summary": summary}
    expected = [{"exp_labels": labels | alert["labels"], "exp_annotations": annotations}]
    assert simulate(case, expected, tmp_path, scrape) == ""


@pytest.mark.programs
@pytest.mark.parametrize("scrape", SCRAPES)
@pytest.mark.parametrize("case", QUIET, ids=lambda case: f"{case.alert}: {case.labels['why']}")
def test_the_alert_keeps_quiet(case: Case, scrape: Scrape, tmp_path: Path) -> None:
    assert simulate(case, [], tmp_path, scrape) == ""


@pytest.mark.parametrize("cases", [FIRES, QUIET], ids=["fires", "quiet"])
def test_every_alert_is_simulated(cases: list[Case]) -> None:
    assert {case.alert for case in cases} == {alert["alert"] for alert in ALERTS}
