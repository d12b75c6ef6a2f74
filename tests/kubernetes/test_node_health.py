"""The condition NetmgrHealthy on a real API server, by what exporters report."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from netmgr.kube.nodes import HEALTHY, UNHEALTHY_TAINT
from tests.kubernetes.control_plane import ControlPlane, free_ports
from tests.kubernetes.controllers import (
    AGENTS,
    Program,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    health,
    health_state,
    node,
)
from tests.waiting import eventually

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
def start(installed: ControlPlane, starter: Starter) -> Callable[..., Program]:
    """Starts a controller with the account of the manifests."""
    assert starter.plane is installed
    account = starter.account("netmgr", "netmgr-controller")
    options = ("--namespace=netmgr-claims", "--node-health")

    def started(*more: str, port: int = 0) -> Program:
        listen = f"--listen=127.0.0.1:{port}"
        return starter.start("controller", *options, listen, *more, account=account, port=port)

    return started


def add_agent(plane: ControlPlane, name: str, port: int) -> None:
    add_nodes(plane, [node(name)])
    pod = agent_pod(f"agent-{name}", name)
    pod["spec"]["containers"][1]["ports"] = [{"name": "metrics", "containerPort": port}]
    add_pods(plane, [pod])
    status = {"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
    plane.ask("PATCH", f"{AGENTS}/agent-{name}/status", status, kind="merge-patch+json")


def test_a_nodes_condition_is_what_its_agent_found(
    installed: ControlPlane, start: Callable[..., Program]
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
        eventually(lambda: health_state(installed, "well") == ("True", "NoProblems"))
        eventually(lambda: health_state(installed, "ill") == ("False", "CountersLost"))
        eventually(lambda: health_state(installed, "later") == ("False", "NotYetInvented"))
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
        eventually(lambda: health_state(installed, "well") == ("False", "DriftReturns"), 60)
        after = installed.ask("GET", "/api/v1/nodes/ill")["metadata"]["resourceVersion"]
        assert after == before


def tainted(plane: ControlPlane) -> set[str]:
    found = plane.ask("GET", "/api/v1/nodes")["items"]
    return {
        each["metadata"]["name"]
        for each in found
        for taint in each["spec"].get("taints") or ()
        if (taint["key"], taint["effect"]) == (UNHEALTHY_TAINT, "NoSchedule")
    }


def set_health(plane: ControlPlane, name: str, status: str, since: str) -> None:
    """The condition, as a controller wrote it before."""
    made = {"type": HEALTHY, "status": status, "reason": "DriftReturns", "message": "rules"}
    body = {
        "status": {"conditions": [{**made, "lastTransitionTime": f"2026-01-0{since}T00:00:00Z"}]}
    }
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", body, kind="strategic-merge-patch+json")


@pytest.mark.usefixtures("may_taint")
def test_unhealthy_nodes_are_tainted_up_to_a_share_and_no_leader_changes_its_mind(
    installed: ControlPlane, start: Callable[..., Program]
) -> None:
    (port,) = free_ports(1)
    pool = [node(f"n{number}", "gpu") for number in range(8)]
    add_nodes(installed, [*pool, node("only", "single")])
    for name, day in (("n1", "3"), ("n2", "1"), ("n3", "2"), ("only", "1")):
        set_health(installed, name, "False", day)
    options = ("--taint-unhealthy=25%", "--taint-after=1")
    running = start(*options, port=port)
    # Two of eight, those that have been ill the longest; and never a pool's only one.
    eventually(lambda: tainted(installed) == {"n2", "n3"})
    eventually(lambda: "unhealthy-taint-withheld node=n1 pool=gpu" in running.said)
    assert "unhealthy-taint-withheld node=only" in running.said
    shown = 'netmgr_controller_unhealthy_nodes{state="'
    eventually(lambda: f'{shown}tainted"}} 2.0' in running.figures())
    assert f'{shown}withheld"}} 2.0' in running.figures()
    # Another leader, by day and by night, finds what was tainted and leaves it.
    before = [installed.ask("GET", f"/api/v1/nodes/n{n}")["spec"] for n in range(4)]
    running.end()
    running = start(*options, port=port)
    eventually(lambda: f'{shown}withheld"}} 2.0' in running.figures(), 60)
    assert [installed.ask("GET", f"/api/v1/nodes/n{n}")["spec"] for n in range(4)] == before
    assert "unhealthy-taint-removed" not in running.said
    # Who is silent keeps it. Who is well again makes room for the next.
    set_health(installed, "n3", "Unknown", "4")
    set_health(installed, "n2", "True", "4")
    eventually(lambda: tainted(installed) == {"n1", "n3"})
    running.end()
    start(port=port)
    eventually(lambda: tainted(installed) == set(), 60)


def test_without_the_component_the_server_refuses_the_taint(
    installed: ControlPlane, start: Callable[..., Program]
) -> None:
    add_nodes(installed, [node("n0", "gpu"), node("n1", "gpu")])
    set_health(installed, "n0", "False", "1")
    running = start("--taint-unhealthy=50%", "--taint-after=0")

    def is_refused() -> bool:
        # The server takes to a policy a moment after it changed, as after the test before this
        # one: what it let pass until then is tried again.
        for name in tainted(installed):
            path, body = f"/api/v1/nodes/{name}", {"spec": {"taints": None}}
            installed.ask("PATCH", path, body, kind="merge-patch+json")
        return "netmgr-controller may remove the taints" in running.said

    eventually(is_refused, 60)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--node-health", "--taint-unhealthy=5"),
            "--taint-unhealthy 5: give a share of each node",
        ),
        (("--taint-unhealthy=5%",), "--taint-unhealthy needs --node-health"),
    ],
)
def test_an_option_that_makes_no_sense_ends_the_controller(
    starter: Starter, installed: ControlPlane, options: tuple[str, ...], complaint: str
) -> None:
    assert starter.plane is installed
    account = starter.account("netmgr", "netmgr-controller")
    running = starter.start("controller", *options, account=account)
    assert running.process.wait(30) == 2
    assert complaint in running.said
