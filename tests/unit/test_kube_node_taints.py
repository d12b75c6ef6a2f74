"""Taints are written as a whole list, and none that somebody else adds meanwhile is lost."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from netmgr.errors import ApiError
from netmgr.kube.api import CONFLICT
from netmgr.kube.node_taints import rewrite, without
from netmgr.kube.nodes import STARTUP_TAINT, ClusterNodes
from netmgr.kube.reconciling import Leadership

STARTUP = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.org/away", "effect": "NoExecute"}
POOL = "netmgr.io/node-pool"


class Server:
    """One Node, as an API server keeps it: every write has a version, and names the one before."""

    def __init__(self) -> None:
        self.taints = [STARTUP]
        self.version = 1

    def node(self) -> dict[str, Any]:
        metadata = {"name": "n", "uid": "u", "resourceVersion": str(self.version)}
        metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
        return {"metadata": metadata, "spec": {"taints": list(self.taints)}}

    def write(self, taints: list[dict[str, str]]) -> None:
        self.taints, self.version = taints, self.version + 1

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/api/v1/nodes/n"
        if body["metadata"] != {"uid": "u", "resourceVersion": str(self.version)}:
            raise ApiError("another program wrote first", CONFLICT)
        self.write(body["spec"]["taints"])
        return self.node()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def leadership(server: Server) -> Leadership:
    nodes = ClusterNodes(POOL, threading.Event())
    nodes.replace([server.node()])
    return SimpleNamespace(api=server, nodes=nodes)  # type: ignore[return-value]  all it is asked for


def remove(leadership: Leadership, view: Any) -> bool:
    return rewrite(leadership, view, lambda taints: without(taints, STARTUP_TAINT))


@pytest.mark.parametrize("events", [1, 0], ids=["seen", "not seen yet"])
def test_a_taint_that_comes_between_decision_and_write_stays(
    server: Server, leadership: Leadership, events: int
) -> None:
    (view,) = leadership.nodes.views()
    server.write([STARTUP, OTHER])
    for _ in range(events):
        leadership.nodes.change(server.node())
    # What is not known yet has the server refuse the write, and another round decide.
    assert remove(leadership, view) is bool(events)
    leadership.nodes.change(server.node())
    assert remove(leadership, leadership.nodes.views()[0])
    assert server.taints == [OTHER]


def test_what_is_done_already_is_not_written(server: Server, leadership: Leadership) -> None:
    (view,) = leadership.nodes.views()
    assert remove(leadership, view)
    assert remove(leadership, view)
    assert (server.taints, server.version) == ([], 2)


def test_another_node_of_the_name_is_left_alone(server: Server, leadership: Leadership) -> None:
    (view,) = leadership.nodes.views()
    again = server.node()
    again["metadata"] |= {"uid": "v", "resourceVersion": "7"}
    leadership.nodes.replace([again])
    assert remove(leadership, view)
    leadership.nodes.replace([])
    assert remove(leadership, view)
    assert server.taints == [STARTUP]
