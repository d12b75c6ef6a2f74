"""What `netmgr status --cluster` makes of a cluster's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from netmgr.documents.diagnostics import Severity
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
from netmgr.kube.nodes import HEALTHY, NETWORK_UNAVAILABLE, ROLE, STARTUP_TAINT, UNHEALTHY_TAINT

Object = dict[str, Any]
UNKNOWN = {"type": HEALTHY, "status": "Unknown", "reason": "NoReport", "message": "silent"}
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


def error(check: str, message: str, remedy: str, *about: str) -> Finding:
    return Finding(Severity.ERROR, check, message, remedy, about)


def warning(check: str, message: str, remedy: str, *about: str) -> Finding:
    return Finding(Severity.WARNING, check, message, remedy, about)


def only(found: Cluster) -> Finding:
    (one,) = findings(found, NOW)
    return one


def test_where_all_is_well_nothing_is_found() -> None:
    assert findings(cluster(node("a"), node("b")), NOW) == []


def test_a_cluster_without_netmgr_is_one_finding_whatever_its_nodes_are_like() -> None:
    found = cluster(node("a", podCIDRs=[]), pods=[], workloads=[])
    found.namespaces = ("netmgr", "net")
    assert only(found) == error(
        "installation",
        "no DaemonSet or Deployment of netmgr is in netmgr, net",
        "kubectl apply -k an overlay, or name the namespace with --namespace",
        "cluster",
    )


def test_a_node_is_ready_by_its_own_condition_alone_and_may_lack_labels_and_status() -> None:
    metadata = {"name": "a", "uid": "a", "creationTimestamp": ""}
    bare = node_state({"metadata": metadata, "spec": {}})
    assert (bare.is_ready, bare.component) == (False, AGENT)
    conditions = [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]
    found = {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}
    assert not node_state(found).is_ready


def test_a_pod_may_lack_labels_status_and_the_agents_container() -> None:
    metadata = {"name": "x", "namespace": "netmgr", "uid": "", "resourceVersion": "1"}
    other = {"name": "other", "image": "other:1"}
    found: Object = {"metadata": metadata, "spec": {"nodeName": "a", "containers": [other]}}
    made = agent_pod(found)
    assert made is not None
    assert pod_state(found, made) == PodState(made, "netmgr", "", "", "", AGENT)
    found["spec"]["containers"].append({"name": "agent", "image": "netmgr:1"})
    assert pod_state(found, made).image == "netmgr:1"


METADATA = {"namespace": "netmgr", "name": "x"}


@pytest.mark.parametrize(
    ("kind", "found", "expected"),
    [
        (
            "daemonset",
            {
                "metadata": METADATA | {"labels": {"app.kubernetes.io/component": "agent"}},
                "spec": {},
                "status": {
                    "desiredNumberScheduled": 5,
                    "currentNumberScheduled": 4,
                    "numberReady": 3,
                },
            },
            (AGENT, 5, 4, 3, True),
        ),
        (
            "deployment",
            {
                "metadata": METADATA,
                "spec": {"replicas": 5},
                "status": {"replicas": 4, "readyReplicas": 3},
            },
            ("", 5, 4, 3, True),
        ),
        # As the API server has them before their controller acts, and leaves out defaults.
        ("daemonset", {"metadata": METADATA | {"generation": 1}, "spec": {}}, ("", 0, 0, 0, False)),
        ("deployment", {"metadata": METADATA, "spec": {}}, ("", 1, 0, 0, True)),
    ],
)
def test_workloads_are_read_from_either_kind(
    kind: str, found: Object, expected: tuple[str, int, int, int, bool]
) -> None:
    assert workload(kind, found) == Workload(kind, "netmgr", "x", *expected)


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


def test_a_node_without_an_agent_is_wrong_where_its_daemon_set_wants_one() -> None:
    nodes, describe = (node("a"), node("b")), "kubectl -n netmgr describe daemonset/netmgr-agent"
    absent = "no agent's pod is on it"
    made = cluster(*nodes, pods=[pod("a")], workloads=[of(AGENT, 2, 1)])
    assert only(made) == error("agent", absent, describe, "node/b")
    made = cluster(*nodes, pods=[pod("a")], workloads=[of(AGENT, 1, 1)])
    unwanted = f"{absent}, and daemonset/netmgr-agent wants none there"
    assert only(made) == warning("agent", unwanted, describe, "node/b")


def test_a_node_that_is_not_ready_is_an_error_that_hides_what_its_agent_was() -> None:
    down = replace(node("a", UNKNOWN), is_ready=False)
    message = "the Node is not Ready, so that nothing is known of its agent"
    found = error("node", message, "kubectl describe node/a", "node/a")
    for pods in ([], [pod("a", ready=False)], [pod("a")]):
        assert only(cluster(down, pods=pods)) == found


def test_a_node_whose_report_does_not_come_has_a_condition_that_is_unknown() -> None:
    message = "its condition NetmgrHealthy is Unknown: silent"
    found = warning("network", message, "kubectl describe node/a", "node/a")
    assert only(cluster(node("a", UNKNOWN))) == found


def test_what_keeps_pods_from_a_node_whose_agent_is_ready_is_an_error() -> None:
    found = node(
        "a",
        {"type": NETWORK_UNAVAILABLE, "status": "True"},
        taints=[{"key": STARTUP_TAINT, "effect": "NoSchedule"}],
    )
    tainted = "its agent is ready, and it still has the taint netmgr.io/agent-not-ready"
    unavailable = error(
        "taint",
        "its agent is ready, and its condition NetworkUnavailable is True",
        "kubectl describe node/a",
        "node/a",
    )
    remedy = "no controller is installed, which would remove it"
    assert findings(cluster(found), NOW) == [error("taint", tainted, remedy, "node/a"), unavailable]
    workloads = [of(AGENT, 1, 1), of(CONTROLLER, 2, 2)]
    made = cluster(found, workloads=workloads, leader=Leader("one", NOW))
    remedy = "kubectl -n netmgr logs deployment/netmgr-controller"
    assert findings(made, NOW) == [error("taint", tainted, remedy, "node/a"), unavailable]


def test_an_exporter_that_does_not_answer_is_a_warning_with_the_reason() -> None:
    remedy = "kubectl -n netmgr logs agent-a -c exporter"
    found = warning("exporter", "its exporter does not answer: 503", remedy, "node/a")
    assert only(cluster(node("a"), silent={"a": "503"})) == found


def test_nodes_that_run_no_agent_are_not_expected_to() -> None:
    labels = ({ROLE: "hub-router"}, {ROLE: "nat-host"}, {"kubernetes.io/os": "windows"})
    nodes = [node(f"n{number}", labels=each) for number, each in enumerate(labels)]
    assert [each.component for each in nodes] == ["", NAT_HOST, ""]
    assert findings(cluster(*nodes, pods=[], workloads=[of(AGENT, 0, 0)]), NOW) == []
    # With the overlay of NAT hosts, one of them is.
    workloads = [of(AGENT, 0, 0), of(NAT_HOST, 1, 0)]
    assert only(cluster(*nodes, pods=[], workloads=workloads)).objects == ("node/n1",)


def test_a_node_whose_agent_is_ready_needs_no_pod_cidrs() -> None:
    assert findings(cluster(node("a", podCIDRs=[])), NOW) == []
    assert only(cluster(node("a", podCIDRs=[]), pods=[pod("a", ready=False)])) == error(
        "ranges",
        "it waits for ranges: it has no podCIDRs, and its agent is not ready",
        "kubectl describe node/a",
        "node/a",
    )
    # A NAT host never gets any.
    host = node("h", labels={ROLE: "nat-host"}, podCIDRs=[])
    made = cluster(host, pods=[pod("h", ready=False)], workloads=[of(NAT_HOST, 1, 1)])
    assert only(made).check == "agent"


def test_a_pod_that_is_ready_counts_whatever_became_of_the_one_before() -> None:
    both = [pod("a", "new"), pod("a", "old", ready=False)]
    assert findings(cluster(node("a"), pods=both), NOW) == []
    assert findings(cluster(node("a"), pods=both[::-1]), NOW) == []


def waiting(kind: str, name: str, reason: str, **more: Any) -> Object:
    """The status of a pod of whose containers one waits."""
    status = {"name": name, "ready": False, "state": {"waiting": {"reason": reason}}}
    return {kind: [status | more]}


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "its agent's pod failed: Evicted"),
        ({"phase": "Failed"}, "its agent's pod failed: no reason is given"),
        (
            waiting("initContainerStatuses", "plugin", "ImagePullBackOff", lastState={}),
            "container plugin of its agent's pod: ImagePullBackOff",
        ),
        (
            waiting(
                "containerStatuses",
                "agent",
                "CrashLoopBackOff",
                lastState={"terminated": {"exitCode": 3}},
            ),
            "container agent of its agent's pod: CrashLoopBackOff, exit code 3",
        ),
        (
            waiting("containerStatuses", "agent", "ErrImagePull"),
            "container agent of its agent's pod: ErrImagePull",
        ),
        (waiting("initContainerStatuses", "document", "PodInitializing"), "its agent is not ready"),
    ],
)
def test_an_agent_that_does_not_run_has_its_kubelets_reason(status: Object, message: str) -> None:
    found = only(cluster(node("a"), pods=[pod("a", ready=False, **status)]))
    assert found.message == message


def test_an_agent_of_an_older_revision_lags_where_the_newest_is_known() -> None:
    key = ("netmgr", "netmgr-agent")
    assert only(cluster(node("a"), revisions={key: "newer"})) == warning(
        "rollout",
        "its agent is of an older revision of daemonset/netmgr-agent",
        "kubectl -n netmgr rollout status daemonset/netmgr-agent",
        "node/a",
    )
    assert findings(cluster(node("a"), revisions={key: "new"}), NOW) == []
    # The newest revision of something else says nothing of it.
    assert findings(cluster(node("a"), revisions={("netmgr", "other"): "newer"}), NOW) == []


def test_what_the_condition_says_is_not_said_again_by_the_report() -> None:
    unhealthy = {"type": HEALTHY, "status": "False", "reason": "UplinkErrors", "message": "eth0"}
    problems = tuple(
        Problem(reason=reason, message="found") for reason in ("UplinkErrors", "DriftReturns")
    )
    made = cluster(node("a", unhealthy), reports={"a": Report(problems=problems)})
    assert findings(made, NOW) == [
        error("network", message, "kubectl describe node/a", "node/a")
        for message in ("UplinkErrors: eth0", "DriftReturns: found")
    ]
    # A Node that has no condition yet has all that its exporter reports.
    made = cluster(node("a"), reports={"a": Report(problems=problems[:1])})
    described = "kubectl describe node/a"
    assert only(made) == error("network", "UplinkErrors: found", described, "node/a")


def test_a_taint_that_keeps_pods_away_is_shown_and_is_no_error_of_its_own() -> None:
    taints = [{"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}]
    message = "it has the taint netmgr.io/unhealthy, so that no new pod comes"
    found = warning("taint", message, "kubectl describe node/a", "node/a")
    assert only(cluster(node("a", taints=taints))) == found


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
    assert only(made) == error(
        "installation",
        "kube-controller-manager has not acted on its newest form",
        "kubectl -n netmgr describe daemonset/netmgr",
        "daemonset/netmgr",
    )
    found["status"] = {"observedGeneration": 2}
    assert findings(cluster(workloads=[workload("daemonset", found)]), NOW) == []


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (None, "no controller leads"),
        (Leader("", NOW), "no controller leads"),
        (Leader("one", NOW - LEASE_GRACE_SECONDS), ""),
        (Leader("one", NOW - LEASE_GRACE_SECONDS - 1), "one leads, and its Lease ended 61 s ago"),
    ],
)
def test_a_controller_leads_while_its_lease_is_renewed(held: Leader | None, message: str) -> None:
    path = "deployment/netmgr-controller"
    found = findings(cluster(workloads=[of(CONTROLLER, 2, 2)], leader=held), NOW)
    remedy = f"kubectl -n netmgr logs {path}"
    assert found == ([error("controller", message, remedy, path)] if message else [])
    # One that may not be read says nothing.
    unread = cluster(workloads=[of(CONTROLLER, 2, 2)], leader=held, unread={"leases": "403"})
    remedy = "kubectl auth can-i --list"
    assert only(unread) == warning("access", "not examined: 403", remedy, "leases")


def test_controllers_that_are_not_ready_are_an_error_if_none_is() -> None:
    path, leads = "deployment/netmgr-controller", Leader("one", NOW)
    describe = f"kubectl -n netmgr describe {path}"
    made = cluster(workloads=[of(CONTROLLER, 2, 2, ready=1)], leader=leads)
    message = "1 of 2 controllers are ready"
    assert only(made) == warning("controller", message, describe, path)
    made = cluster(workloads=[of(CONTROLLER, 2, 2, ready=0)], leader=leads)
    assert only(made) == error("controller", "0 of 2 controllers are ready", describe, path)


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
    remedy = "kubectl -n netmgr describe pod x"
    found = warning("event", "BackOff: back-off", remedy, "pod/x", "pod/y")
    assert only(cluster(node("a"), events=events)) == found


def test_an_event_of_a_node_has_no_namespace_and_one_that_says_nothing_is_shown_too() -> None:
    about = {"kind": "Node", "name": "a"}
    events: list[Object] = [
        {"involvedObject": about, "reason": "NodePoolFull", "message": "no range is left"},
        {"involvedObject": {}},
    ]
    assert findings(cluster(node("a"), events=events), NOW) == [
        warning("event", "NodePoolFull: no range is left", "kubectl describe node a", "node/a"),
        warning("event", ": ", "kubectl describe  ", "/"),
    ]
