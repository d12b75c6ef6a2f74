"""Following a collection on a real API server at the least cost to whoever follows."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from netmgr.errors import StateError
from netmgr.kube.api import Api, Object, connect
from netmgr.kube.reflector import PAGE, Reflector
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.controllers import Starter, add_nodes, node

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]


class Taker:
    """Notes how many requests had been answered when each object came, keeps no object, and has
    enough of one list.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.requests_by_then: dict[str, int] = {}

    def replace(self, objects: Iterable[Object]) -> None:
        for found in objects:
            self.requests_by_then[found["metadata"]["name"]] = sum(self._api.asked().values())
        raise StateError("this was the list")

    def change(self, found: Object) -> None:
        raise AssertionError(found)

    delete = change


def test_a_list_is_taken_a_page_at_a_time(installed: ControlPlane, starter: Starter) -> None:
    """Nodes as their kubelets fill them in have 15 kB each: nobody may need to hold 7,500 of them
    at once.
    """
    names = [f"n{number:04}" for number in range(PAGE + 20)]
    add_nodes(installed, map(node, names))
    api = connect(None, starter.account("netmgr", "netmgr-controller"), installed.environment)
    taker = Taker(api)
    Reflector(api, "/api/v1/nodes", taker, threading.Event()).run()
    assert taker.requests_by_then == {name: 1 if name < names[PAGE] else 2 for name in names}
