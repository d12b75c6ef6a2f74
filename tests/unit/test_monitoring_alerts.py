"""Every alert fires when it should and keeps quiet when it should, in promtool's own simulation of
Prometheus.

Each case is played with the labels that configs/prometheus/scrape.yml gives its targets, and with
those of the PodMonitor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr import programs
from tests.unit.alert_cases import FIRES, Case
from tests.unit.alert_quiet_cases import QUIET
from tests.unit.monitoring import ALERTS, PROMETHEUS, RULE_FILES
from tests.unit.scraping import as_pod_monitor, as_scraped
from tests.waiting import PATIENCE

Scrape = Callable[[dict[str, str]], dict[str, str]]

every_scrape = pytest.mark.parametrize(
    "scrape", [as_scraped, pytest.param(as_pod_monitor, marks=pytest.mark.slow)]
)


def simulation(case: Case, scrape: Scrape, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """A test of promtool that passes if exactly `expected` fires."""
    return {
        "name": f"{case.alert}: {case.labels}",
        "interval": "1m",
        "input_series": [
            {
                "series": name
                + "{"
                + ",".join(f"{k}={json.dumps(v)}" for k, v in scrape(labels).items())
                + "}",
                "values": values,
            }
            for name, labels, values in case.series
        ],
        "alert_rule_test": [
            {"eval_time": f"{case.at}m", "alertname": case.alert, "exp_alerts": expected}
        ],
    }


def run(simulations: list[dict[str, Any]], directory: Path) -> str:
    """What promtool has against them: nothing if all pass. One process runs all: to start one and
    to read the rules takes as long as a simulation."""
    document = {
        "rule_files": [str(PROMETHEUS / name) for name in RULE_FILES],
        "evaluation_interval": "1m",
        "tests": simulations,
    }
    (directory / "test.yml").write_text(yaml.safe_dump(document))
    outcome = programs.run(
        [programs.locate("promtool", "prometheus"), "test", "rules", "test.yml"],
        cwd=directory,
        timeout=PATIENCE * 10,
    )
    return "" if outcome.returncode == 0 else (outcome.stdout + outcome.stderr).decode()


def fired(case: Case, scrape: Scrape) -> dict[str, Any]:
    """The alert, as it shows the case."""
    alert = next(alert for alert in ALERTS if alert["alert"] == case.alert)
    labels = scrape(case.labels)
    summary = case.summary if "cluster" in labels else case.summary.replace(" in training", "")
    return {
        "exp_labels": labels | alert["labels"],
        "exp_annotations": alert["annotations"] | {"summary": summary},
    }


@pytest.mark.programs
@every_scrape
def test_alerts_fire(scrape: Scrape, tmp_path: Path) -> None:
    assert run([simulation(case, scrape, [fired(case, scrape)]) for case in FIRES], tmp_path) == ""


@pytest.mark.programs
@every_scrape
def test_alerts_keep_quiet(scrape: Scrape, tmp_path: Path) -> None:
    assert run([simulation(case, scrape, []) for case in QUIET], tmp_path) == ""


@pytest.mark.parametrize("cases", [FIRES, QUIET], ids=["fires", "quiet"])
def test_every_alert_is_simulated(cases: list[Case]) -> None:
    assert {case.alert for case in cases} == {alert["alert"] for alert in ALERTS}
