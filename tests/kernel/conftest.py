"""Worlds for the kernel tests: the lab's own builder, on both backends,
with names nobody else has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cni.install import Installation, install
from netmgr.agent.core.files import RESERVE_BYTES, RESERVE_FILES
from netmgr.documents.node import Backend
from netmgr.preflight import probing
from tests.kernel.common import Ends, on_small_disk
from tests.kernel.conforming import Caller, one_node
from tests.kernel.fabric import Fabric, built
from tests.kernel.launching import Agent, agents, layout
from tests.kernel.spending import Spender
from tests.lab.exchange import End
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

_numbers = count(1)


def _unique_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def lab_name() -> str:
    """A name for one lab."""
    return _unique_name()


# The contracts of the rules hold on every backend; what is above them is the same code.
LEGACY = pytest.param(Backend.IPTABLES_LEGACY, marks=pytest.mark.slow)
EVERY_WAY_OF_COUNTING = [Backend.NFTABLES, Backend.LINKS, LEGACY]


def one_of(ways: Iterable[object]) -> Any:
    """A `backend` for a module whose tests need others than the usual two."""

    @pytest.fixture(scope="module", params=ways, ids=str)
    def backend(request: pytest.FixtureRequest) -> Backend:
        return request.param

    return backend


EITHER_BACKEND = pytest.mark.parametrize(
    "backend", [Backend.NFTABLES, LEGACY], indirect=True, ids=str
)
backend = one_of([Backend.NFTABLES, LEGACY])


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, backend: Backend) -> Iterator[World]:
    """Nodes without pods, shared by the tests of a module; see `new_pod`.

    A module's WORLD has how many `nodes` there are (two), and what else World is to know.
    """
    settings: dict[str, Any] = {"nodes": 2, **getattr(request.module, "WORLD", {})}
    room_for_many = replace(cluster(settings.pop("nodes"), pods=100), pods=())
    with World(room_for_many, backend=backend, name=_unique_name(), **settings) as made:
        yield made


@pytest.fixture(scope="module")
def cni() -> Iterator[Caller]:
    """A node that answers any request, and reconciles once: nothing is found by looking."""
    with one_node() as caller:
        yield caller


@pytest.fixture
def node(world: World) -> LabNode:
    """The first node of the module's world."""
    return world.node("node-1")


@pytest.fixture
def pod(node: LabNode) -> Iterator[Sandbox]:
    """A pod for one test."""
    made = node.add(f"pod-{next(_numbers)}")
    yield made
    node.runtime.delete(made)


@pytest.fixture
def ends(world: World, pod: Sandbox) -> Ends:
    """The pod's, and the internet's."""
    return {
        family: (End(pod.netns, pod.address(family)), End(world.internet, address))
        for family, address in INTERNET.items()
    }


@pytest.fixture
def new_pod(world: World) -> Iterator[Callable[[str], Sandbox]]:
    """Runs pods with names of their own on the node that is named;
    they are deleted after the test."""
    made: list[Sandbox] = []

    def add(node: str = "node-1") -> Sandbox:
        made.append(world.node(node).add(f"pod-{next(_numbers)}"))
        return made[-1]

    yield add
    for sandbox in made:
        world.node(sandbox.pod.node).runtime.delete(sandbox)


@pytest.fixture
def new_spender(world: World, node: LabNode) -> Callable[[], Spender]:
    """Runs pods that spend, each in a Kubernetes namespace of its own; they stay."""

    def add() -> Spender:
        number = next(_numbers)
        return Spender(world, node, node.add(f"pod-{number}", f"team-{number}"))

    return add


@pytest.fixture
def spender(node: LabNode, new_spender: Callable[[], Spender]) -> Iterator[Spender]:
    """Such a pod for one test."""
    made = new_spender()
    yield made
    node.runtime.delete(made.sandbox)


@pytest.fixture
def small_disk(node: LabNode) -> Iterator[Path]:
    """The node's state on a small disk, as `on_small_disk` has it."""
    node.kill_agent()
    with on_small_disk(node.directory / "state") as filler:
        try:
            node.start_until_ready()
            # The agent takes its reserve once it is ready.
            reserve = (node.directory / "state").glob
            eventually(
                lambda: (
                    sum(file.stat().st_size for file in reserve("reserve/*"))
                    == RESERVE_FILES * RESERVE_BYTES
                )
            )
            yield filler
        finally:
            node.kill_agent()
    node.start_until_ready()


@pytest.fixture
def plugin(tmp_path: Path) -> Installation:
    """An installed launcher, without an agent."""
    plan = layout(tmp_path)
    install(plan)
    return plan


@pytest.fixture
def agent() -> Iterator[Callable[..., Agent]]:
    """Starts agents that say what they are told to."""
    with agents() as start:
        yield start


@pytest.fixture(scope="module")
def fabric_hosts() -> Iterator[Path]:
    """Namespaces of hosts without any agent, shared by the tests of a module."""
    with built() as made:
        yield made


@pytest.fixture
def fabric(fabric_hosts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fabric:
    """They and a node document, for preflights that count losses in a tenth of a second."""
    monkeypatch.setattr(probing, "ECHOES", 50)
    monkeypatch.setattr(probing, "APART_SECONDS", 0.002)
    return Fabric(fabric_hosts, tmp_path / "node.yaml")
