"""The condition NetmgrHealthy on a real API server, by what exporters report."""

from __future__ import annotations

import pytest

from netmgr.kube.controller.nodes import HEALTHY, UNHEALTHY_TAINT
from tests.kubernetes.clusters import Exporter
from tests.kubernetes.control_plane import ControlPlane, free_ports
from tests.kubernetes.controllers import (
    STRATEGIC,
    Start,
    Starter,
    add_exporter,
    add_nodes,
    health,
    health_state,
    node,
)
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

DRIFT = ("DriftReturns", "rules 3 times in 10 minutes")
GAPS = ("CountersLost", "counters keep losing their past")
LEASE = 2 * PATIENCE
"""In which a dead leader's is over, and its successor has asked."""


@pytest.fixture
def start(start: Start) -> Start:
    return lambda *more, port=0: start("--node-health", *more, port=port)


def test_a_nodes_condition_is_what_its_agent_found(installed: ControlPlane, start: Start) -> None:
    with Exporter.serving() as well, Exporter.serving() as ill, Exporter.serving() as later:
        ill.problems(DRIFT, GAPS)
        later.problems(("NotYetInvented", "of a later release"))
        for name, server in (("well", well), ("ill", ill), ("later", later)):
            add_exporter(installed, name, server.port)
        # A condition of somebody else stays.
        other = {"type": "GpuHealthy", "status": "True", "reason": "Fine", "message": "fine"}
        body = {"status": {"conditions": [other]}}
        installed.ask("PATCH", "/api/v1/nodes/ill/status", body, kind=STRATEGIC)
        running = start()
        eventually(lambda: health_state(installed, "well") == ("True", "NoProblems"))
        eventually(lambda: health_state(installed, "ill") == ("False", "CountersLost"))
        eventually(lambda: health_state(installed, "later") == ("False", "NotYetInvented"))
        assert health(installed, "ill")["message"] == f"{GAPS[1]}; {DRIFT[1]}"
        before = installed.ask("GET", "/api/v1/nodes/ill")
        assert {each["type"] for each in before["status"]["conditions"]} >= {"GpuHealthy", HEALTHY}
        line = "node-health node=ill healthy=False reason=CountersLost"
        eventually(lambda: line in running.said)
        # What has not changed, but for figures in the message, is not written again.
        running.kill()
        ill.problems((GAPS[0], "counters keep losing their past, and more of it"))
        well.problems(DRIFT)
        start()
        eventually(lambda: health_state(installed, "well") == ("False", "DriftReturns"), LEASE)
        after = installed.ask("GET", "/api/v1/nodes/ill")["metadata"]
        assert after["resourceVersion"] == before["metadata"]["resourceVersion"]


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
    made["lastTransitionTime"] = f"2026-01-0{since}T00:00:00Z"
    body = {"status": {"conditions": [made]}}
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", body, kind=STRATEGIC)


@pytest.mark.usefixtures("may_taint")
def test_unhealthy_nodes_are_tainted_up_to_a_share_and_no_leader_changes_its_mind(
    installed: ControlPlane, start: Start
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
    eventually(lambda: "unhealthy-taint-withheld node=only" in running.said)
    shown = 'netmgr_controller_unhealthy_nodes{state="'
    eventually(lambda: f'{shown}tainted"}} 2.0' in running.figures())
    eventually(lambda: f'{shown}withheld"}} 2.0' in running.figures())
    # Another leader, by day and by night, finds what was tainted and leaves it.
    before = [installed.ask("GET", f"/api/v1/nodes/n{n}")["spec"] for n in range(4)]
    running.end()
    running = start(*options, port=port)
    eventually(lambda: f'{shown}withheld"}} 2.0' in running.figures())
    assert [installed.ask("GET", f"/api/v1/nodes/n{n}")["spec"] for n in range(4)] == before
    assert "unhealthy-taint-removed" not in running.said
    # Who is silent keeps it. Who is well again makes room for the next.
    set_health(installed, "n3", "Unknown", "4")
    set_health(installed, "n2", "True", "4")
    eventually(lambda: tainted(installed) == {"n1", "n3"})
    running.end()
    start(port=port)
    eventually(lambda: tainted(installed) == set())


def test_an_option_that_makes_no_sense_ends_the_controller(
    starter: Starter, installed: ControlPlane
) -> None:
    assert starter.plane is installed
    account = starter.account("netmgr", "netmgr-controller")
    running = starter.start("controller", "--taint-unhealthy=5%", account=account)
    assert running.process.wait(PATIENCE) == 2
    assert "--taint-unhealthy needs --node-health" in running.said
