"""The launcher for arm64 between a runtime and a real agent, under QEMU's user emulation.

`make arm64` runs these. The agent is this machine's own: only the launcher is emulated.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni import build
from netmgr import programs
from netmgr.prefixes import Family
from tests.kernel.launching import elf
from tests.kernel.spending import Spender
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually

# ziglang compiles its C library first, which takes minutes on a busy machine.
pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

COMPILERS = ("aarch64-linux-gnu-gcc", "ziglang")
"""The image's launcher is the first one's; a machine without it gets the second one's."""

AARCH64 = 183


@pytest.fixture(scope="module", params=COMPILERS)
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("launcher") / "netmgr"
    chosen = (compiler for compiler in build.available("arm64") if compiler.name == request.param)
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


@pytest.fixture(scope="module")
def world(launcher: Path) -> Iterator[World]:
    with World(cluster(nodes=1, pods=0), name=f"arm64-{os.getpid()}", exporters=False) as made:
        emulate(launcher, made.nodes[0].runtime.bin_dir)
        yield made


@pytest.fixture
def node(world: World) -> LabNode:
    return world.nodes[0]


def test_it_is_one_static_program_of_arm64(launcher: Path) -> None:
    assert elf(launcher) == (AARCH64, False)
    assert build.is_current(launcher)


def test_a_pod_is_attached_checked_counted_and_detached(world: World, node: LabNode) -> None:
    assert node.runtime.status() == ""
    sandbox = node.add("emulated")
    assert [address.family for address in sandbox.addresses] == list(Family)
    node.runtime.check(sandbox)
    spender = Spender(world, node, sandbox)
    size = spender.send()
    eventually(lambda: spender.counted() == size)
    node.runtime.delete(sandbox)
    assert node.ask("pods")["attachments"] == []


def test_the_agent_carries_out_a_del_that_it_kept(node: LabNode) -> None:
    sandbox = node.add("kept")
    node.stop_agent()
    node.runtime.delete(sandbox)
    (kept,) = (node.directory / "state" / "spool").iterdir()
    node.start_until_ready()
    eventually(lambda: not kept.exists())
    assert node.ask("pods")["attachments"] == []
