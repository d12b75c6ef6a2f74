"""One control plane for all the tests of a session, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.kubernetes import programs
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import Starter

_numbers = count(1)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if reason := programs.missing():
        pytest.skip(reason)
    plane = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    """A new namespace."""
    name = f"test-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.ask("POST", "/api/v1/namespaces", body)
    return name


@pytest.fixture
def starter(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Starter]:
    """Starts netmgr's own programs; all are ended after the test."""
    made = Starter(control_plane, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def no_nodes(control_plane: ControlPlane) -> Iterator[None]:
    """A cluster without Nodes, and without them afterwards."""
    assert not control_plane.ask("GET", "/api/v1/nodes?limit=1")["items"]
    yield
    control_plane.ask("DELETE", "/api/v1/nodes")
