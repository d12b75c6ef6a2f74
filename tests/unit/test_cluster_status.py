"""What `netmgr status --cluster` makes of a cluster's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from netmgr.documents.diagnostics import Severity
from netmgr.findings import Finding
from netmgr.kube.client.agent_pods import agent_pod
from netmgr.kube.controller.node_reports import NodeReport, ReportedProblem
from netmgr.kube.controller.nodes import (
    HEALTHY,
    NETWORK_UNAVAILABLE,
    ROLE,
    STARTUP_TAINT,
    UNHEALTHY_TAINT,
)
from netmgr.kube.diagnose.cluster_status import (
    AGENT,
    CONTROLLER,
    LEASE_GRACE_SECONDS,
    NAT_HOST,
    ClusterState,
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

Object = dict[str, Any]
NOW = 1_800_000_000.0


def node(name: str, *conditions: Object, labels: Mapping[str, str] = {}, **spec: Any) -> NodeState:
    created = f"2027-01-01T00:00:{ord(name[-1]) - ord('a'):02}Z"
    metadata = {"name": name, "uid": name, "creationTimestamp": created, "labels": dict(labels)}
    ready = {"type": "Ready", "status": "True"}
    return node_state(
        {
            "metadata": metadata,
            "spec": {"podCIDRs": [f"10.1.{ord(name[-1])}.0/27"]} | spec,
            "status": {"conditions": [ready, *conditions]},
        }
    )


def pod(on: str, name: str = "", *, ready: bool = True, **status: Any) -> PodState:
    metadata = {"name": name or f"agent-{on}", "namespace": "netmgr", "uid": ""}
    labels = {"controller-revision-hash": "new"}
    given = {
        "metadata": metadata | {"resourceVersion": "1", "labels": labels},
        "spec": {"nodeName": on, "containers": [{"name": "agent", "image": "netmgr:1"}]},
        "status": {"containerStatuses": [{"name": "agent", "ready": ready}]} | status,
    }
    made = agent_pod(given)
    assert made is not None
    return pod_state(given, made)


def of(component: str, wanted: int, scheduled: int, **more: Any) -> Workload:
    kind = "deployment" if component == CONTROLLER else "daemonset"
    given: Object = {"ready": scheduled, "is_current": True} | more
    return Workload(kind, "netmgr", f"netmgr-{component}", component, wanted, scheduled, **given)


def cluster(*nodes: NodeState, pods: list[PodState] | None = None, **more: Any) -> ClusterState:
    """Each Node with an agent that is ready, unless pods are given."""
    agents = [pod(state.view.name) for state in nodes] if pods is None else pods
    given = {"workloads": [of(AGENT, len(nodes), len(agents))]} | more
    return ClusterState(("netmgr",), nodes=list(nodes), pods=agents, **given)


DESCRIBE = "kubectl describe node/a"


def error(check: str, message: str, remedy: str = DESCRIBE, *about: str) -> Finding:
    return Finding(Severity.ERROR, message, remedy, check, about or ("node/a",))


def warning(check: str, message: str, remedy: str = DESCRIBE, *about: str) -> Finding:
    return replace(error(check, message, remedy, *about), severity=Severity.WARNING)


def findings_of(*nodes: NodeState, **more: Any) -> list[Finding]:
    return findings(cluster(*nodes, **more), NOW)


def condition(status: str, reason: str, message: str) -> Object:
    return {"type": HEALTHY, "status": status, "reason": reason, "message": message}


def test_where_all_is_well_nothing_is_found() -> None:
    assert findings_of(node("a"), node("b")) == []


def test_a_cluster_without_netmgr_is_one_finding_whatever_its_nodes_are_like() -> None:
    bare = cluster(node("a", podCIDRs=[]), pods=[], workloads=[])
    bare.namespaces = ("netmgr", "net")
    message = "no DaemonSet or Deployment of netmgr is in netmgr, net"
    remedy = "kubectl apply -k an overlay, or name the namespace with --namespace"
    assert findings(bare, NOW) == [error("installation", message, remedy, "cluster")]


def test_a_node_is_ready_by_its_own_condition_alone_and_may_lack_labels_and_status() -> None:
    bare = {"metadata": {"name": "a", "uid": "a", "creationTimestamp": ""}, "spec": {}}
    assert (node_state(bare).is_ready, node_state(bare).component) == (False, AGENT)
    conditions = [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]
    assert not node_state(bare | {"status": {"conditions": conditions}}).is_ready


def test_a_pod_may_lack_labels_status_and_the_agents_container() -> None:
    metadata = {"name": "x", "namespace": "netmgr", "uid": "", "resourceVersion": "1"}
    containers = [{"name": "other", "image": "other:1"}]
    bare: Object = {"metadata": metadata, "spec": {"nodeName": "a", "containers": containers}}
    made = agent_pod(bare)
    assert made is not None
    assert pod_state(bare, made) == PodState(made, "netmgr", "", "", "", AGENT)
    containers.append({"name": "agent", "image": "netmgr:1"})
    assert pod_state(bare, made).image == "netmgr:1"


METADATA = {"namespace": "netmgr", "name": "x"}
OF_AGENTS = METADATA | {"labels": {"app.kubernetes.io/component": AGENT}}
SCHEDULED = {"desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3}


@pytest.mark.parametrize(
    ("kind", "metadata", "spec", "status", "expected"),
    [
        ("daemonset", OF_AGENTS, {}, SCHEDULED, (AGENT, 5, 4, 3, True)),
        (
            *("deployment", METADATA, {"replicas": 5}, {"replicas": 4, "readyReplicas": 3}),
            ("", 5, 4, 3, True),
        ),
        # As the API server has them before their controller acts, and leaves out defaults.
        ("daemonset", METADATA | {"generation": 1}, {}, {}, ("", 0, 0, 0, False)),
        ("deployment", METADATA, {}, {}, ("", 1, 0, 0, True)),
    ],
)
def test_workloads_are_read_from_either_kind(
    kind: str, metadata: Object, spec: Object, status: Object, expected: tuple[Any, ...]
) -> None:
    given = {"metadata": metadata, "spec": spec} | ({"status": status} if status else {})
    anywhere = (frozenset[str](),)
    assert workload(kind, given) == Workload(kind, "netmgr", "x", *expected, selects=anywhere)


def test_one_cause_on_many_nodes_is_one_finding_with_the_remedy_of_the_first() -> None:
    nodes = [node(name) for name in ("c", "a", "b")]
    (finding,) = findings_of(*nodes, pods=[pod(name, ready=False) for name in "cab"])
    assert finding.objects == ("node/a", "node/b", "node/c")
    assert finding.remedy == "kubectl -n netmgr logs agent-a -c agent"


def test_errors_come_first_and_then_what_concerns_the_most_nodes() -> None:
    nodes = [node("a", condition("False", "UplinkErrors", "eth0")), *map(node, "bcdef")]
    pods = [pod(name, ready=name not in "bc") for name in "abcdef"]
    order = [
        (finding.severity, len(finding.objects))
        for finding in findings_of(*nodes, pods=pods, silent=dict.fromkeys("def", "503"))
    ]
    assert order == [(Severity.ERROR, 2), (Severity.ERROR, 1), (Severity.WARNING, 3)]


@pytest.mark.parametrize("wanted", [2, 1])
def test_a_node_without_an_agent_is_wrong_where_its_daemon_set_wants_one(wanted: int) -> None:
    findings = findings_of(node("a"), node("b"), pods=[pod("a")], workloads=[of(AGENT, wanted, 1)])
    about = "kubectl -n netmgr describe daemonset/netmgr-agent", "node/b"
    absent = "no agent's pod is on it"
    unwanted = f"{absent}, and daemonset/netmgr-agent wants none there"
    expected = error("agent", absent, *about), warning("agent", unwanted, *about)
    assert findings == [expected[wanted == 1]]


def test_a_node_that_is_not_ready_is_an_error_that_hides_what_its_agent_was() -> None:
    down = replace(node("a", condition("Unknown", "NoReport", "silent")), is_ready=False)
    message = "the Node is not Ready, so that nothing is known of its agent"
    for pods in ([], [pod("a", ready=False)], [pod("a")]):
        assert findings_of(down, pods=pods) == [error("node", message)]


def test_a_node_whose_report_does_not_come_has_a_condition_that_is_unknown() -> None:
    silent = node("a", condition("Unknown", "NoReport", "silent"))
    message = "its condition NetmgrHealthy is Unknown: silent"
    assert findings_of(silent) == [warning("network", message)]


def test_what_keeps_pods_from_a_node_whose_agent_is_ready_is_an_error() -> None:
    taints = [{"key": STARTUP_TAINT, "effect": "NoSchedule"}]
    kept = node("a", {"type": NETWORK_UNAVAILABLE, "status": "True"}, taints=taints)
    tainted = "its agent is ready, and it still has the taint netmgr.io/agent-not-ready"
    unavailable = "its agent is ready, and its condition NetworkUnavailable is True"
    led = {"workloads": [of(AGENT, 1, 1), of(CONTROLLER, 2, 2)], "leader": Leader("one", NOW)}
    for more, remedy in (
        ({}, "no controller is installed, which would remove it"),
        (led, "kubectl -n netmgr logs deployment/netmgr-controller"),
    ):
        expected = [error("taint", tainted, remedy), error("taint", unavailable)]
        assert findings_of(kept, **more) == expected


def test_an_exporter_that_does_not_answer_is_a_warning_with_the_reason() -> None:
    remedy = "kubectl -n netmgr logs agent-a -c exporter"
    expected = warning("exporter", "its exporter does not answer: 503", remedy)
    assert findings_of(node("a"), silent={"a": "503"}) == [expected]


def test_nodes_that_run_no_agent_are_not_expected_to() -> None:
    labels = ({ROLE: "hub-router"}, {ROLE: "nat-host"}, {"kubernetes.io/os": "windows"})
    nodes = [node(f"n{number}", labels=own) for number, own in enumerate(labels)]
    assert [state.component for state in nodes] == ["", NAT_HOST, ""]
    assert findings_of(*nodes, pods=[], workloads=[of(AGENT, 0, 0)]) == []
    # With the overlay of NAT hosts, one of them is.
    (finding,) = findings_of(*nodes, pods=[], workloads=[of(AGENT, 0, 0), of(NAT_HOST, 1, 0)])
    assert finding.objects == ("node/n1",)


def test_a_node_whose_agent_is_ready_needs_no_pod_cidrs() -> None:
    bare = node("a", podCIDRs=[])
    assert findings_of(bare) == []
    message = "it waits for ranges: it has no podCIDRs, and its agent is not ready"
    assert findings_of(bare, pods=[pod("a", ready=False)]) == [error("ranges", message)]
    # A NAT host never gets any.
    host = node("h", labels={ROLE: "nat-host"}, podCIDRs=[])
    (finding,) = findings_of(host, pods=[pod("h", ready=False)], workloads=[of(NAT_HOST, 1, 1)])
    assert finding.check == "agent"


def test_a_pod_that_is_ready_counts_whatever_became_of_the_one_before() -> None:
    both = [pod("a", "new"), pod("a", "old", ready=False)]
    for pods in (both, both[::-1]):
        assert findings_of(node("a"), pods=pods) == []


def waiting(kind: str, name: str, reason: str, **more: Any) -> Object:
    """The status of a pod of whose containers one waits."""
    status = {"name": name, "ready": False, "state": {"waiting": {"reason": reason}}}
    return {f"{kind}Statuses": [status | more]}


ENDED = {"lastState": {"terminated": {"exitCode": 3}}}


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"phase": "Failed", "reason": "Evicted"}, "its agent's pod failed: Evicted"),
        ({"phase": "Failed"}, "its agent's pod failed: no reason is given"),
        (
            waiting("initContainer", "preflight", "ImagePullBackOff", lastState={}),
            "container preflight of its agent's pod: ImagePullBackOff",
        ),
        (
            waiting("container", "agent", "CrashLoopBackOff", **ENDED),
            "container agent of its agent's pod: CrashLoopBackOff, exit code 3",
        ),
        (
            waiting("container", "agent", "ErrImagePull"),
            "container agent of its agent's pod: ErrImagePull",
        ),
        (waiting("initContainer", "document", "PodInitializing"), "its agent is not ready"),
    ],
)
def test_an_agent_that_does_not_run_has_its_kubelets_reason(status: Object, message: str) -> None:
    (finding,) = findings_of(node("a"), pods=[pod("a", ready=False, **status)])
    assert finding.message == message


def test_a_container_beside_a_ready_agent_that_does_not_run_is_an_error() -> None:
    """Without the plugin no pod starts."""
    crashing = waiting("container", "plugin", "CrashLoopBackOff", **ENDED)["containerStatuses"]
    statuses = [{"name": "agent", "ready": True}, *crashing]
    message = "container plugin of its agent's pod: CrashLoopBackOff, exit code 3"
    remedy = "kubectl -n netmgr logs agent-a -c plugin"
    found = findings_of(node("a"), pods=[pod("a", containerStatuses=statuses)])
    assert found == [error("agent", message, remedy)]


def test_an_agent_of_an_older_revision_lags_where_the_newest_is_known() -> None:
    message = "its agent is of an older revision of daemonset/netmgr-agent"
    remedy = "kubectl -n netmgr rollout status daemonset/netmgr-agent"
    lags = [warning("rollout", message, remedy)]
    # The newest revision of something else says nothing of it.
    for name, newest, expected in (
        ("netmgr-agent", "newer", lags),
        ("netmgr-agent", "new", []),
        ("other", "newer", []),
    ):
        assert findings_of(node("a"), revisions={("netmgr", name): newest}) == expected


@pytest.mark.parametrize(("most", "is_stopped"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_rollout_that_nodes_which_are_down_stop_names_them(
    most: int, *, is_stopped: bool
) -> None:
    nodes = [node("a"), node("b"), node("c")]
    down = [replace(each, is_ready=False) for each in nodes[:2]]
    sets = [of(AGENT, 3, 3, most_unavailable=most)]
    revisions = {("netmgr", "netmgr-agent"): "newer"}
    found = findings_of(*down, nodes[2], workloads=sets, revisions=revisions)
    message = (
        f"the rollout of daemonset/netmgr-agent has stopped: no more than {most} may be without "
        "an agent, 2 are not Ready, and 3 have an older revision"
    )
    remedy = "repair these Nodes or delete them, or raise maxUnavailable of daemonset/netmgr-agent"
    expected = error("rollout", message, remedy, "node/a", "node/b")
    assert (expected in found) is is_stopped
    assert any(each.message.startswith("the rollout") for each in found) is is_stopped
    # Nothing is left to replace.
    revisions = {("netmgr", "netmgr-agent"): "new"}
    found = findings_of(*down, nodes[2], workloads=sets, revisions=revisions)
    assert {each.check for each in found} == {"node"}


@pytest.mark.parametrize(
    ("most", "wanted", "expected"),
    [("10%", 2, 1), ("10%", 10, 1), ("10%", 11, 2), ("10%", 7500, 750), (3, 2, 3), (None, 9, 0)],
)
def test_a_share_of_a_daemon_set_is_rounded_up(
    most: str | int | None, wanted: int, expected: int
) -> None:
    strategy = {"rollingUpdate": {"maxUnavailable": most}} if most else {"type": "OnDelete"}
    given = {"metadata": METADATA, "spec": {"updateStrategy": strategy}}
    status = {"desiredNumberScheduled": wanted}
    assert workload("daemonset", given | {"status": status}).most_unavailable == expected


def test_what_the_condition_says_is_not_said_again_by_the_report() -> None:
    uplink, drift = (
        ReportedProblem(reason=reason, message="found")
        for reason in ("UplinkErrors", "DriftReturns")
    )
    unhealthy = node("a", condition("False", "UplinkErrors", "eth0"))
    assert findings_of(unhealthy, reports={"a": NodeReport(problems=(uplink, drift))}) == [
        error("network", message) for message in ("UplinkErrors: eth0", "DriftReturns: found")
    ]
    # A Node that has no condition yet has all that its exporter reports.
    reported = findings_of(node("a"), reports={"a": NodeReport(problems=(uplink,))})
    assert reported == [error("network", "UplinkErrors: found")]


def test_a_taint_that_keeps_pods_away_is_shown_and_is_no_error_of_its_own() -> None:
    tainted = node("a", taints=[{"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}])
    message = "it has the taint netmgr.io/unhealthy, so that no new pod comes"
    assert findings_of(tainted) == [warning("taint", message)]


def test_a_failed_preflight_is_reported_once() -> None:
    unhealthy = node("a", condition("False", "PreflightFailed", "mtu"))
    ended = {"name": "preflight", "state": {"terminated": {"exitCode": 1, "message": "mtu"}}}
    (finding,) = findings_of(unhealthy, pods=[pod("a", ready=False, initContainerStatuses=[ended])])
    assert (finding.check, finding.message) == ("preflight", "its preflight fails: mtu")


def test_a_workload_that_nobody_carries_out_is_an_error() -> None:
    path = "daemonset/x"
    message = "kube-controller-manager has not acted on its newest form"
    remedy = f"kubectl -n netmgr describe {path}"
    for observed, expected in ((1, [error("installation", message, remedy, path)]), (2, [])):
        metadata, status = OF_AGENTS | {"generation": 2}, {"observedGeneration": observed}
        given = {"metadata": metadata, "spec": {}, "status": status}
        assert findings_of(workloads=[workload("daemonset", given)]) == expected


PATH = "deployment/netmgr-controller"


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
    given = {"workloads": [of(CONTROLLER, 2, 2)], "leader": held}
    expected = error("controller", message, f"kubectl -n netmgr logs {PATH}", PATH)
    assert findings_of(**given) == ([expected] if message else [])
    # One that may not be read says nothing.
    unread = warning("access", "not examined: 403", "kubectl auth can-i --list", "leases")
    assert findings_of(**given, unread={"leases": "403"}) == [unread]


@pytest.mark.parametrize(("ready", "severity"), [(1, Severity.WARNING), (0, Severity.ERROR)])
def test_controllers_that_are_not_ready_are_an_error_if_none_is(
    ready: int, severity: Severity
) -> None:
    message, describe = f"{ready} of 2 controllers are ready", f"kubectl -n netmgr describe {PATH}"
    expected = Finding(severity, message, describe, "controller", (PATH,))
    workloads = [of(CONTROLLER, 2, 2, ready=ready)]
    assert findings_of(workloads=workloads, leader=Leader("one", NOW)) == [expected]


OF_CONTROLLERS: Object = {"namespace": "netmgr", "name": "netmgr-controller"}
OF_CONTROLLERS |= {"labels": {"app.kubernetes.io/component": CONTROLLER}}


def to_nodes_with(*labels: str) -> Object:
    """The part of a pod's spec that requires any of these labels of its Node."""
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in labels]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def test_a_label_that_no_node_has_keeps_controllers_from_running() -> None:
    key, linux = "node-role.kubernetes.io/control-plane", {"kubernetes.io/os": "linux"}
    spec = {"template": {"spec": to_nodes_with(key) | {"nodeSelector": linux}}}
    made = workload("deployment", {"metadata": OF_CONTROLLERS, "spec": spec})
    assert made.selects == (frozenset({"kubernetes.io/os", key}),)
    message = f"0 of 1 controllers are ready, and no Node has the label {key} that they need"
    (finding,) = findings_of(node("a", labels=linux), workloads=[made, of(AGENT, 1, 1)])
    assert finding == error("controller", message, f"kubectl label node NODE {key}=", PATH)
    both = node("a", labels=linux | {key: ""})
    (finding,) = findings_of(both, workloads=[made, of(AGENT, 1, 1)])
    assert finding.message == "0 of 1 controllers are ready"


def test_nodes_that_share_addresses_are_named_with_each_other() -> None:
    nodes = [
        node("b", podCIDRs=["10.2.0.0/24", "fd00:2::/120"]),
        node("a", podCIDRs=["10.2.0.0/16"]),
        node("c", podCIDRs=["10.2.1.0/24", "fd00:3::/120"]),
        node("d", podCIDRs=["fd00:2::/112"]),
        node("e", podCIDRs=["10.3.0.0/24", "10.3.0.0/25"]),
    ]
    shared = {finding.objects: finding.message for finding in findings_of(*nodes)}
    assert shared == {
        ("node/b",): "its pods and those of Node a have the same addresses, of 10.2.0.0/24",
        ("node/c",): "its pods and those of Node a have the same addresses, of 10.2.1.0/24",
        ("node/d",): "its pods and those of Node b have the same addresses, of fd00:2::/120",
    }
    (_, _, finding) = findings_of(*nodes)
    assert "if there is no such machine, kubectl delete node d; " in finding.remedy


def test_a_lease_ends_its_duration_after_it_was_renewed() -> None:
    spec = {"renewTime": "2027-01-15T08:00:00.000000Z", "leaseDurationSeconds": 15}
    assert leader({"spec": spec | {"holderIdentity": "one"}}) == Leader("one", NOW + 15)
    assert leader({}) == Leader("", 0.0)


def test_the_same_event_of_many_pods_is_one_warning() -> None:
    abouts = [{"kind": "Pod", "name": name, "namespace": "netmgr"} for name in ("x", "y")]
    said = {"reason": "BackOff", "message": "back-off\n"}
    remedy = "kubectl -n netmgr describe pod x"
    expected = warning("event", "BackOff: back-off", remedy, "pod/x", "pod/y")
    events = [said | {"involvedObject": about} for about in abouts]
    assert findings_of(node("a"), events=events) == [expected]


def test_an_event_of_a_node_has_no_namespace_and_one_that_says_nothing_is_shown_too() -> None:
    about = {"kind": "Node", "name": "a"}
    events: list[Object] = [
        {"involvedObject": about, "reason": "NodePoolFull", "message": "no range is left"},
        {"involvedObject": {}},
    ]
    assert findings_of(node("a"), events=events) == [
        warning("event", "NodePoolFull: no range is left", "kubectl describe node a"),
        warning("event", ": ", "kubectl describe  ", "/"),
    ]
