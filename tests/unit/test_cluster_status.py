"""What `netmgr status --cluster` makes of a cluster's objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from netmgr.kube.agent_pods import agent_pod
from netmgr.kube.cluster_status import (
    AGENT,
    CONTROLLER,
    LEASE_GRACE_SECONDS,
    NAT_HOST,
    Cluster,
    Finding,
    Leader,
    NodeState,
    PodState,
    Workload,
    findings,
    leader,
    node_state,
    pod_state,
    workload,
)
from netmgr.kube.node_reports import Problem, Report
from netmgr.kube.nodes import HEALTHY, ROLE, UNHEALTHY_TAINT

Object = dict[str, Any]
NOW = 1_800_000_000.0


def node(name: str, *conditions: Object, labels: Mapping[str, str] = {}, **spec: Any) -> NodeState:
    metadata = {"name": name, "uid": name, "creationTimestamp": "", "labels": dict(labels)}
    ready = {"type": "Ready", "status": "True"}
    return node_state(
        {
            "metadata": metadata,
            "spec": {"podCIDRs": ["10.1.0.0/27"]} | spec,
            "status": {"conditions": [ready, *conditions]},
        }
    )


def pod(on: str, name: str = "", *, ready: bool = True, **status: Any) -> PodState:
    found = {
        "metadata": {
            "name": name or f"agent-{on}",
            "namespace": "netmgr",
            "uid": "",
            "resourceVersion": "1",
            "labels": {"controller-revision-hash": "new"},
        },
        "spec": {"nodeName": on, "containers": [{"name": "agent", "image": "netmgr:1"}]},
        "status": {"containerStatuses": [{"name": "agent", "ready": ready}]} | status,
    }
    made = agent_pod(found)
    assert made is not None
    return pod_state(found, made)


def of(component: str, wanted: int, scheduled: int, **more: Any) -> Workload:
    kind = "deployment" if component == CONTROLLER else "daemonset"
    given: Object = {"ready": scheduled, "is_current": True} | more
    return Workload(kind, "netmgr", f"netmgr-{component}", component, wanted, scheduled, **given)


def cluster(*nodes: NodeState, pods: list[PodState] | None = None, **more: Any) -> Cluster:
    """Each Node with an agent that is ready, unless pods are given."""
    found = [pod(each.view.name) for each in nodes] if pods is None else pods
    given = {"workloads": [of(AGENT, len(nodes), len(found))]} | more
    return Cluster(("netmgr",), nodes=list(nodes), pods=found, **given)


def only(found: Cluster) -> Finding:
    (one,) = findings(found, NOW)
    return one


def test_where_all_is_well_nothing_is_found() -> None:
    assert findings(cluster(node("a"), node("b")), NOW) == []


def test_a_cluster_without_netmgr_is_one_finding_whatever_its_nodes_are_like() -> None:
    found = only(cluster(node("a", podCIDRs=[]), pods=[], workloads=[]))
    assert (found.severity, found.check) == ("error", "installation")
    assert "--namespace" in found.remedy


def test_one_cause_on_many_nodes_is_one_finding_with_the_remedy_of_the_first() -> None:
    nodes = [node(name) for name in ("c", "a", "b")]
    found = only(cluster(*nodes, pods=[pod(name, ready=False) for name in "cab"]))
    assert found.objects == ("node/a", "node/b", "node/c")
    assert found.remedy == "kubectl -n netmgr logs agent-a -c agent"


def test_errors_come_first_and_then_what_concerns_the_most_nodes() -> None:
    unhealthy = {"type": HEALTHY, "status": "False", "reason": "UplinkErrors", "message": "eth0"}
    nodes = [node("a", unhealthy), node("b"), node("c"), node("d"), node("e"), node("f")]
    pods = [pod("a"), *(pod(name, ready=False) for name in "bc"), *(pod(name) for name in "def")]
    made = cluster(*nodes, pods=pods, silent=dict.fromkeys("def", "503"))
    found = [(each.severity.value, len(each.objects)) for each in findings(made, NOW)]
    assert found == [("error", 2), ("error", 1), ("warning", 3)]


@pytest.mark.parametrize(("wanted", "severity"), [(2, "error"), (1, "warning")])
def test_a_node_without_an_agent_is_wrong_where_its_daemon_set_wants_one(
    wanted: int, severity: str
) -> None:
    made = cluster(node("a"), node("b"), pods=[pod("a")], workloads=[of(AGENT, wanted, 1)])
    assert (only(made).severity, only(made).check) == (severity, "agent")


def test_nodes_that_run_no_agent_are_not_expected_to() -> None:
    labels = ({ROLE: "hub-router"}, {ROLE: "nat-host"}, {"kubernetes.io/os": "windows"})
    nodes = [node(f"n{number}", labels=each) for number, each in enumerate(labels)]
    assert findings(cluster(*nodes, pods=[], workloads=[of(AGENT, 0, 0)]), NOW) == []
    # With the overlay of NAT hosts, one of them is.
    workloads = [of(AGENT, 0, 0), of(NAT_HOST, 1, 0)]
    assert only(cluster(*nodes, pods=[], workloads=workloads)).objects == ("node/n1",)


def test_a_node_whose_agent_is_ready_needs_no_pod_cidrs() -> None:
    assert findings(cluster(node("a", podCIDRs=[])), NOW) == []
    found = only(cluster(node("a", podCIDRs=[]), pods=[pod("a", ready=False)]))
    assert (found.check, found.remedy) == ("ranges", "kubectl describe node/a")
    # A NAT host never gets any.
    host = node("h", labels={ROLE: "nat-host"}, podCIDRs=[])
    made = cluster(host, pods=[pod("h", ready=False)], workloads=[of(NAT_HOST, 1, 1)])
    assert only(made).check == "agent"


def test_a_pod_that_is_ready_counts_whatever_became_of_the_one_before() -> None:
    both = [pod("a", "new"), pod("a", "old", ready=False)]
    assert findings(cluster(node("a"), pods=both), NOW) == []
    assert findings(cluster(node("a"), pods=both[::-1]), NOW) == []


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "its agent's pod failed: Evicted"),
        (
            {
                "initContainerStatuses": [
                    {
                        "name": "plugin",
                        "state": {"waiting": {"reason": "ImagePullBackOff"}},
                        "lastState": {},
                    }
                ]
            },
            "container plugin of its agent's pod: ImagePullBackOff",
        ),
        (
            {
                "initContainerStatuses": [
                    {"name": "document", "state": {"waiting": {"reason": "PodInitializing"}}}
                ]
            },
            "its agent is not ready",
        ),
    ],
)
def test_an_agent_that_does_not_run_has_its_kubelets_reason(status: Object, message: str) -> None:
    found = only(cluster(node("a"), pods=[pod("a", ready=False, **status)]))
    assert found.message == message


def test_an_agent_of_an_older_revision_lags_where_the_newest_is_known() -> None:
    for newest, expected in (("newer", ["rollout"]), ("new", [])):
        made = cluster(node("a"), revisions={("netmgr", "netmgr-agent"): newest})
        assert [each.check for each in findings(made, NOW)] == expected
    # The newest revision of something else says nothing of it.
    assert findings(cluster(node("a"), revisions={("netmgr", "other"): "newer"}), NOW) == []


def test_what_the_condition_says_is_not_said_again_by_the_report() -> None:
    unhealthy = {"type": HEALTHY, "status": "False", "reason": "UplinkErrors", "message": "eth0"}
    problems = tuple(
        Problem(reason=reason, message="found") for reason in ("UplinkErrors", "DriftReturns")
    )
    made = cluster(node("a", unhealthy), reports={"a": Report(problems=problems)})
    messages = [each.message for each in findings(made, NOW)]
    assert messages == ["UplinkErrors: eth0", "DriftReturns: found"]


def test_a_taint_that_keeps_pods_away_is_shown_and_is_no_error_of_its_own() -> None:
    taints = [{"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}]
    found = only(cluster(node("a", taints=taints)))
    assert (found.severity, found.check) == ("warning", "taint")


def test_a_failed_preflight_is_reported_once() -> None:
    unhealthy = {"type": HEALTHY, "status": "False", "reason": "PreflightFailed", "message": "mtu"}
    ended = {"terminated": {"exitCode": 1, "message": "mtu"}}
    statuses = [{"name": "preflight", "state": ended}]
    one = pod("a", ready=False, initContainerStatuses=statuses)
    found = only(cluster(node("a", unhealthy), pods=[one]))
    assert (found.check, found.message) == ("preflight", "its preflight fails: mtu")


def test_a_workload_that_nobody_carries_out_is_an_error() -> None:
    found = {
        "metadata": {
            "namespace": "netmgr",
            "name": "netmgr",
            "generation": 2,
            "labels": {"app.kubernetes.io/component": AGENT},
        },
        "spec": {},
        "status": {"observedGeneration": 1},
    }
    made = cluster(workloads=[workload("daemonset", found)])
    assert (only(made).check, only(made).objects) == ("installation", ("daemonset/netmgr",))
    found["status"] = {"observedGeneration": 2}
    assert findings(cluster(workloads=[workload("daemonset", found)]), NOW) == []


@pytest.mark.parametrize(
    ("held", "checks"),
    [
        (None, ["controller"]),
        (Leader("", NOW), ["controller"]),
        (Leader("one", NOW - LEASE_GRACE_SECONDS), []),
        (Leader("one", NOW - LEASE_GRACE_SECONDS - 1), ["controller"]),
    ],
)
def test_a_controller_leads_while_its_lease_is_renewed(
    held: Leader | None, checks: list[str]
) -> None:
    found = findings(cluster(workloads=[of(CONTROLLER, 2, 2)], leader=held), NOW)
    assert [each.check for each in found] == checks
    # One that may not be read says nothing.
    unread = cluster(workloads=[of(CONTROLLER, 2, 2)], leader=held, unread={"leases": "403"})
    assert [each.check for each in findings(unread, NOW)] == ["access"]


def test_a_lease_ends_its_duration_after_it_was_renewed() -> None:
    spec = {"renewTime": "2027-01-15T08:00:00.000000Z", "leaseDurationSeconds": 15}
    assert leader({"spec": spec | {"holderIdentity": "one"}}) == Leader("one", NOW + 15)
    assert leader({}) == Leader("", 0.0)


def test_the_same_event_of_many_pods_is_one_warning() -> None:
    events = [
        {
            "involvedObject": {"kind": "Pod", "name": name, "namespace": "netmgr"},
            "reason": "BackOff",
            "message": "back-off\n",
        }
        for name in ("x", "y")
    ]
    found = only(cluster(node("a"), events=events))
    assert (found.severity, found.message) == ("warning", "BackOff: back-off")
    assert found.remedy == "kubectl -n netmgr describe pod x"
    assert found.objects == ("pod/x", "pod/y")
