"""`netmgr simulate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from netmgr.cli.main import build
from netmgr.errors import ConfigError
from netmgr.model import Traffic
from netmgr.simulation.comparison import Comparison
from netmgr.simulation.machine import Machine
from tests.kubernetes.controllers import write_plan


def simulate(*arguments: str) -> Result:
    command = ["simulate", *arguments]
    return CliRunner().invoke(build(command), command)


def test_a_cluster_of_a_plan_is_simulated(tmp_path: Path) -> None:
    pools = "{gpu: {nodes: 8, surge: 4, pods_per_node: 10}, cpu: {nodes: 4, pods_per_node: 40}}"
    plan = write_plan(tmp_path, pools, v6=True)
    options = ("--hours=1", "--sample=1", "--output=json")
    done = simulate(f"--plan={plan}", *options, f"--template={template(tmp_path)}")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["nodes"], found["accounting"]["differing"]) == (12, [])
    assert found["accounting"]["kernels"] == found["accounting"]["pages"] > 0
    assert found["quotas"] > found["quotas_spent"] > 0


def template(folder: Path, limits: str = "{namespaces: '*', per-day: {internet-out: 1M}}") -> Path:
    path = folder / "template.yaml"
    path.write_text(f"apiVersion: netmgr.io/v1alpha1\nkind: Node\nlimits: [{limits}]\n")
    return path


def test_a_template_that_is_no_node_document_is_an_error(tmp_path: Path) -> None:
    done = simulate(f"--template={template(tmp_path, '{namespaces: 1}')}")
    assert isinstance(done.exception, ConfigError)
    assert "template.yaml, with a made-up Node's name" in done.exception.message
    assert "limits[0].namespaces" in done.exception.message


def test_what_a_plan_has_no_room_for_is_shown(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 16, surge: 0, pods_per_node: 16}}")
    done = simulate(f"--plan={plan}", "--hours=1", "--sample=1", "--output=json")
    waiting = {one["event"]: one["without"] for one in json.loads(done.stdout)["joined"]}
    assert waiting["all Nodes register"] == 0
    assert waiting["machines are added"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster=serve"], "has no cluster 'serve'; there are: train"),
        ([], "12"),
    ],
)
def test_a_cluster_that_is_not_there_is_an_error(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    plan = write_plan(tmp_path, "{gpu: {nodes: 12}}", lock=bool(arguments))
    done = simulate(f"--plan={plan}", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert (message if arguments else "netmgr plan lock") in done.exception.message


def test_a_fleet_that_counts_wrong_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Comparison.add

    def lose(found: Comparison, machine: Machine) -> None:
        machine.kernel.passed["somebody", Traffic.INTERNET_IN] += 1
        add(found, machine)

    monkeypatch.setattr(Comparison, "add", lose)
    done = simulate("--nodes=10", "--hours=1")
    assert done.exit_code == 1
    assert "internet-in of somebody: the ledger has 0 bytes, the kernel 1" in done.stdout
