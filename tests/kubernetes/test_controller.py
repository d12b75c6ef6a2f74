"""A controller on a real API server: who gets what, who is told why not, and what survives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr.kube.node_document import RANGES
from netmgr.plan import files
from netmgr.plan import machines as planned
from netmgr.prefixes import merge
from tests.kubernetes.control_plane import ControlPlane, Object, free_ports
from tests.kubernetes.controllers import (
    Program,
    Starter,
    add_nodes,
    all_nodes,
    make_account,
    node,
    pod_cidrs,
    relock,
    write_plan,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("no_nodes")]

POOLS = "{gpu: {nodes: 3, surge: 0}, odd: {nodes: 2, surge: 0, pods_per_node: 40}}"
Start = Callable[..., Program]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path, POOLS, v6=True)


@pytest.fixture
def start(control_plane: ControlPlane, namespace: str, starter: Starter, plan: Path) -> Start:
    account = starter.account(namespace, make_account(control_plane, namespace))

    def start_controller(*more: str, port: int = 0) -> Program:
        return starter.controller(plan, account, namespace, *more, port=port)

    return start_controller


def ranges_of(plan: Path, name: str) -> list[str]:
    lock = files.load_lock(files.lock_path(plan))
    assert lock is not None
    found = planned.node_named(lock, name)
    assert found is not None
    return [str(prefix) for prefix in merge(found.blocks)]


def events_of(plane: ControlPlane, name: str) -> dict[str, Object]:
    path = f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}"
    return {event["reason"]: event for event in plane.ask("GET", path)["items"]}


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
    control_plane: ControlPlane, namespace: str, starter: Starter, plan: Path
) -> None:
    lock = files.load_lock(files.lock_path(plan))
    assert lock is not None
    capacity = lock.clusters["train"].node_pools["gpu"].capacity
    (port,) = free_ports(1)
    account = starter.account(namespace, make_account(control_plane, namespace))
    running = starter.controller(plan, account, namespace, port=port)
    nat_host = node("nat-host")
    nat_host["metadata"]["labels"] = {"node-restriction.kubernetes.io/netmgr-role": "nat-host"}
    add_nodes(control_plane, [node("a", "gpu"), node("b"), nat_host])
    eventually(lambda: pod_cidrs(control_plane))
    eventually(lambda: 'netmgr_controller_nodes{state="refused"} 1.0' in running.page("metrics"))
    eventually(lambda: 'netmgr_controller_lists{of="nodes"} 1.0' in running.page("metrics"))
    shown = running.page("metrics")
    for line in (
        "netmgr_controller_leader 1.0",
        "netmgr_controller_assignments_total 1.0",
        'netmgr_controller_nodes{state="served"} 1.0',
        'netmgr_controller_nodes{state="waiting"} 0.0',
        'netmgr_controller_allocations{pool="gpu",state="held"} 1.0',
        f'netmgr_controller_allocations{{pool="gpu",state="free"}} {capacity - 1}.0',
        "netmgr_controller_plan_refused 0.0",
        'netmgr_controller_lists{of="nodes"} 1.0',
        'netmgr_controller_api_requests_total{code="201",verb="POST"}',
    ):
        assert line in shown
    assert running.page("healthz") == "ok\n"
    taken = starter.controller(plan, account, namespace, port=port)
    assert taken.process.wait(20) == 1
    assert "give --listen" in taken.said


def test_a_node_that_cannot_be_served_is_told_why(
    control_plane: ControlPlane, start: Start, plan: Path
) -> None:
    taken = ranges_of(plan, "train-gpu-1")
    nat_host = node("nat-host")
    nat_host["metadata"]["labels"] = {"node-restriction.kubernetes.io/netmgr-role": "nat-host"}
    add_nodes(
        control_plane,
        [
            node("unlabelled"),
            node("mislabelled", "cpu"),
            nat_host,
            node("outside", "gpu", podCIDRs=["192.168.7.0/24"], podCIDR="192.168.7.0/24"),
            node("one", "gpu", podCIDRs=taken, podCIDR=taken[0]),
            node("two", "gpu", podCIDRs=taken, podCIDR=taken[0]),
            *(node(f"late-{number}", "odd") for number in range(3)),
        ],
    )
    start()
    reasons = {
        "unlabelled": "NoNodePool",
        "mislabelled": "UnknownNodePool",
        "outside": "PodCIDROutsidePlan",
        "one": "PodCIDRTaken",
        "two": "PodCIDRTaken",
    }
    for name, reason in reasons.items():
        eventually(lambda name=name, reason=reason: reason in events_of(control_plane, name))
    eventually(
        lambda: (
            sum("NodePoolFull" in events_of(control_plane, f"late-{number}") for number in range(3))
            == 1
        )
    )
    assert not events_of(control_plane, "nat-host"), "it runs no pods"
    assert "Node two" in events_of(control_plane, "one")["PodCIDRTaken"]["message"]
    assert "192.168.7.0/24" in events_of(control_plane, "outside")["PodCIDROutsidePlan"]["message"]
    label = {"metadata": {"labels": {"netmgr.io/node-pool": "gpu"}}}
    control_plane.ask("PATCH", "/api/v1/nodes/unlabelled", label, kind="merge-patch+json")
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
    start("--quarantine=4")
    add_nodes(control_plane, [node("b", "odd")])
    eventually(lambda: "NodePoolFull" in events_of(control_plane, "b"))
    assert "b" not in pod_cidrs(control_plane)
    eventually(lambda: "b" in pod_cidrs(control_plane))
    assert pod_cidrs(control_plane)["b"] == had
    control_plane.ask("DELETE", "/api/v1/nodes/b")
    add_nodes(control_plane, [node("b", "odd")])
    eventually(lambda: "b" in pod_cidrs(control_plane), seconds=5)
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
    assert restarted.process.wait(20) == 2
    assert "Node a (gpu/0) has" in restarted.said
    lock.write_text(kept)
    write_plan(plan.parent, POOLS, v6=True, lock=False)
    start()
    add_nodes(control_plane, [node("c", "gpu")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 3)


def test_claims_that_were_lost_are_made_anew_from_the_nodes(
    control_plane: ControlPlane, namespace: str, start: Start
) -> None:
    first = start()
    add_nodes(control_plane, [node("a", "gpu"), node("b", "odd")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 2)
    first.end()
    claims = f"/api/v1/namespaces/{namespace}/configmaps"
    before = {
        each["metadata"]["name"]: each["data"] for each in control_plane.ask("GET", claims)["items"]
    }
    assert len(before) == 2
    control_plane.ask("DELETE", claims)
    start()
    add_nodes(control_plane, [node("c", "gpu")])
    eventually(lambda: len(pod_cidrs(control_plane)) == 3)
    found = {
        each["metadata"]["name"]: each["data"] for each in control_plane.ask("GET", claims)["items"]
    }
    assert {
        name: {key: data[key] for key in before[name]} for name, data in found.items()
    } == before
    assert len({cidrs[0] for cidrs in pod_cidrs(control_plane).values()}) == 3


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        (
            {},
            (
                "ConfigMap netmgr-claims-train-gpu-0 has the label netmgr.io/claims-of but no "
                "annotation"
            ),
        ),
        ({"netmgr.io/node-pool": "gpu"}, "claim 7 of node pool gpu cannot be read"),
    ],
)
def test_claims_that_cannot_be_read_end_a_controller_that_says_so(
    control_plane: ControlPlane,
    namespace: str,
    start: Start,
    annotations: dict[str, str],
    said: str,
) -> None:
    metadata = {"name": "netmgr-claims-train-gpu-0", "labels": {"netmgr.io/claims-of": "train"}}
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata | {"annotations": annotations},
    }
    control_plane.ask(
        "POST", f"/api/v1/namespaces/{namespace}/configmaps", body | {"data": {"7": "half a cla"}}
    )
    running = start()
    assert running.process.wait(20) != 0
    assert said in running.said
    assert "Traceback" not in running.said


REFUSING: tuple[tuple[str, Object], ...] = (
    (
        "validatingadmissionpolicies",
        {
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "matchConstraints": {
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["UPDATE"],
                            "resources": ["nodes"],
                        }
                    ]
                },
                "validations": [
                    {"expression": "object.metadata.name != 'a-frozen'", "message": "it is frozen"}
                ],
            },
        },
    ),
    (
        "validatingadmissionpolicybindings",
        {
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": "frozen", "validationActions": ["Deny"]},
        },
    ),
)


@pytest.fixture
def frozen(control_plane: ControlPlane) -> Iterator[Callable[[], None]]:
    """A policy of the cluster's that lets nobody write the Node `a-frozen`,
    and how it is lifted."""
    version = "admissionregistration.k8s.io/v1"
    for kind, policy in REFUSING:
        body = policy | {"apiVersion": version, "metadata": {"name": "frozen"}}
        control_plane.ask("POST", f"/apis/{version}/{kind}", body)

    def lift() -> None:
        for kind, _ in REFUSING:
            control_plane.answer("DELETE", f"/apis/{version}/{kind}/frozen")

    yield lift
    lift()


def test_a_node_that_the_server_lets_nobody_write_keeps_no_other_waiting(
    control_plane: ControlPlane, start: Start, frozen: Callable[[], None], plan: Path
) -> None:
    write_plan(plan.parent, "{gpu: {nodes: 60, surge: 0}}", v6=True)
    add_nodes(control_plane, [node("a-frozen", "gpu")])
    touch = {"metadata": {"labels": {"touched": "yes"}}}
    path = "/api/v1/nodes/a-frozen?dryRun=All"
    eventually(
        lambda: control_plane.answer("PATCH", path, touch, kind="merge-patch+json")[0] == 422
    )
    add_nodes(
        control_plane, [*(node(f"b-{number}", "gpu") for number in range(50)), node("unlabelled")]
    )
    (port,) = free_ports(1)
    running = start(port=port)
    eventually(lambda: len(pod_cidrs(control_plane)) == 50, seconds=20)
    eventually(lambda: "NoNodePool" in events_of(control_plane, "unlabelled"))
    eventually(lambda: "it is frozen" in running.said)
    for state, number in {"served": 50, "waiting": 1, "refused": 1}.items():
        line = f'netmgr_controller_nodes{{state="{state}"}} {number}.0'
        eventually(lambda line=line: line in running.page("metrics"))
    frozen()
    eventually(
        lambda: control_plane.answer("PATCH", path, touch, kind="merge-patch+json")[0] == 200
    )
    add_nodes(
        control_plane, [node("c", "gpu")]
    )  # what is new is looked at at once, whatever was refused
    eventually(lambda: {"a-frozen", "c"} <= pod_cidrs(control_plane).keys())
