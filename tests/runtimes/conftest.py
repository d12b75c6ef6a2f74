"""One node on one internet, and one engine on the node, for each test of this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.prefixes import Family
from tests.lab.topology import Node, cluster
from tests.lab.world import World
from tests.runtimes import images
from tests.runtimes.engines import ContainerdCri, Ctr, Engine, Podman, podman_has_cni
from tests.runtimes.internet import Internet
from tests.runtimes.machine import Machine, require
from tests.runtimes.node import BIN_DIR, NetmgrNode

ENGINES = {"ctr": Ctr, "cri": ContainerdCri, "podman": Podman}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every engine that can use CNI networks."""
    if "engine_name" in metafunc.fixturenames:
        names = [name for name in sorted(ENGINES) if name != "podman" or podman_has_cni()]
        metafunc.parametrize("engine_name", names)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that are not even collected would go unnoticed otherwise."""
    if shutil.which("podman") and not podman_has_cni():
        terminalreporter.write_line(
            "pods of podman: left out, since podman 5 has no CNI networks; Debian 12's has them"
        )


@pytest.fixture(scope="session", autouse=True)
def _programs() -> None:
    require(
        "busybox",
        "cc",
        "conmon",
        "containerd",
        "crun",
        "ctr",
        "ip",
        "nft",
        "nsenter",
        "podman",
        "runc",
        "unshare",
    )


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return images.build_probe(tmp_path_factory.mktemp("probe"))


@pytest.fixture
def world() -> Iterator[World]:
    """Hosts and links of one node; its agent is started by an installation, not by the lab."""
    world = World(cluster(nodes=1, pods=0), name=f"runtimes-{os.getpid()}")
    try:
        world.build()
        yield world
    finally:
        world.down()


@pytest.fixture
def node(world: World) -> Node:
    return world.topology.nodes[0]


@pytest.fixture
def internet(world: World, node: Node) -> Iterator[Internet]:
    with Internet(
        world.internet, (str(node.address(Family.V4)), str(node.address(Family.V6)))
    ) as internet:
        yield internet


@pytest.fixture
def machine(world: World, node: Node, tmp_path: Path) -> Iterator[Machine]:
    with Machine(world.namespace(node.host), tmp_path) as machine:
        yield machine


@pytest.fixture
def netmgr_node(machine: Machine, node: Node) -> NetmgrNode:
    installed = NetmgrNode(machine, node, backend="nftables")
    installed.start("--bin-dir", BIN_DIR)
    return installed


@pytest.fixture
def engine(engine_name: str, netmgr_node: NetmgrNode, probe: bytes) -> Engine:
    return ENGINES[engine_name](netmgr_node.machine, probe)
