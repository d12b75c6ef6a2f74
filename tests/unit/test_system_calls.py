"""Profiles for container runtimes and the units' filters have one source."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.test_systemd_units import UNITS, settings

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "configs" / "seccomp"
PROCESSES = ("agent", "exporter")
NEVER_NEEDED = {
    *("add_key", "bpf", "chroot", "delete_module", "finit_module", "fsopen", "init_module"),
    *("io_uring_setup", "kexec_load", "keyctl", "mount", "move_mount", "open_by_handle_at"),
    *("open_tree", "perf_event_open", "personality", "pivot_root", "process_vm_readv", "ptrace"),
    *("reboot", "setuid", "swapon", "syslog", "umount2", "userfaultfd"),
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = str(ROOT / ".ci" / "system-calls")
    loader = importlib.machinery.SourceFileLoader("system_calls", path)
    spec = importlib.util.spec_from_loader("system_calls", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def profile(process: str) -> dict[str, Any]:
    return json.loads((PROFILES / f"{process}.json").read_text())


@pytest.mark.parametrize("process", PROCESSES)
def test_the_unit_allows_what_the_profile_allows(process, script):
    names = script.named_in(PROFILES / f"{process}.json")
    assert set(" ".join(settings(process, "SystemCallFilter")).split()) == names
    assert script.as_filter(names) in (UNITS / f"netmgr-{process}.service").read_text()
    (families,) = settings(process, "RestrictAddressFamilies")
    assert set(families.split()) == script.FAMILIES[process].keys()


@pytest.mark.parametrize("process", PROCESSES)
def test_a_profile_is_what_the_script_writes(process, script):
    names = script.named_in(PROFILES / f"{process}.json")
    assert script.profile(process, names) == profile(process)
    assert script.completed(names) <= names | script.NEVER[process]


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
