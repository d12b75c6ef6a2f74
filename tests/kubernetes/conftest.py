"""One control plane for all the tests of a session, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.kubernetes import programs
from tests.kubernetes.control_plane import ControlPlane

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
