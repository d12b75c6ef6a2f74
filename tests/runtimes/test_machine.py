"""The machine the engines run in takes everything with it when it ends,
however that comes about."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lab.world import World
from tests.runtimes.machine import Machine
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.runtimes, pytest.mark.slow]

WRITTEN = ("/etc/netmgr-test", "/opt/netmgr-test", "/var/lib/netmgr-test", "/run/netmgr-test")


def running(word: str) -> list[str]:
    """Process numbers of what has `word` on its command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(path.parent.name)
    return found


def test_what_is_written_inside_is_not_seen_outside(machine: Machine):
    for path in WRITTEN:
        machine.write(path, "inside")
        assert machine.run("cat", path) == "inside"
        assert not Path(path).exists()


def test_an_orphaned_process_ends_with_the_machine(world: World, tmp_path: Path):
    unique = f"{os.getpid()}.25"
    with Machine(world.namespace("node-1"), tmp_path) as machine:
        machine.run("sh", "-c", f"setsid sleep {unique} >/dev/null 2>&1 &")
        eventually(lambda: bool(running(unique)), lambda: "sleep does not run")
    assert not running(unique)


def test_a_killed_test_run_leaves_no_process_of_the_machine(world: World, tmp_path: Path):
    unique = f"{os.getpid()}.75"
    machine = Machine(world.namespace("node-1"), tmp_path)
    child = os.fork()
    if child == 0:
        with machine:
            machine.start("sleeper", "sleep", unique)
            signal.pause()
    try:
        eventually(lambda: bool(running(unique)), lambda: "sleep does not run")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    eventually(lambda: not running(unique), lambda: "sleep outlived the test run")
    machine.sweep()
