"""What the controller does for agents, on a real API server: ranges, startup taint, condition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netmgr.kube.controller.nodes import STARTUP_TAINT
from netmgr.prefixes import Prefix
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges
from tests.kubernetes.control_plane import ControlPlane, Object
from tests.kubernetes.controllers import (
    AGENTS,
    MERGE,
    Start,
    add_nodes,
    add_pods,
    agent_pod,
    events_of,
    node,
    set_ready,
    starts_up,
    taints,
    write_plan,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

TAINT = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.org/gpu", "value": "true", "effect": "NoSchedule"}


def with_range(name: str, cidr: str, **spec: object) -> Object:
    return node(name, podCIDR=cidr, podCIDRs=[cidr], **spec)


def assigned(installed: ControlPlane, pod: str) -> AssignedRanges | None:
    annotations = installed.ask("GET", f"{AGENTS}/{pod}")["metadata"].get("annotations", {})
    return AssignedRanges.parse(annotations[NODE_RANGES]) if NODE_RANGES in annotations else None


def ranges(installed: ControlPlane, pod: str) -> list[str]:
    found = assigned(installed, pod)
    return [str(each) for each in found.ranges] if found and found.node else []


def test_a_node_that_is_registered_anew_takes_its_ranges_from_its_agent_and_gives_it_the_new(
    installed: ControlPlane, start: Start
) -> None:
    add_nodes(installed, [with_range("a", "10.1.0.0/24"), with_range("b", "10.2.0.0/24")])
    add_pods(installed, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b")])
    start()
    eventually(lambda: ranges(installed, "agent-a") == ["10.1.0.0/24"])
    first = assigned(installed, "agent-a")
    assert first is not None
    assert first.version > 0

    installed.ask("DELETE", "/api/v1/nodes/a")
    eventually(lambda: ranges(installed, "agent-a") == [])
    gone = assigned(installed, "agent-a")
    assert gone is not None
    assert gone.node == ""
    assert gone.ranges == (Prefix.parse("10.1.0.0/24"),), "named, for the Event"

    # Registered, and without podCIDRs for a moment, as kubelets do it.
    add_nodes(installed, [node("a")])
    assert ranges(installed, "agent-a") == []
    body = {"spec": {"podCIDR": "10.3.0.0/24", "podCIDRs": ["10.3.0.0/24"]}}
    installed.ask("PATCH", "/api/v1/nodes/a", body, kind=MERGE)
    eventually(lambda: ranges(installed, "agent-a") == ["10.3.0.0/24"])
    again = assigned(installed, "agent-a")
    found = installed.ask("GET", "/api/v1/nodes/a")
    assert again is not None
    assert again.node == found["metadata"]["uid"] != first.node
    assert again.version > first.version
    eventually(lambda: "NodeRangesChanged" in events_of(installed, "a"))
    event = events_of(installed, "a")["NodeRangesChanged"]
    assert event["involvedObject"]["uid"] == again.node
    assert "gives out 10.3.0.0/24 and no longer 10.1.0.0/24" in event["message"]

    # What somebody spoilt is written again.
    spoilt = {"metadata": {"annotations": {NODE_RANGES: "10.9.0.0/24"}}}
    installed.ask("PATCH", f"{AGENTS}/agent-b", spoilt, kind=MERGE)

    def annotation() -> str:
        found = installed.ask("GET", f"{AGENTS}/agent-b")["metadata"]["annotations"]
        return str(found[NODE_RANGES])

    eventually(lambda: "10.2.0.0/24" in annotation())


def test_the_startup_taint_goes_once_the_agent_serves_and_no_other_taint_does(
    installed: ControlPlane, start: Start
) -> None:
    # The API server takes this form of b's range, which Python's library refuses.
    with_ranges = [
        with_range("a", "10.1.0.0/24", taints=[OTHER, TAINT]),
        with_range("b", "010.2.0.0/24", taints=[TAINT]),
    ]
    add_nodes(installed, [*with_ranges, node("nat", taints=[TAINT]), node("new", taints=[TAINT])])
    before = {"a": taints(installed, "a"), "b": taints(installed, "b")}
    # It has the range of a former Node of its Node's name, which has no podCIDRs yet: pods that
    # were scheduled now could not start.
    former = agent_pod("agent-new", "new")
    annotation = json.dumps({"node": "", "version": 1, "ranges": ["10.9.0.0/24"]})
    former["metadata"]["annotations"] = {NODE_RANGES: annotation}
    add_pods(installed, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b"), former])
    # Its ranges come from elsewhere, as from the metadata service.
    add_pods(installed, [agent_pod("agent-nat", "nat", component="nat-host")])
    set_ready(installed, "agent-b", agent=False, exporter=True)
    set_ready(installed, "agent-new", agent=True)
    start()
    eventually(lambda: ranges(installed, "agent-b"))
    assert {name: taints(installed, name) for name in ("a", "b")} == before
    set_ready(installed, "agent-a", agent=True, exporter=False)
    set_ready(installed, "agent-nat", agent=True)
    eventually(lambda: not starts_up(installed, "a"))
    eventually(lambda: not starts_up(installed, "nat"))
    assert taints(installed, "a") == [each for each in before["a"] if each["key"] != STARTUP_TAINT]
    assert taints(installed, "b") == before["b"]
    set_ready(installed, "agent-a", agent=False)
    set_ready(installed, "agent-b", agent=True)
    eventually(lambda: not starts_up(installed, "b"))
    assert not starts_up(installed, "a"), "never added again"
    assert starts_up(installed, "new")


def condition(installed: ControlPlane, name: str, status: str) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    unavailable = {"type": "NetworkUnavailable", "status": status, "reason": "NoRouteCreated"}
    body = {"status": {"conditions": [ready, unavailable]}}
    installed.ask("PATCH", f"/api/v1/nodes/{name}/status", body, kind=MERGE)


def conditions(installed: ControlPlane, name: str) -> dict[str, tuple[str, str]]:
    found = installed.ask("GET", f"/api/v1/nodes/{name}")["status"]["conditions"]
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def test_the_clouds_condition_is_cleared_only_by_who_gives_nodes_their_ranges(
    installed: ControlPlane, start: Start, tmp_path: Path
) -> None:
    add_nodes(installed, [node("a", "odd"), node("b", "odd", taints=[TAINT])])
    add_pods(installed, [agent_pod("agent-a", "a"), agent_pod("agent-b", "b")])
    for name in ("a", "b"):
        condition(installed, name, "True")
        set_ready(installed, f"agent-{name}", agent=True)
    running = start(f"--plan={tmp_path / 'plan.yaml'}", "--plan-optional")
    eventually(lambda: not starts_up(installed, "b"))
    assert conditions(installed, "a")["NetworkUnavailable"] == ("True", "NoRouteCreated")
    assert " no-plan " in running.said

    write_plan(tmp_path, "{odd: {nodes: 3, surge: 0, pods_per_node: 40}}", v6=True)
    # All that the plan gives its Node, of which podCIDRs have room for two.
    eventually(lambda: len(ranges(installed, "agent-a")) == 3)
    own = installed.ask("GET", "/api/v1/nodes/a")["metadata"]["annotations"]["netmgr.io/ranges"]
    assert ",".join(ranges(installed, "agent-a")) == own
    cleared = {
        "Ready": ("True", "KubeletReady"),
        "NetworkUnavailable": ("False", "NetmgrAgentReady"),
    }
    for name in ("a", "b"):
        eventually(lambda name=name: conditions(installed, name) == cleared)
