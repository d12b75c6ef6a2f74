"""The condition NetmgrHealthy on a real API server, by what exporters report."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from netmgr.kube.nodes import HEALTHY
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import (
    AGENTS,
    Program,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    eventually,
    node,
)

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

DRIFT = {"reason": "DriftReturns", "message": "rules 3 times in 10 minutes"}
GAPS = {"reason": "CountersLost", "message": "counters keep losing their past"}
UNKNOWN = {"reason": "NotYetInvented", "message": "of a later release"}


class Reporting(socketserver.ThreadingTCPServer):
    """An exporter that reports these problems."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.problems: list[dict[str, str]] = []
        self.asked = 0


class _Answer(socketserver.BaseRequestHandler):
    server: Reporting

    def handle(self) -> None:
        self.request.recv(1000)
        self.server.asked += 1
        body = json.dumps({"spent": [], "problems": self.server.problems})
        self.request.sendall(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode())


@contextmanager
def reporting() -> Iterator[Reporting]:
    with Reporting() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def start(installed: ControlPlane, starter: Starter) -> Callable[[], Program]:
    """Starts a controller with the account of the manifests."""
    assert starter.plane is installed
    account = starter.account("netmgr", "netmgr-controller")
    options = ("--namespace=netmgr-claims", "--listen=127.0.0.1:0", "--node-health")
    return lambda: starter.start("controller", *options, account=account)


def add_agent(plane: ControlPlane, name: str, port: int) -> None:
    add_nodes(plane, [node(name)])
    pod = agent_pod(f"agent-{name}", name)
    pod["spec"]["containers"][1]["ports"] = [{"name": "metrics", "containerPort": port}]
    add_pods(plane, [pod])
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    plane.ask("PATCH", f"{AGENTS}/agent-{name}/status", status, kind="merge-patch+json")


def health(plane: ControlPlane, name: str) -> Object:
    found = plane.ask("GET", f"/api/v1/nodes/{name}")["status"].get("conditions") or ()
    return next((each for each in found if each["type"] == HEALTHY), {})


def state(plane: ControlPlane, name: str) -> tuple[str, str]:
    found = health(plane, name)
    return found.get("status", ""), found.get("reason", "")


def test_a_nodes_condition_is_what_its_agent_found(
    installed: ControlPlane, start: Callable[[], Program]
) -> None:
    with reporting() as well, reporting() as ill, reporting() as later:
        ill.problems = [DRIFT, GAPS]
        later.problems = [UNKNOWN]
        for name, server in (("well", well), ("ill", ill), ("later", later)):
            add_agent(installed, name, server.server_address[1])
        # A condition of somebody else stays.
        other = {"type": "GpuHealthy", "status": "True", "reason": "Fine", "message": "fine"}
        path = "/api/v1/nodes/ill/status"
        body = {"status": {"conditions": [other]}}
        installed.ask("PATCH", path, body, kind="strategic-merge-patch+json")
        running = start()
        eventually(lambda: state(installed, "well") == ("True", "NoProblems"))
        eventually(lambda: state(installed, "ill") == ("False", "CountersLost"))
        eventually(lambda: state(installed, "later") == ("False", "NotYetInvented"))
        found = health(installed, "ill")
        assert found["message"] == f"{GAPS['message']}; {DRIFT['message']}"
        conditions = installed.ask("GET", "/api/v1/nodes/ill")["status"]["conditions"]
        assert {each["type"] for each in conditions} >= {"GpuHealthy", HEALTHY}
        assert "node-health node=ill healthy=False reason=CountersLost" in running.said
        # What has not changed, but for figures in the message, is not written again.
        before = installed.ask("GET", "/api/v1/nodes/ill")["metadata"]["resourceVersion"]
        running.kill()
        ill.problems = [{**GAPS, "message": "counters keep losing their past, and more of it"}]
        well.problems = [DRIFT]
        start()
        eventually(lambda: state(installed, "well") == ("False", "DriftReturns"), 60)
        after = installed.ask("GET", "/api/v1/nodes/ill")["metadata"]["resourceVersion"]
        assert after == before
