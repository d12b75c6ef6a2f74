"""A controller on a real API server: who gets what, who is told why not, and what survives."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from netmgr.errors import StateError
from netmgr.kube.client.api import Api, connect
from netmgr.kube.client.reflector import PAGE, Reflector
from netmgr.kube.controller.node_document import RANGES
from netmgr.plan import files
from netmgr.plan import machines as planned
from netmgr.prefixes import merge
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import (
    MERGE,
    Start,
    Starter,
    add_nodes,
    all_nodes,
    events_of,
    lock_of,
    node,
    pod_cidrs,
    refusing,
    relock,
    write_plan,
)
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

GPU = "gpu: {nodes: 20, surge: 0}"
POOLS = f"{{{GPU}, odd: {{nodes: 2, surge: 0, pods_per_node: 40}}}}"
CLAIMS = "/api/v1/namespaces/netmgr-claims/configmaps"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path, POOLS, v6=True)


@pytest.fixture
def start(start: Start, plan: Path) -> Start:
    return lambda *more, port=0: start(f"--plan={plan}", *more, port=port)


def ranges_of(plan: Path, name: str) -> list[str]:
    found = planned.node_named(lock_of(plan), name)
    assert found is not None
    return [str(prefix) for prefix in merge(found.blocks)]


def nat_host() -> Object:
    made = node("nat-host")
    made["metadata"]["labels"] = {"node-restriction.kubernetes.io/netmgr-role": "nat-host"}
    return made


def test_a_node_gets_the_ranges_that_the_plan_has_for_it(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    add_nodes(control_plane, [node("train-gpu-2", "gpu")])
    start()
    eventually(lambda: pod_cidrs(control_plane))
    add_nodes(control_plane, [node("vmss-a", "gpu"), node("vmss-b", "odd")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 3)
    found = all_nodes(control_plane)
    assert found["train-gpu-2"]["spec"]["podCIDRs"] == ranges_of(plan, "train-gpu-2")
    assert found["train-gpu-2"]["spec"]["podCIDR"] == ranges_of(plan, "train-gpu-2")[0]
    assert found["vmss-a"]["spec"]["podCIDRs"] == ranges_of(plan, "train-gpu-0")
    assert RANGES not in found["vmss-a"]["metadata"].get("annotations", {})
    odd = ranges_of(plan, "train-odd-0")
    assert len(odd) == 3
    assert found["vmss-b"]["metadata"]["annotations"][RANGES].split(",") == odd
    assert set(found["vmss-b"]["spec"]["podCIDRs"]) < set(odd)


def test_metrics_and_health_are_told_over_http(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    capacity = lock_of(plan).clusters["train"].node_pools["gpu"].capacity
    (port,) = free_ports(1)
    running = start(port=port)
    add_nodes(control_plane, [node("a", "gpu"), node("b"), nat_host()])
    eventually(lambda: pod_cidrs(control_plane))
    for line in (
        'netmgr_controller_lists{of="nodes"} 1.0',
        'netmgr_controller_nodes{state="refused"} 1.0',
        "netmgr_controller_leader 1.0",
        "netmgr_controller_assignments_total 1.0",
        'netmgr_controller_nodes{state="served"} 1.0',
        'netmgr_controller_nodes{state="waiting"} 0.0',
        'netmgr_controller_allocations{pool="gpu",state="held"} 1.0',
        f'netmgr_controller_allocations{{pool="gpu",state="free"}} {capacity - 1}.0',
        "netmgr_controller_plan_refused 0.0",
        'netmgr_controller_api_requests_total{code="201",verb="POST"}',
    ):
        # The round that wrote the Node is not over yet.
        eventually(lambda line=line: line in running.page("metrics"), line)
    assert running.page("healthz") == "ok\n"
    taken = start(port=port)
    assert taken.process.wait(PATIENCE) == 1
    assert "give --listen" in taken.said


def test_a_node_that_cannot_be_served_is_told_why(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    taken = ranges_of(plan, "train-gpu-1")
    both = [node(name, "gpu", podCIDRs=taken, podCIDR=taken[0]) for name in ("one", "two")]
    late = [node(f"late-{number}", "odd") for number in range(3)]
    add_nodes(control_plane, [node("unlabelled"), nat_host(), *both, *late])
    start()
    eventually(lambda: "NoNodePool" in events_of(control_plane, "unlabelled"))
    eventually(lambda: "PodCIDRTaken" in events_of(control_plane, "two"))
    eventually(lambda: "PodCIDRTaken" in events_of(control_plane, "one"))
    assert "Node two" in events_of(control_plane, "one")["PodCIDRTaken"]["message"]

    def full() -> int:
        names = [each["metadata"]["name"] for each in late]
        return sum("NodePoolFull" in events_of(control_plane, name) for name in names)

    eventually(lambda: full() == 1)
    assert not events_of(control_plane, "nat-host"), "it runs no pods"
    label = {"metadata": {"labels": {"netmgr.io/node-pool": "gpu"}}}
    control_plane.ask("PATCH", "/api/v1/nodes/unlabelled", label, kind=MERGE)
    eventually(lambda: "unlabelled" in pod_cidrs(control_plane))
    assert pod_cidrs(control_plane)["unlabelled"] != taken


def test_a_place_is_in_cooldown_after_its_node_across_a_restart_of_the_controller(
    control_plane: ControlPlane, start: Start
) -> None:
    first = start("--quarantine=4")
    add_nodes(control_plane, [node(f"a-{number}", "odd") for number in range(2)])
    eventually(lambda: len(pod_cidrs(control_plane)) == 2)
    had = pod_cidrs(control_plane)["a-1"]
    assert first.end() == 0
    control_plane.ask("DELETE", "/api/v1/nodes/a-1")
    # Before its cooldown begins, which does not wait for it.
    add_nodes(control_plane, [node("b", "odd")])
    start("--quarantine=4")
    eventually(lambda: "NodePoolFull" in events_of(control_plane, "b"))
    eventually(lambda: "b" in pod_cidrs(control_plane))
    assert pod_cidrs(control_plane)["b"] == had
    control_plane.ask("DELETE", "/api/v1/nodes/b")
    add_nodes(control_plane, [node("b", "odd")])
    eventually(lambda: "b" in pod_cidrs(control_plane))
    assert pod_cidrs(control_plane)["b"] == had, (
        "the same machine, registered anew, keeps its allocation"
    )


def test_a_plan_that_would_move_a_node_is_refused(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    running = start()
    add_nodes(control_plane, [node("a", "gpu")])
    eventually(lambda: pod_cidrs(control_plane))
    lock = files.lock_path(plan)
    kept = lock.read_text()
    write_plan(plan.parent, "{gpu: {nodes: 3, surge: 0, pods_per_node: 100}}", v6=True, lock=False)
    lock.unlink()
    relock(plan)
    eventually(lambda: "would move Nodes" in running.said)
    assert "Node a (gpu/0) has" in running.said
    add_nodes(control_plane, [node("b", "odd")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 2)  # the plan before goes on being in force
    assert running.end() == 0
    restarted = start()
    assert restarted.process.wait(PATIENCE) == 2
    assert "Node a (gpu/0) has" in restarted.said
    lock.write_text(kept)
    write_plan(plan.parent, POOLS, v6=True, lock=False)
    start()
    add_nodes(control_plane, [node("c", "gpu")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 3)


def test_a_pool_that_the_plan_has_no_more_has_no_figures(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    (port,) = free_ports(1)
    running = start(port=port)
    add_nodes(control_plane, [node("a", "gpu")])
    eventually(lambda: pod_cidrs(control_plane))
    eventually(lambda: 'allocations{pool="odd",state="free"} 2.0' in running.page("metrics"))
    lock = files.lock_path(plan)
    write_plan(plan.parent, f"{{{GPU}}}", v6=True, lock=False)
    lock.unlink()
    relock(plan)
    add_nodes(control_plane, [node("b", "gpu")])
    eventually(lambda: 'pool="odd"' not in running.page("metrics"))
    assert 'allocations{pool="gpu",state="free"}' in running.page("metrics")


def test_claims_that_were_lost_are_made_anew_from_the_nodes(
    control_plane: ControlPlane, start: Start
) -> None:
    def claims() -> dict[str, Object]:
        items = control_plane.ask("GET", f"{CLAIMS}?labelSelector=netmgr.io/claims-of")["items"]
        return {each["metadata"]["name"]: each["data"] for each in items}

    first = start()
    add_nodes(control_plane, [node("a", "gpu"), node("b", "odd")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 2)
    first.end()
    before = claims()
    assert len(before) == 2
    control_plane.ask("DELETE", CLAIMS)
    start()
    add_nodes(control_plane, [node("c", "gpu")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 3)
    again = claims()
    assert {name: {key: again[name][key] for key in before[name]} for name in again} == before
    assert len({cidrs[0] for cidrs in pod_cidrs(control_plane).values()}) == 3


def test_claims_that_cannot_be_read_end_a_controller_that_says_so(
    control_plane: ControlPlane, start: Start
) -> None:
    metadata = {"name": "netmgr-claims-train-gpu-0", "labels": {"netmgr.io/claims-of": "train"}}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    control_plane.ask("POST", CLAIMS, body | {"data": {"7": "half a cla"}})
    running = start()
    assert running.process.wait(PATIENCE) != 0
    assert f"ConfigMap {metadata['name']} has the label netmgr.io/claims-of but" in running.said
    assert "Traceback" not in running.said


def test_a_node_that_the_server_lets_nobody_write_keeps_no_other_waiting(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    write_plan(plan.parent, "{gpu: {nodes: 60, surge: 0}}", v6=True)
    add_nodes(control_plane, [node("a-frozen", "gpu")])
    touch = {"metadata": {"labels": {"touched": "yes"}}}

    def touched() -> int:
        path = "/api/v1/nodes/a-frozen?dryRun=All"
        return control_plane.answer("PATCH", path, touch, kind=MERGE)[0]

    (port,) = free_ports(1)
    frozen = "object.metadata.name != 'a-frozen'"
    with refusing(control_plane, "nodes", "UPDATE", frozen, "it is frozen"):
        eventually(lambda: touched() == 422)
        others = [node(f"b-{number}", "gpu") for number in range(50)]
        add_nodes(control_plane, [*others, node("unlabelled")])
        running = start(port=port)
        eventually(lambda: len(pod_cidrs(control_plane)) == 50)
        eventually(lambda: "NoNodePool" in events_of(control_plane, "unlabelled"))
        eventually(lambda: "it is frozen" in running.said)
        for state, number in {"served": 50, "waiting": 1, "refused": 1}.items():
            line = f'netmgr_controller_nodes{{state="{state}"}} {number}.0'
            eventually(lambda line=line: line in running.page("metrics"))
    eventually(lambda: touched() == 200)
    # What is new is looked at at once, whatever was refused.
    add_nodes(control_plane, [node("c", "gpu")])
    eventually(lambda: {"a-frozen", "c"} <= pod_cidrs(control_plane).keys())


class Taker:
    """Notes how many requests had succeeded when each object came, keeps no object, and has
    enough of one list.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.requests_by_then: dict[str, int] = {}

    def replace(self, objects: Iterable[Object]) -> None:
        for found in objects:
            self.requests_by_then[found["metadata"]["name"]] = self._api.asked()["GET", 200]
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
