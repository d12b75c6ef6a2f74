"""The sample units start commands that exist, on the paths that are the defaults."""

from __future__ import annotations

import shlex
from configparser import ConfigParser, SectionProxy
from inspect import signature
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.api.client import DEFAULT_SOCKET
from netmgr.cli.agent import agent
from netmgr.cli.exporter import exporter
from netmgr.documents.node import NodeDocument

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "configs" / "systemd"


def service(name: str) -> SectionProxy:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNITS / f"netmgr-{name}.service")
    return unit["Service"]


def settings(name: str, key: str) -> list[str]:
    """Every value of a key that may be given several times."""
    lines = (UNITS / f"netmgr-{name}.service").read_text().splitlines()
    return [line.removeprefix(f"{key}=") for line in lines if line.startswith(f"{key}=")]


def options(name: str) -> dict[str, str]:
    words = shlex.split(service(name)["ExecStart"])
    assert words[:2] == ["/opt/netmgr/bin/netmgr", name]
    return dict(zip(words[2::2], words[3::2], strict=True))


def default(key: str) -> Path:
    return NodeDocument.model_fields[key].default


def test_the_agents_directories_are_the_documents_defaults():
    unit = service("agent")
    assert Path("/var/lib") / unit["StateDirectory"] == default("state_dir")
    assert Path("/run") / unit["RuntimeDirectory"] == default("run_dir")


@pytest.mark.parametrize(("name", "command"), [("agent", agent), ("exporter", exporter)])
def test_a_unit_gives_options_that_its_command_has(name, command):
    known = {f"--{parameter.replace('_', '-')}" for parameter in signature(command).parameters}
    assert options(name).keys() <= known


def test_the_exporter_asks_where_the_agent_answers_and_may_do_nothing_else():
    unit = service("exporter")
    assert (
        Path(options("exporter")["--socket"])
        == default("run_dir") / "ledger.sock"
        == DEFAULT_SOCKET
    )
    assert (unit["DynamicUser"], unit["CapabilityBoundingSet"]) == ("yes", "")


@pytest.mark.programs
@pytest.mark.parametrize(("name", "tenths"), [("agent", 27), ("exporter", 11)])
def test_a_unit_is_exposed_no_more_than_the_documents_say(name, tenths):
    """The figure is systemd's own; releases since 252 count a little differently."""
    unit = UNITS / f"netmgr-{name}.service"
    analyze = ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}"]
    done = programs.run([*analyze, str(unit)])
    assert done.returncode == 0, done.stdout.decode()
    assert f"{tenths / 10}" in (ROOT / "SECURITY.md").read_text()
