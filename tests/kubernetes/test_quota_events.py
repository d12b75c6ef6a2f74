"""Events for spent quotas: a real API server, controller, exporter, agent and kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kubernetes import manifests
from tests.kubernetes.clusters import Exporter, endless
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import Start, add_exporter
from tests.lab.exchange import open_socket
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.root, pytest.mark.usefixtures("no_nodes")]

NAMESPACE = "research"
LIMITS = [
    {"pods": f"{NAMESPACE}/greedy", "per-day": {"internet-out": "1M"}},
    {"pods": f"{NAMESPACE}/frugal", "per-day": {"internet-out": "1M"}},
    {"namespaces": NAMESPACE, "per-month": {"internet-out": "2M"}, "when-spent": "5M"},
]
ACCOUNTING = {"history_hours": 744, "history_rows": 200_000}
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"


@pytest.fixture
def world() -> Iterator[World]:
    settings = {"limits": LIMITS, "reconcile_seconds": 0.5, "accounting": ACCOUNTING}
    room = replace(cluster(pods=4), pods=())
    name = f"events-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made:
        yield made


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    with manifests.granted(installed, "quota-events", NAMESPACE):
        yield installed


@pytest.fixture
def start(plane: ControlPlane, start: Start) -> Start:
    assert plane
    return lambda: start("--quota-events")


def events(plane: ControlPlane) -> dict[str, Object]:
    found = plane.ask("GET", EVENTS)["items"]
    return {one["involvedObject"]["kind"]: one for one in found}


@contextmanager
def exporter(world: World) -> Iterator[int]:
    """The exporter of the world's first node, where the controller reaches it."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "netmgr", "exporter", f"--listen=127.0.0.1:{port}"]
    socket_option = f"--socket={world.nodes[0].ledger_socket}"
    process = subprocess.Popen([*command, socket_option])
    try:
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def spend(world: World, pod: Sandbox, size: int) -> None:
    with (
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
    ):
        far.bind((str(INTERNET[Family.V4]), 0))
        for number in range(size // 1000):
            near.sendto(bytes(972), far.getsockname())
            if number % 20 == 19:
                time.sleep(0.005)


def test_a_spent_quota_is_an_event_of_its_pod_and_of_its_namespace(
    world: World, plane: ControlPlane, start: Start
) -> None:
    greedy, frugal = (world.nodes[0].add(name) for name in ("greedy", "frugal"))
    with exporter(world) as port:
        add_exporter(plane, "node-1", port)
        spend(world, frugal, 500_000)
        spend(world, greedy, 1_600_000)
        eventually(lambda: sum(one["spent"] for one in world.nodes[0].snapshot()["quotas"]) == 1)
        running = start()
        eventually(lambda: "Pod" in events(plane))
        found = events(plane)
        assert set(found) == {"Pod"}
        about, message = found["Pod"]["involvedObject"], found["Pod"]["message"]
        # What `kubectl describe pod` looks for.
        wanted = (NAMESPACE, "greedy", greedy.uid)
        assert (about["namespace"], about["name"], about["uid"]) == wanted
        assert (found["Pod"]["type"], found["Pod"]["reason"]) == ("Warning", "QuotaSpent")
        assert message.startswith("1000000 bytes of internet-out a day are used on node-1: ")
        assert "further packets are dropped until " in message
        spend(world, frugal, 600_000)
        running.kill()
        # Another leader says nothing twice.
        start()

        def names() -> list[str]:
            items = plane.ask("GET", EVENTS)["items"]
            return sorted(item["involvedObject"]["name"] for item in items)

        # The dead leader's Lease has to be over.
        eventually(lambda: names() == ["frugal", "greedy", NAMESPACE], seconds=2 * PATIENCE)
        assert "pass at 5000000 bits a second" in events(plane)["Namespace"]["message"]


ANSWERS = {
    "drips": (b"200 OK", b" ", 0.1),
    "floods": (b"200 OK", b"1," * 100_000, 0.0),
    "names what is no pod": (
        b"200 OK",
        b'{"spent": [{"namespace": "../../default", "pod": "x"}]}',
        0.0,
    ),
    "wants a secret": (b"401 Unauthorized", b"no", 0.0),
}


def test_nodes_that_answer_nonsense_or_nothing_keep_no_other_event_back(
    world: World, plane: ControlPlane, start: Start
) -> None:
    greedy = world.nodes[0].add("greedy")
    with ExitStack() as stack:
        for number, (name, (status, piece, pause)) in enumerate(ANSWERS.items()):
            hostile = stack.enter_context(Exporter.serving())
            hostile.status, hostile.pause = status, pause
            ends = name not in ("drips", "floods")
            hostile.pieces = partial(iter, [piece]) if ends else partial(endless, piece)
            add_exporter(plane, f"hostile-{number}", hostile.port)
        (closed,) = free_ports(1)
        add_exporter(plane, "down", closed)
        add_exporter(plane, "node-1", stack.enter_context(exporter(world)))
        spend(world, greedy, 1_600_000)
        eventually(lambda: any(row["spent"] for row in world.nodes[0].snapshot()["quotas"]))
        running = start()
        eventually(lambda: "Pod" in events(plane))
        # What names no pod is left out of a report that is read.
        eventually(lambda: "reports-unread nodes=4 " in running.said)
        assert set(events(plane)) == {"Pod"}
        # What was sent without end was not kept.
        assert running.most_memory < 150 << 20
