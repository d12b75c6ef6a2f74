"""What is wrong with netmgr in a cluster: from what its API server and exporters say to findings.

Findings of one kind about many Nodes are one finding, so that a cluster of thousands is described
in a few lines. An error is what keeps pods from their network or counts from being right; what
passes by itself, such as a rollout, and what is already over, such as an Event, is a warning.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from netmgr.documents.diagnostics import Severity
from netmgr.documents.sites import Role
from netmgr.findings import Finding, grouped
from netmgr.kube.agent_pods import AgentPod
from netmgr.kube.assigning import NodeView
from netmgr.kube.node_conditions import PREFLIGHT_FAILED
from netmgr.kube.node_reports import Report
from netmgr.kube.nodes import ROLE, STARTUP_TAINT, UNHEALTHY_TAINT, node_view
from netmgr.prefixes import Prefix

AGENT, NAT_HOST, CONTROLLER = "agent", "nat-host", "controller"
COMPONENT = "app.kubernetes.io/component"
REVISION = "controller-revision-hash"
"""Label by which the DaemonSet controller says which revision a pod is of."""

LEASE_GRACE_SECONDS = 60.0
"""How much later than due a renewal may be: the clocks of two machines are compared."""

_STARTING = ("PodInitializing", "ContainerCreating")
_READ = ("Node", "DaemonSet", "Deployment")
_SECOND = len("2027-01-15T08:00:00")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What matters of a Node, and the component of netmgr that it should run, or empty."""

    view: NodeView
    is_ready: bool
    """Whether its kubelet says so."""
    component: str
    labels: frozenset[str] = frozenset()
    """Their keys."""


@dataclass(frozen=True, slots=True)
class PodState:
    """What matters of an agent's pod, and why a container of it does not run, or empty."""

    pod: AgentPod
    namespace: str
    image: str
    revision: str
    trouble: str
    container: str
    """The one that is in trouble; the agent's if none is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What matters of a DaemonSet or Deployment."""

    kind: str
    namespace: str
    name: str
    component: str
    wanted: int
    scheduled: int
    ready: int
    is_current: bool
    """Whether its status is of its newest form."""
    most_unavailable: int = 0
    """Without how many of its pods a rollout may leave Nodes; 0 where that stops none."""
    selects: tuple[frozenset[str], ...] = ()
    """Keys of the labels that a Node has to have for its pods: all of one of these."""

    @property
    def path(self) -> str:
        """As kubectl takes it."""
        return f"{self.kind}/{self.name}"


class Leader(NamedTuple):
    """The controller's Lease: who holds it, until when (seconds since the epoch)."""

    holder: str
    until: float


@dataclass
class Cluster:
    """What was read.

    Attributes:
        revisions: the newest revision of each DaemonSet, by namespace and name.
        leader: None where there is no Lease.
        events: Warnings of the last hour.
        present: UIDs of Nodes, and of netmgr's pods, DaemonSets and Deployments.
        installed_at: when the oldest of its DaemonSets and Deployments was made, or empty.
        reports: by the Node's name.
        silent: why there is no report, by the Node's name.
        unread: what could not be read, and why.
    """

    namespaces: Sequence[str]
    nodes: list[NodeState] = field(default_factory=list)
    pods: list[PodState] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    revisions: dict[tuple[str, str], str] = field(default_factory=dict)
    leader: Leader | None = None
    events: list[Mapping[str, Any]] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    installed_at: str = ""
    reports: dict[str, Report] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)

    def of(self, component: str) -> list[Workload]:
        """Its DaemonSets or Deployments."""
        return [each for each in self.workloads if each.component == component]


def node_state(found: Mapping[str, Any]) -> NodeState:
    """What matters of a Node object."""
    labels = found["metadata"].get("labels", {})
    conditions = found.get("status", {}).get("conditions") or ()
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    component = {Role.NODE: AGENT, Role.NAT_HOST: NAT_HOST}.get(labels.get(ROLE, Role.NODE), "")
    is_linux = labels.get("kubernetes.io/os", "linux") == "linux"
    component = component if is_linux else ""
    return NodeState(node_view(dict(found)), is_ready, component, frozenset(labels))


def pod_state(found: Mapping[str, Any], pod: AgentPod) -> PodState:
    """What matters of an agent's pod on a Node."""
    status, metadata = found.get("status", {}), found["metadata"]
    container, trouble = AGENT, ""
    if status.get("phase") == "Failed":
        trouble = f"its agent's pod failed: {status.get('reason') or 'no reason is given'}"
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    for each in statuses:
        reason = each.get("state", {}).get("waiting", {}).get("reason")
        if reason and reason not in _STARTING:
            container = each["name"]
            ended = each.get("lastState", {}).get("terminated")
            last = f", exit code {ended['exitCode']}" if ended else ""
            trouble = f"container {container} of its agent's pod: {reason}{last}"
            break
    revision = metadata.get("labels", {}).get(REVISION, "")
    images = [each["image"] for each in found["spec"]["containers"] if each["name"] == AGENT]
    image = images[0] if images else ""
    return PodState(pod, metadata["namespace"], image, revision, trouble, container)


def workload(kind: str, found: Mapping[str, Any], nodes: Sequence[NodeState] = ()) -> Workload:
    """What matters of a DaemonSet or Deployment (`kind` as kubectl takes it).

    A Deployment's pods have a port of their Nodes, so that no more run than it may have of these.
    """
    metadata, status = found["metadata"], found.get("status", {})
    is_everywhere = kind == "daemonset"
    ready = status.get("numberReady" if is_everywhere else "readyReplicas", 0)
    selects = tuple(_selected(found["spec"].get("template", {}).get("spec", {})))
    if is_everywhere:
        wanted = status.get("desiredNumberScheduled", 0)
    else:
        wanted = min(found["spec"].get("replicas", 1), max(ready, _most_pods(selects, nodes)))
    return Workload(
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        component=metadata.get("labels", {}).get(COMPONENT, ""),
        wanted=wanted,
        scheduled=status.get("currentNumberScheduled" if is_everywhere else "replicas", 0),
        ready=ready,
        is_current=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        most_unavailable=_most_unavailable(found["spec"], wanted) if is_everywhere else 0,
        selects=selects,
    )


def _most_pods(selects: Iterable[frozenset[str]], nodes: Collection[NodeState]) -> float:
    """How many pods can run that have a port of their Nodes; where no Nodes are known, any."""
    if not nodes:
        return math.inf
    return max(1, sum(any(keys <= node.labels for keys in selects) for node in nodes))


def _most_unavailable(spec: Mapping[str, Any], wanted: int) -> int:
    most = spec.get("updateStrategy", {}).get("rollingUpdate", {}).get("maxUnavailable", 0)
    if isinstance(most, int):
        return most
    # As the DaemonSet controller rounds.
    share = most.removesuffix("%")
    return -(-int(share) * wanted // 100) if share.isdecimal() else 0


def _selected(pod: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """Keys of the labels by which pods choose their Nodes, in each of the ways that they may."""
    everywhere = frozenset(pod.get("nodeSelector") or ())
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", [{}]):
        expressions = term.get("matchExpressions", ())
        yield everywhere | {e["key"] for e in expressions if e["operator"] in ("Exists", "In")}


def leader(found: Mapping[str, Any]) -> Leader:
    """What a Lease says; one that was given up has no holder."""
    spec = found.get("spec", {})
    renewed = spec.get("renewTime")
    since = datetime.fromisoformat(renewed).timestamp() if renewed else 0.0
    return Leader(spec.get("holderIdentity") or "", since + spec.get("leaseDurationSeconds", 0))


def findings(cluster: Cluster, now: float) -> list[Finding]:
    """What is wrong, worst first, and then what concerns the most; `now` since the epoch."""
    return grouped(_observed(cluster, now))


def _found(severity: Severity, check: str, message: str, remedy: str, about: str) -> Finding:
    return Finding(severity, message, remedy, check, (about,))


def _observed(cluster: Cluster, now: float) -> Iterator[Finding]:
    if not cluster.of(AGENT) and not cluster.of(CONTROLLER) and not cluster.of(NAT_HOST):
        message = f"no DaemonSet or Deployment of netmgr is in {', '.join(cluster.namespaces)}"
        remedy = "kubectl apply -k an overlay, or name the namespace with --namespace"
        yield _found(Severity.ERROR, "installation", message, remedy, "cluster")
        return
    for what, why in cluster.unread.items():
        remedy = "kubectl auth can-i --list"
        yield _found(Severity.WARNING, "access", f"not examined: {why}", remedy, what)
    yield from _workloads(cluster)
    yield from _leader(cluster, now)
    yield from _nodes(cluster)
    yield from _shared_ranges([state.view for state in cluster.nodes])
    yield from _events(each for each in cluster.events if not _is_over(each, cluster))


def _workloads(cluster: Cluster) -> Iterator[Finding]:
    for each in cluster.workloads:
        if not each.is_current:
            message = "kube-controller-manager has not acted on its newest form"
            yield _found(Severity.ERROR, "installation", message, _describe(each), each.path)
        elif each.component == CONTROLLER and each.ready < each.wanted:
            yield _controllers(each, cluster)


def _controllers(found: Workload, cluster: Cluster) -> Finding:
    """Why not all controllers run."""
    message = f"{found.ready} of {found.wanted} controllers are ready"
    if found.ready:
        return _found(Severity.WARNING, "controller", message, _describe(found), found.path)
    present = frozenset[str]().union(*(state.labels for state in cluster.nodes))
    remedy = _describe(found)
    for label in sorted(frozenset[str]().union(*found.selects) - present):
        message += f", and no Node has the label {label} that they need"
        remedy = f"kubectl label node NODE {label}="
    return _found(Severity.ERROR, "controller", message, remedy, found.path)


def _describe(found: Workload) -> str:
    return f"kubectl -n {found.namespace} describe {found.path}"


def _leader(cluster: Cluster, now: float) -> Iterator[Finding]:
    running = [each for each in cluster.of(CONTROLLER) if each.ready]
    if not running or "leases" in cluster.unread:
        return
    held = cluster.leader
    remedy = f"kubectl -n {running[0].namespace} logs {running[0].path}"
    if held is None or not held.holder:
        message = "no controller leads"
    elif now > held.until + LEASE_GRACE_SECONDS:
        message = f"{held.holder} leads, and its Lease ended {now - held.until:.0f} s ago"
    else:
        return
    yield _found(Severity.ERROR, "controller", message, remedy, running[0].path)


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    # A pod that is ready comes last and is kept: the one that it replaces may still be there.
    by_readiness = sorted(cluster.pods, key=lambda each: each.pod.is_ready)
    pods = {each.pod.node: each for each in by_readiness}
    sets = {component: cluster.of(component) for component in (AGENT, NAT_HOST)}
    for state in sorted(cluster.nodes, key=lambda each: each.view.name):
        wanted, name = sets.get(state.component), state.view.name
        if wanted:
            yield from _agent(state, pods.get(name), wanted, cluster)
            yield from _network(state, cluster.reports.get(name))
    for each in cluster.workloads:
        yield from _rollout(each, cluster, pods)


def _rollout(one: Workload, cluster: Cluster, pods: Mapping[str, PodState]) -> Iterator[Finding]:
    """A rollout that Nodes which are not Ready stop: their agents count as those under way."""
    nodes = [each for each in cluster.nodes if each.component == one.component]
    down = sorted(each.view.name for each in nodes if not each.is_ready)
    newest = cluster.revisions.get((one.namespace, one.name))
    older = {
        each.view.name
        for each in nodes
        if each.view.name in pods and pods[each.view.name].revision != newest
    }
    if not newest or not older or not 0 < one.most_unavailable <= len(down):
        return
    message = (
        f"the rollout of {one.path} has stopped: no more than {one.most_unavailable} may be "
        f"without an agent, {len(down)} are not Ready, and {len(older)} have an older revision"
    )
    remedy = f"repair these Nodes or delete them, or raise maxUnavailable of {one.path}"
    for name in down:
        yield _found(Severity.ERROR, "rollout", message, remedy, f"node/{name}")


def _agent(
    state: NodeState, found: PodState | None, wanted: Sequence[Workload], cluster: Cluster
) -> Iterator[Finding]:
    """What keeps a Node's agent from serving, or what it lags behind in."""
    about = f"node/{state.view.name}"
    if not state.is_ready:
        message = "the Node is not Ready, so that nothing is known of its agent"
        remedy = f"kubectl describe {about}"
        yield _found(Severity.ERROR, "node", message, remedy, about)
    elif found is None:
        yield _absent(about, wanted)
    elif found.pod.is_ready:
        yield from _serving(state.view, found, cluster)
    else:
        yield _unready(state, found)
    if found is not None:
        yield from _lag(found, wanted, cluster.revisions, about)


def _shared_ranges(views: Sequence[NodeView]) -> Iterator[Finding]:
    """Nodes whose pods get the same addresses; of two, the younger one is named."""
    created = {view.name: view.created for view in views}
    held = sorted((block, view.name) for view in views for block in view.cidrs)
    widest: tuple[Prefix, str] | None = None
    for block, name in held:
        # Blocks are prefixes: what overlaps one lies in it, and comes right behind it.
        if widest is None or not widest[0].overlaps(block):
            widest = block, name
        elif name != widest[1]:
            older, younger = sorted((widest[1], name), key=created.__getitem__)
            message = f"its pods and those of Node {older} have the same addresses, of {block}"
            remedy = (
                f"if there is no such machine, kubectl delete node {younger}; else delete it as "
                "well, and its kubelet registers it with another podCIDR"
            )
            yield _found(Severity.ERROR, "ranges", message, remedy, f"node/{younger}")


def _absent(about: str, wanted: Sequence[Workload]) -> Finding:
    one = wanted[0]
    describe = f"kubectl -n {one.namespace} describe {one.path}"
    if any(each.wanted > each.scheduled for each in wanted):
        return _found(Severity.ERROR, "agent", "no agent's pod is on it", describe, about)
    message = f"no agent's pod is on it, and {one.path} wants none there"
    return _found(Severity.WARNING, "agent", message, describe, about)


def _unready(state: NodeState, found: PodState) -> Finding:
    about = f"node/{state.view.name}"
    remedy = f"kubectl -n {found.namespace} logs {found.pod.name} -c {found.container}"
    if state.component == AGENT and not state.view.cidrs:
        check, remedy = "ranges", f"kubectl describe {about}"
        message = "it waits for ranges: it has no podCIDRs, and its agent is not ready"
    elif found.pod.failed_preflight:
        check, message = "preflight", f"its preflight fails: {found.pod.failed_preflight}"
    else:
        check, message = "agent", found.trouble or "its agent is not ready"
    return _found(Severity.ERROR, check, message, remedy, about)


def _serving(view: NodeView, found: PodState, cluster: Cluster) -> Iterator[Finding]:
    """What keeps pods from a Node although its agent is ready, and an exporter that is silent."""
    about = f"node/{view.name}"
    if found.trouble:
        remedy = f"kubectl -n {found.namespace} logs {found.pod.name} -c {found.container}"
        yield _found(Severity.ERROR, "agent", found.trouble, remedy, about)
    if view.has_taint(STARTUP_TAINT):
        message = f"its agent is ready, and it still has the taint {STARTUP_TAINT}"
        yield _found(Severity.ERROR, "taint", message, _controller(cluster), about)
    if view.is_network_unavailable:
        message = "its agent is ready, and its condition NetworkUnavailable is True"
        yield _found(Severity.ERROR, "taint", message, f"kubectl describe {about}", about)
    if view.name in cluster.silent:
        message = f"its exporter does not answer: {cluster.silent[view.name]}"
        remedy = f"kubectl -n {found.namespace} logs {found.pod.name} -c exporter"
        yield _found(Severity.WARNING, "exporter", message, remedy, about)


def _controller(cluster: Cluster) -> str:
    for each in cluster.of(CONTROLLER):
        return f"kubectl -n {each.namespace} logs {each.path}"
    return "no controller is installed, which would remove it"


def _lag(
    found: PodState,
    wanted: Sequence[Workload],
    revisions: Mapping[tuple[str, str], str],
    about: str,
) -> Iterator[Finding]:
    newest = {revisions.get((each.namespace, each.name)) for each in wanted} - {None}
    if newest and found.revision not in newest:
        one = wanted[0]
        message = f"its agent is of an older revision of {one.path}"
        remedy = f"kubectl -n {one.namespace} rollout status {one.path}"
        yield _found(Severity.WARNING, "rollout", message, remedy, about)


def _network(state: NodeState, report: Report | None) -> Iterator[Finding]:
    """What its condition says, and what its exporter reports beside that."""
    view = state.view
    about, describe = f"node/{view.name}", f"kubectl describe node/{view.name}"
    status, reason = view.health or (None, None)
    is_tainted = view.has_taint(UNHEALTHY_TAINT)
    # A preflight that fails is reported with its agent.
    if status == "False" and reason != PREFLIGHT_FAILED:
        message = f"{reason}: {view.health_message}"
        yield _found(Severity.ERROR, "network", message, describe, about)
    elif status == "Unknown" and state.is_ready:
        message = f"its condition NetmgrHealthy is Unknown: {view.health_message}"
        yield _found(Severity.WARNING, "network", message, describe, about)
    if is_tainted:
        message = f"it has the taint {UNHEALTHY_TAINT}, so that no new pod comes"
        yield _found(Severity.WARNING, "taint", message, describe, about)
    for problem in report.problems if report else ():
        if problem.reason != reason:
            message = f"{problem.reason}: {problem.message}"
            yield _found(Severity.ERROR, "network", message, describe, about)


def _is_over(event: Mapping[str, Any], cluster: Cluster) -> bool:
    """Whether an Event is of a former installation, or about an object that is gone."""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    about, names = event["involvedObject"], [f"{each.name}-" for each in cluster.workloads]
    kind, uid = about.get("kind"), about.get("uid")
    is_read = kind in _READ or (kind == "Pod" and about.get("name", "").startswith(tuple(names)))
    is_gone = is_read and uid and uid not in cluster.present
    # Times of the API server are all of one form, in which the earlier one is the smaller text.
    return bool(is_gone or (at and at[:_SECOND] < cluster.installed_at[:_SECOND]))


def _events(events: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    for each in events:
        about = each["involvedObject"]
        kind, name = about.get("kind", "").lower(), about.get("name", "")
        inside = f" -n {about['namespace']}" if about.get("namespace") else ""
        message = f"{each.get('reason', '')}: {each.get('message', '').strip()}"
        remedy = f"kubectl{inside} describe {kind} {name}"
        yield _found(Severity.WARNING, "event", message, remedy, f"{kind}/{name}")
