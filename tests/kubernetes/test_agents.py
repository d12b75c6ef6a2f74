"""What the controller does for agents, on a real API server: ranges, startup taint, condition."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.kube.nodes import STARTUP_TAINT
from netmgr.prefixes import Prefix
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import (
    Program,
    Starter,
    add_nodes,
    add_pods,
    agent_pod,
    node,
    set_ready,
    write_plan,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

PODS = "/api/v1/namespaces/netmgr/pods"
TAINT = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.org/gpu", "value": "true", "effect": "NoSchedule"}
MERGE = "merge-patch+json"
Start = Callable[..., Program]


@pytest.fixture
def plane(installed: ControlPlane) -> ControlPlane:
    return installed


@pytest.fixture
def start(installed: ControlPlane, starter: Starter) -> Start:
    """Starts a controller with the account and options of the manifests."""
    assert starter.plane is installed
    account = starter.account("netmgr", "netmgr-controller")

    def start_controller(*options: str) -> Program:
        own = ("--namespace=netmgr-claims", "--listen=127.0.0.1:0")
        return starter.start("controller", *own, *options, account=account)

    return start_controller


def with_range(name: str, cidr: str, **spec: object) -> Object:
    return node(name, podCIDR=cidr, podCIDRs=[cidr], **spec)


def assigned(plane: ControlPlane, pod: str) -> AssignedRanges | None:
    annotations = plane.ask("GET", f"{PODS}/{pod}")["metadata"].get("annotations", {})
    return AssignedRanges.parse(annotations[NODE_RANGES]) if NODE_RANGES in annotations else None


def ranges(plane: ControlPlane, pod: str) -> list[str]:
    found = assigned(plane, pod)
    return [str(each) for each in found.ranges] if found and found.node else []


def taints(plane: ControlPlane, name: str) -> list[Object]:
    return plane.ask("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", [])


def events_of(plane: ControlPlane, uid: str) -> list[Object]:
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid}"
    return plane.ask("GET", path)["items"]


def test_a_node_that_is_registered_anew_takes_its_ranges_from_its_agent_and_gives_it_the_new(
    plane: ControlPlane, start: Start
) -> None:
    add_nodes(plane, [with_range("a", "10.1.0.0/24"), with_range("b", "10.2.0.0/24")])
    add_pods(plane, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b")])
    start()
    eventually(lambda: ranges(plane, "agent-a") == ["10.1.0.0/24"])
    first = assigned(plane, "agent-a")
    assert first is not None
    assert first.version > 0

    plane.ask("DELETE", "/api/v1/nodes/a")
    eventually(lambda: ranges(plane, "agent-a") == [])
    gone = assigned(plane, "agent-a")
    assert gone is not None
    assert gone.node == ""
    assert gone.ranges == (Prefix.parse("10.1.0.0/24"),), "named, for the Event"

    # Registered, and without podCIDRs for a moment, as kubelets do it.
    add_nodes(plane, [node("a")])
    assert ranges(plane, "agent-a") == []
    body = {"spec": {"podCIDR": "10.3.0.0/24", "podCIDRs": ["10.3.0.0/24"]}}
    plane.ask("PATCH", "/api/v1/nodes/a", body, kind=MERGE)
    eventually(lambda: ranges(plane, "agent-a") == ["10.3.0.0/24"])
    again = assigned(plane, "agent-a")
    found = plane.ask("GET", "/api/v1/nodes/a")
    assert again is not None
    assert again.node == found["metadata"]["uid"] != first.node
    assert again.version > first.version
    eventually(lambda: events_of(plane, found["metadata"]["uid"]))
    (event,) = events_of(plane, found["metadata"]["uid"])
    assert event["reason"] == "NodeRangesChanged"
    assert "gives out 10.3.0.0/24 and no longer 10.1.0.0/24" in event["message"]
    assert ranges(plane, "agent-b") == ["10.2.0.0/24"]


def test_an_agent_knows_all_the_ranges_that_the_plan_gives_its_node(
    plane: ControlPlane, start: Start, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, "{odd: {nodes: 2, surge: 0, pods_per_node: 40}}", v6=True)
    add_nodes(plane, [node("a", "odd")])
    add_pods(plane, [agent_pod("agent-a", "a")])
    start(f"--plan={plan}")
    eventually(lambda: len(ranges(plane, "agent-a")) == 3)
    found = plane.ask("GET", "/api/v1/nodes/a")
    assert (
        ",".join(ranges(plane, "agent-a")) == found["metadata"]["annotations"]["netmgr.io/ranges"]
    )


def test_an_annotation_that_somebody_spoilt_is_written_again(
    plane: ControlPlane, start: Start
) -> None:
    add_nodes(plane, [with_range("a", "10.1.0.0/24")])
    add_pods(plane, [agent_pod("agent-a", "a")])
    start()
    eventually(lambda: ranges(plane, "agent-a"))
    body = {"metadata": {"annotations": {NODE_RANGES: "10.9.0.0/24"}}}
    plane.ask("PATCH", f"{PODS}/agent-a", body, kind=MERGE)
    eventually(
        lambda: (
            "10.1.0.0/24"
            in plane.ask("GET", f"{PODS}/agent-a")["metadata"]["annotations"][NODE_RANGES]
        )
    )


def test_the_startup_taint_goes_once_the_agent_serves_and_no_other_taint_does(
    plane: ControlPlane, start: Start
) -> None:
    add_nodes(
        plane,
        [
            with_range("a", "10.1.0.0/24", taints=[OTHER, TAINT]),
            # The API server takes this form, which Python's library refuses.
            with_range("b", "010.2.0.0/24", taints=[TAINT]),
            node("nat", taints=[TAINT]),
        ],
    )
    before = {"a": taints(plane, "a"), "b": taints(plane, "b")}
    add_pods(plane, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b")])
    add_pods(plane, [agent_pod("agent-nat", "nat", component="nat-host")])
    set_ready(plane, "agent-b", agent=False, exporter=True)
    start()
    eventually(lambda: ranges(plane, "agent-b"))
    assert {name: taints(plane, name) for name in ("a", "b")} == before
    set_ready(plane, "agent-a", agent=True, exporter=False)
    set_ready(plane, "agent-nat", agent=True)
    eventually(lambda: STARTUP_TAINT not in [each["key"] for each in taints(plane, "a")])
    eventually(lambda: STARTUP_TAINT not in [each["key"] for each in taints(plane, "nat")])
    assert taints(plane, "a") == [each for each in before["a"] if each["key"] != STARTUP_TAINT]
    assert taints(plane, "b") == before["b"]
    set_ready(plane, "agent-a", agent=False)
    set_ready(plane, "agent-b", agent=True)
    eventually(lambda: STARTUP_TAINT not in [each["key"] for each in taints(plane, "b")])
    assert STARTUP_TAINT not in [each["key"] for each in taints(plane, "a")], "never added again"


def test_an_agent_with_the_ranges_of_a_former_node_of_its_name_serves_no_pod_of_the_new_one(
    plane: ControlPlane, start: Start
) -> None:
    """The new Node has no podCIDRs yet: pods that were scheduled now could not start."""
    former = {"node": "", "version": 1, "ranges": ["10.9.0.0/24"]}
    waiting = agent_pod("agent-c", "c")
    waiting["metadata"]["annotations"] = {NODE_RANGES: json.dumps(former)}
    add_nodes(plane, [node("c", taints=[TAINT]), node("d", taints=[TAINT])])
    # The other one's ranges come from elsewhere, as from the metadata service.
    add_pods(plane, [waiting, agent_pod("agent-d", "d")])
    for name in ("agent-c", "agent-d"):
        set_ready(plane, name, agent=True)
    start()
    eventually(lambda: STARTUP_TAINT not in [each["key"] for each in taints(plane, "d")])
    time.sleep(1)
    assert STARTUP_TAINT in [each["key"] for each in taints(plane, "c")]


def condition(plane: ControlPlane, name: str, status: str) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    unavailable = {"type": "NetworkUnavailable", "status": status, "reason": "NoRouteCreated"}
    body = {"status": {"conditions": [ready, unavailable]}}
    plane.ask("PATCH", f"/api/v1/nodes/{name}/status", body, kind=MERGE)


def conditions(plane: ControlPlane, name: str) -> dict[str, tuple[str, str]]:
    found = plane.ask("GET", f"/api/v1/nodes/{name}")["status"]["conditions"]
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def test_the_clouds_condition_is_cleared_only_by_who_gives_nodes_their_ranges(
    plane: ControlPlane, start: Start, tmp_path: Path
) -> None:
    add_nodes(plane, [node("a", "gpu"), node("b", "gpu", taints=[TAINT])])
    add_pods(plane, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b")])
    condition(plane, "a", "True")
    condition(plane, "b", "True")
    set_ready(plane, "agent-a", agent=True)
    set_ready(plane, "agent-b", agent=True)
    plan = tmp_path / "plan.yaml"
    running = start(f"--plan={plan}", "--plan-optional")
    eventually(lambda: not [each for each in taints(plane, "b") if each["key"] == STARTUP_TAINT])
    assert conditions(plane, "a")["NetworkUnavailable"] == ("True", "NoRouteCreated")
    assert " no-plan " in running.said

    write_plan(tmp_path, "{gpu: {nodes: 3, surge: 0}}")
    eventually(lambda: ranges(plane, "agent-a"))
    for name in ("a", "b"):
        eventually(
            lambda name=name: (
                conditions(plane, name)
                == {
                    "Ready": ("True", "KubeletReady"),
                    "NetworkUnavailable": ("False", "NetmgrAgentReady"),
                }
            )
        )
