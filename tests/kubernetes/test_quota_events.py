"""Events for spent quotas: a real API server, controller, exporter, agent and kernel."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
import yaml

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kubernetes import manifests
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import (
    AGENTS,
    Program,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    node,
)
from tests.lab.exchange import open_socket
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.root, pytest.mark.usefixtures("no_nodes")]

NAMESPACE = "research"
LIMITS = [
    {"pods": f"{NAMESPACE}/greedy", "per-day": {"internet-out": "1M"}},
    {"pods": f"{NAMESPACE}/frugal", "per-day": {"internet-out": "1M"}},
    {"namespaces": NAMESPACE, "per-month": {"internet-out": "2M"}, "when-spent": "5M"},
]
ACCOUNTING = {"history_hours": 744, "history_rows": 200_000}
ANSWER = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.fixture
def world() -> Iterator[World]:
    settings = {"limits": LIMITS, "reconcile_seconds": 0.5, "accounting": ACCOUNTING}
    room = replace(cluster(pods=4), pods=())
    name = f"events-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made:
        yield made


@pytest.fixture
def plane(installed: ControlPlane) -> Iterator[ControlPlane]:
    path = manifests.HERE / "components" / "quota-events" / "rbac.yaml"
    for found in yaml.safe_load_all(path.read_text()):
        manifests.apply(installed, found)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    installed.answer("POST", "/api/v1/namespaces", body)
    yield installed
    installed.ask("DELETE", events_path())


@pytest.fixture
def controller(plane: ControlPlane, starter: Starter) -> Callable[[], Program]:
    assert starter.plane is plane
    account = starter.account("netmgr", "netmgr-controller")
    options = ("--namespace=netmgr-claims", "--listen=127.0.0.1:0", "--quota-events")
    return lambda: starter.start("controller", *options, account=account)


def events_path() -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/events"


def events(plane: ControlPlane) -> dict[str, Object]:
    found = plane.ask("GET", events_path())["items"]
    return {one["involvedObject"]["kind"]: one for one in found}


def add_agent(plane: ControlPlane, name: str, port: int) -> None:
    """A Node, and its agent's pod with an exporter at this port of the loopback."""
    add_nodes(plane, [node(name)])
    pod = agent_pod(f"agent-{name}", name)
    for container in pod["spec"]["containers"]:
        if container["name"] == "exporter":
            container["ports"] = [{"name": "metrics", "containerPort": port}]
    add_pods(plane, [pod])
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    plane.ask("PATCH", f"{AGENTS}/agent-{name}/status", status, kind="merge-patch+json")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextmanager
def exporter(world: World) -> Iterator[int]:
    """The exporter of the world's first node, where the controller reaches it."""
    port = free_port()
    command = [sys.executable, "-m", "netmgr", "exporter", f"--listen=127.0.0.1:{port}"]
    socket_option = f"--socket={world.nodes[0].ledger_socket}"
    process = subprocess.Popen([*command, socket_option])
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


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
    world: World, plane: ControlPlane, controller: Callable[[], Program]
) -> None:
    greedy, frugal = (world.nodes[0].add(each) for each in ("greedy", "frugal"))
    with exporter(world) as port:
        add_agent(plane, "node-1", port)
        spend(world, frugal, 500_000)
        spend(world, greedy, 1_600_000)
        eventually(lambda: sum(one["spent"] for one in world.nodes[0].snapshot()["quotas"]) == 1)
        running = controller()
        eventually(lambda: "Pod" in events(plane), 30)
        found = events(plane)
        assert set(found) == {"Pod"}
        about, message = found["Pod"]["involvedObject"], found["Pod"]["message"]
        # What `kubectl describe pod` looks for.
        assert (about["namespace"], about["name"], about["uid"]) == (
            NAMESPACE,
            "greedy",
            greedy.uid,
        )
        assert (found["Pod"]["type"], found["Pod"]["reason"]) == ("Warning", "QuotaSpent")
        assert message.startswith("1000000 bytes of internet-out a day are used on node-1: ")
        assert "further packets are dropped until " in message
        spend(world, frugal, 600_000)
        running.kill()
        # Another leader says nothing twice.
        controller()
        eventually(lambda: "Namespace" in events(plane), 60)
        items = plane.ask("GET", events_path())["items"]
        assert sorted(one["involvedObject"]["name"] for one in items) == [
            "frugal",
            "greedy",
            NAMESPACE,
        ]
        assert "pass at 5000000 bits a second" in events(plane)["Namespace"]["message"]


class Drips(socketserver.BaseRequestHandler):
    """Never comes to an end."""

    def handle(self) -> None:
        with suppress(OSError):
            self.request.sendall(ANSWER)
            while True:
                self.request.sendall(b" ")
                time.sleep(0.1)


class Floods(socketserver.BaseRequestHandler):
    """Sends more than anybody has memory for."""

    def handle(self) -> None:
        with suppress(OSError):
            self.request.sendall(ANSWER + b"[")
            while True:
                self.request.sendall(b"1," * 100_000)


class Lies(socketserver.BaseRequestHandler):
    """Names what is no pod."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(ANSWER + b'{"spent": [{"namespace": "../../default", "pod": "x"}]}')


class Refuses(socketserver.BaseRequestHandler):
    """Wants a secret."""

    def handle(self) -> None:
        self.request.recv(1000)
        self.request.sendall(b"HTTP/1.0 401 Unauthorized\r\n\r\nno")


@contextmanager
def hostile(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def test_nodes_that_answer_nonsense_or_nothing_keep_no_other_event_back(
    world: World, plane: ControlPlane, controller: Callable[[], Program]
) -> None:
    greedy = world.nodes[0].add("greedy")
    with ExitStack() as stack:
        for number, handler in enumerate((Drips, Floods, Lies, Refuses)):
            add_agent(plane, f"hostile-{number}", stack.enter_context(hostile(handler)))
        add_agent(plane, "down", free_port())
        add_agent(plane, "node-1", stack.enter_context(exporter(world)))
        spend(world, greedy, 1_600_000)
        eventually(lambda: any(one["spent"] for one in world.nodes[0].snapshot()["quotas"]))
        running = controller()
        eventually(lambda: "Pod" in events(plane), 30)
        eventually(lambda: "reports-unread nodes=5 " in running.said)
        assert set(events(plane)) == {"Pod"}
        # What was sent without end was not kept.
        assert running.most_memory < 150 << 20
