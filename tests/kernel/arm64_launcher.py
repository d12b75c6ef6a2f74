"""The launcher for arm64 between a runtime and a real agent, under QEMU's user emulation.

`make arm64` runs these. The agent is this machine's own: only the launcher is emulated.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni import build
from cni.install import Installation, install
from cni.results import SUPPORTED_VERSIONS
from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.launching import elf, error_of, execute, layout
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

# ziglang compiles its C library first, which takes minutes on a busy machine.
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

COMPILERS = ("aarch64-linux-gnu-gcc", "ziglang")
"""The image's launcher is the first one's; a machine without it gets the second one's."""

AARCH64 = 183
PAYLOADS = [1000] * 10
BYTES = 10 * (1000 + 28)


@pytest.fixture(scope="module", params=COMPILERS)
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("launcher") / "netmgr"
    chosen = (each for each in build.available("arm64") if each.name == request.param)
    assert build.build(target, "arm64", chosen) == request.param
    return target


def emulate(launcher: Path, bin_dir: Path) -> None:
    """Let the plugin in `bin_dir` be a script that has QEMU execute `launcher`.

    The kernel would find QEMU by itself (binfmt_misc), but only for the whole machine.
    """
    emulated = bin_dir / "netmgr-arm64"
    shutil.copy(launcher, emulated)
    # The launcher looks beside its own file, which QEMU says is the emulated one.
    shutil.copy(bin_dir / "netmgr.path", f"{emulated}.path")
    qemu = programs.locate("qemu-aarch64", "qemu-user")
    script = bin_dir / "script"
    script.write_text(f"#!/bin/sh\nexec {shlex.quote(qemu)} {shlex.quote(str(emulated))}\n")
    script.chmod(0o755)
    script.replace(bin_dir / "netmgr")


@pytest.fixture
def plugin(launcher: Path, tmp_path: Path) -> Installation:
    plan = layout(tmp_path)
    install(plan)
    emulate(launcher, plan.bin_dir)
    return plan


@pytest.fixture(scope="module")
def world(launcher: Path) -> Iterator[World]:
    name = f"arm64-{os.getpid()}"
    room = cluster(nodes=1, pods=0)
    with World(room, backend=Backend.NFTABLES, name=name, exporters=False) as made:
        emulate(launcher, made.nodes[0].runtime.bin_dir)
        yield made


@pytest.fixture
def node(world: World) -> LabNode:
    return world.nodes[0]


def sent(node: LabNode, pod: str) -> int:
    rows = node.snapshot()["pods"]
    key = (pod, "internet-out")
    return sum(row["bytes"] for row in rows if (row["pod"], row["traffic"]) == key)


def test_it_is_one_static_program_of_arm64(launcher: Path) -> None:
    assert elf(launcher) == (AARCH64, False)
    assert build.is_current(launcher)


def test_it_answers_version_without_an_agent(
    plugin: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.perf_counter()
    outcome = execute(plugin, "VERSION")
    took = time.perf_counter() - begin
    assert (outcome.returncode, outcome.stderr) == (0, b"")
    about = json.loads(outcome.stdout)
    assert about == {"cniVersion": "1.0.0", "supportedVersions": list(SUPPORTED_VERSIONS)}
    size = (plugin.bin_dir / "netmgr-arm64").stat().st_size // 1024
    with capsys.disabled():
        sys.stdout.write(f"\nlauncher of {size} KiB: VERSION in {took * 1000:.0f} ms, emulated\n")


@pytest.mark.parametrize(("command", "code"), [("ADD", 11), ("CHECK", 11), ("STATUS", 50)])
def test_without_an_agent_it_names_the_socket_that_its_path_file_says(
    plugin: Installation, command: str, code: int
) -> None:
    error = error_of(execute(plugin, command))
    assert error["code"] == code
    assert str(plugin.socket) in error["details"]


def test_it_refuses_what_can_never_succeed(plugin: Installation) -> None:
    error = error_of(execute(plugin, "ADD", CNI_IFNAME="e%d"))
    assert error["code"] == 4
    assert "CNI_IFNAME" in error["msg"]


def test_a_pod_is_attached_checked_counted_and_detached(world: World, node: LabNode) -> None:
    assert node.runtime.status() == ""
    sandbox = node.add("emulated")
    assert [address.family for address in sandbox.addresses] == list(Family)
    node.runtime.check(sandbox)
    internet = End(world.internet, INTERNET[Family.V4])
    datagrams(End(sandbox.netns, sandbox.address(Family.V4)), internet, PAYLOADS, PAYLOADS)
    eventually(lambda: sent(node, "emulated") == BYTES)
    node.runtime.delete(sandbox)
    assert node.ask("pods")["attachments"] == []


def test_the_agent_carries_out_a_del_that_it_kept(node: LabNode) -> None:
    sandbox = node.add("kept")
    node.stop_agent()
    node.runtime.delete(sandbox)
    (kept,) = (node.directory / "state" / "spool").iterdir()
    node.start_agent()
    node.wait_until_ready()
    eventually(lambda: not kept.exists())
    assert node.ask("pods")["attachments"] == []


def test_this_machine_alone_cannot_execute_it(launcher: Path) -> None:
    if build.host_architecture() == "arm64":
        pytest.skip("this is an arm64 machine")
    with pytest.raises(OSError, match="Exec format error"):
        subprocess.run([launcher], check=False)
