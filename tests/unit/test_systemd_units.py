"""The sample units start commands that exist, on the paths that are the defaults; their filters of
system calls and container runtimes' profiles have one source.
"""

from __future__ import annotations

import json
import runpy
import shlex
from configparser import ConfigParser, SectionProxy
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


PROFILES = ROOT / "configs" / "seccomp"
PROCESSES = ("agent", "exporter")
SCRIPT = SimpleNamespace(**runpy.run_path(str(ROOT / ".ci" / "system-calls")))
NEVER_NEEDED = {
    *("add_key", "bpf", "chroot", "delete_module", "finit_module", "fsopen", "init_module"),
    *("io_uring_setup", "kexec_load", "keyctl", "mount", "move_mount", "open_by_handle_at"),
    *("open_tree", "perf_event_open", "personality", "pivot_root", "process_vm_readv", "ptrace"),
    *("reboot", "setuid", "swapon", "syslog", "umount2", "userfaultfd"),
}


def profile(process: str) -> dict[str, Any]:
    return json.loads((PROFILES / f"{process}.json").read_text())


@pytest.mark.parametrize("process", PROCESSES)
def test_the_unit_allows_what_the_profile_allows(process):
    names = SCRIPT.named_in(PROFILES / f"{process}.json")
    assert set(" ".join(settings(process, "SystemCallFilter")).split()) == names
    assert SCRIPT.as_filter(names) in (UNITS / f"netmgr-{process}.service").read_text()
    (families,) = settings(process, "RestrictAddressFamilies")
    assert set(families.split()) == SCRIPT.FAMILIES[process].keys()


@pytest.mark.parametrize("process", PROCESSES)
def test_a_profile_is_what_the_script_writes(process):
    names = SCRIPT.named_in(PROFILES / f"{process}.json")
    for name, more in SCRIPT.PROFILED[process].items():
        assert SCRIPT.profile(process, names | more) == profile(name)
    assert SCRIPT.completed(names) <= names | SCRIPT.NEVER[process]


@pytest.mark.parametrize("process", PROCESSES)
def test_a_profile_refuses_what_nobody_needs(process):
    refused = profile(process)
    assert (refused["defaultAction"], refused["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    allowed = {name for rule in refused["syscalls"] for name in rule["names"]}
    assert not allowed & NEVER_NEEDED
    unconditional = {
        name for rule in refused["syscalls"] if "args" not in rule for name in rule["names"]
    }
    assert not unconditional & {"socket", "clone", "setns", "unshare"}
