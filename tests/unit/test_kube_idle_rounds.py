"""Rounds of a leader while nothing changes: they cost little, and miss nothing that time brings."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from netmgr.kube import agent_ranges, assigner, node_conditions, tainting
from netmgr.kube.allocations import NodeAllocations
from netmgr.kube.health import Telemetry
from netmgr.kube.node_taints import UnhealthyTaint
from netmgr.kube.nodes import HEALTHY, UNHEALTHY_TAINT
from netmgr.kube.plan_watch import PlanWatch
from netmgr.plan import files
from tests.kubernetes.controllers import write_plan
from tests.unit.virtual import POOL_LABEL, QUARANTINE_SECONDS, Virtual, virtual

NODES, AGENTS = "/api/v1/nodes", "/api/v1/namespaces/netmgr/pods"
CAPACITY = 2


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Virtual]:
    """A cluster with a leader, whose plan has room for two Nodes."""
    plan = write_plan(tmp_path, f"{{gpu: {{nodes: {CAPACITY}, surge: 0, pods_per_node: 4000}}}}")
    lock = files.load_lock(files.lock_path(plan))
    assert lock is not None
    allocations = NodeAllocations(lock, "train")
    assert allocations.capacity == {"gpu": CAPACITY}
    with virtual() as made:
        made.start_controller(PlanWatch(lambda: allocations, ()))
        made.time.run(1)
        yield made


def add(found: Virtual, name: str) -> None:
    body = {"metadata": {"name": name, "labels": {POOL_LABEL: "gpu"}}}
    found.server.api("kubelet").create(NODES, body)


def delete(found: Virtual, name: str) -> None:
    found.server.answer("kubelet", "DELETE", f"{NODES}/{name}", None, "")


def ranges(found: Virtual, name: str) -> list[str]:
    return found.server.objects(NODES)[name]["spec"].get("podCIDRs", [])


def asked(found: Virtual) -> int:
    """Requests but those of the election."""
    return sum(n for (_, _, what), n in found.server.asked.items() if what != "leases")


def test_nothing_is_decided_or_asked_while_nothing_changes(
    found: Virtual, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(found, "a")
    pod = {
        "metadata": {
            "name": "agent-a",
            "labels": {"app.kubernetes.io/name": "netmgr", "app.kubernetes.io/component": "agent"},
        },
        "spec": {"nodeName": "a", "containers": []},
    }
    found.server.api("kubelet").create(AGENTS, pod)
    found.time.run(30)
    assert ranges(found, "a")
    settled = asked(found)
    # One that is decided again ends in an error, and its controller with it.
    for module, name in (
        (assigner, "decide"),
        (agent_ranges, "wanted_ranges"),
        (node_conditions, "_wanted"),
        (tainting, "decide"),
    ):
        monkeypatch.setattr(module, name, None)
    found.time.run(200)
    assert asked(found) == settled
    add(found, "b")
    monkeypatch.undo()
    found.time.run(210)
    assert ranges(found, "b"), "the controller still works"


def test_an_allocation_is_given_out_when_its_cooldown_is_over_though_nothing_else_changes(
    found: Virtual,
) -> None:
    for name in ("a", "b"):
        add(found, name)
    found.time.run(10)
    former = ranges(found, "a")
    delete(found, "a")
    add(found, "c")
    found.time.run(10 + QUARANTINE_SECONDS - 1)
    assert not ranges(found, "c")
    found.time.run(10 + QUARANTINE_SECONDS + 5)
    assert ranges(found, "c") == former


def test_a_node_that_cannot_be_served_is_reported_for_as_long_as_that_lasts(found: Virtual) -> None:
    for name in ("a", "b", "c"):
        add(found, name)
    found.time.run(10)
    events = "/api/v1/namespaces/default/events"
    (first,) = found.server.objects(events).values()
    found.time.run(2 * 3600)
    (again,) = found.server.objects(events).values()
    assert (again["reason"], again["involvedObject"]["name"]) == ("NodePoolFull", "c")
    assert again["lastTimestamp"] > first["lastTimestamp"]
    delete(found, "c")
    found.time.run(2 * 3600 + 5)
    add(found, "d")
    found.time.run(2 * 3600 + 10)
    assert len(found.server.objects(events)) == 2


def test_a_node_is_tainted_once_it_was_unhealthy_for_long_enough_though_nothing_else_changes() -> (
    None
):
    with virtual() as found:
        leadership, kubelet = found.leadership(), found.server.api("kubelet")
        for name, status in (("a", "True"), ("b", "False")):
            condition = {"type": HEALTHY, "status": status, "reason": "Tested"}
            body = {"metadata": {"name": name}, "status": {"conditions": [condition]}}
            leadership.nodes.change(kubelet.create(NODES, body))
        tainting = UnhealthyTaint(leadership, Telemetry(found.api()), Fraction(1, 2), 60)

        def work() -> None:
            while True:
                tainting.reconcile()
                found.time.sleep(2)

        found.start(work)
        found.time.run(59)
        assert not any(node["spec"].get("taints") for node in found.server.objects(NODES).values())
        found.time.run(65)
        node = found.server.objects(NODES)["b"]
        assert [taint["key"] for taint in node["spec"]["taints"]] == [UNHEALTHY_TAINT]
        assert not found.server.objects(NODES)["a"]["spec"].get("taints")
