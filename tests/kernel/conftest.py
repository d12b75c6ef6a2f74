"""Worlds for the kernel tests: the lab's own builder, on both backends,
with names nobody else has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from cni.install import Installation, install
from netmgr.documents.node import Backend
from netmgr.preflight import probing
from tests.kernel.fabric import Fabric, built
from tests.kernel.launching import Agent, agents, layout
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import cluster
from tests.lab.world import World

_numbers = count(1)


def _unique_name() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def lab_name() -> str:
    """A name for one lab."""
    return _unique_name()


# The contracts of the rules hold on every backend; what is above them is the same code.
LEGACY = pytest.param(Backend.IPTABLES_LEGACY, marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[Backend.NFTABLES, LEGACY], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    """Two nodes without pods, shared by the tests of a module; see `new_pod`."""
    room_for_many = replace(cluster(pods=100), pods=())
    with World(room_for_many, backend=backend, name=_unique_name()) as made:
        yield made


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
