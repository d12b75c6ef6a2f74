"""The rules and dashboards of configs/, as they are shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from netmgr import programs
from tests.waiting import PATIENCE

CONFIGS = Path(__file__).parents[2] / "configs"
PROMETHEUS = CONFIGS / "prometheus"
RULE_FILES = ("recording.yml", "alerts.yml")
JOB = "netmgr"
CONTROLLER_JOB = "netmgr-controller"
"""What scrape.yml calls the exporters, and the controllers."""

Rule = dict[str, Any]


def groups(name: str) -> list[dict[str, Any]]:
    """The groups of a file of rules."""
    found: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / name).read_text("utf-8"))["groups"]
    return found


def rules(name: str) -> list[Rule]:
    """The rules of a file, whatever group they are in."""
    return [rule for group in groups(name) for rule in group["rules"]]


def promtool(folder: Path, *arguments: str | Path) -> None:
    """Fail with what promtool has to say against it."""
    command = [programs.locate("promtool", "prometheus"), *arguments]
    outcome = programs.run(command, cwd=folder, timeout=PATIENCE * 10)
    assert outcome.returncode == 0, (outcome.stdout + outcome.stderr).decode()


RECORDED, ALERTS = map(rules, RULE_FILES)
DASHBOARDS = {
    path.name: json.loads(path.read_text("utf-8"))
    for path in sorted((CONFIGS / "grafana").glob("*.json"))
}
