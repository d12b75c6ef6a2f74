"""What is wrong with netmgr in a cluster: from what its API server and exporters say to findings.

Findings of one kind about many Nodes are one finding, so that a cluster of thousands is described
in a few lines. An error is what keeps pods from their network or counts from being right; what
passes by itself, such as a rollout, and what is already over, such as an Event, is a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from netmgr.documents.diagnostics import Severity
from netmgr.documents.sites import Role
from netmgr.findings import Finding, grouped
from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.client.api import Object
from netmgr.kube.controller.node_conditions import PREFLIGHT_FAILED, RANGES_SHARED
from netmgr.kube.controller.node_reports import NodeReport
from netmgr.kube.controller.nodes import (
    ROLE,
    STARTUP_TAINT,
    UNHEALTHY_TAINT,
    NodeView,
    is_ready,
    node_view,
)
from netmgr.kube.controller.shared_ranges import shared_ranges

AGENT, NAT_HOST, CONTROLLER = "agent", "nat-host", "controller"
COMPONENT = "app.kubernetes.io/component"
REVISION = "controller-revision-hash"
"""Label by which the DaemonSet controller says which revision a pod is of."""

LEASE_GRACE_SECONDS = 60.0
"""How long a renewal may be overdue: the clocks of two machines are compared."""

_STARTING = ("PodInitializing", "ContainerCreating")
_READ = ("Node", "DaemonSet", "Deployment")
_SECOND = len("2027-01-15T08:00:00")


@dataclass(frozen=True, slots=True)
class NodeState:
    """What matters about a Node, and the component of netmgr it should run, or empty."""

    view: NodeView
    is_ready: bool
    """Whether its kubelet says so."""
    component: str
    labels: frozenset[str] = frozenset()
    """Their keys."""


@dataclass(frozen=True, slots=True)
class PodState:
    """What matters about an agent's pod, and why a container of it does not run, or empty."""

    pod: AgentPod
    namespace: str
    image: str
    revision: str
    trouble: str
    container: str
    """The one that is in trouble; the agent's if none is."""

    @property
    def exporter(self) -> str:
        """The path by which the API server asks its exporter."""
        pod = f"{self.pod.name}:{self.pod.exporter[1]}"
        return f"/api/v1/namespaces/{self.namespace}/pods/{pod}/proxy"

    def logs(self, container: str = "") -> str:
        """The command that shows the log of a container; default: of the one in trouble."""
        pod = f"{self.pod.name} -c {container or self.container}"
        return f"kubectl -n {self.namespace} logs {pod}"


@dataclass(frozen=True, slots=True)
class Workload:
    """What matters about a DaemonSet or Deployment."""

    kind: str
    namespace: str
    name: str
    component: str
    wanted: int
    scheduled: int
    ready: int
    is_current: bool
    """Whether its status is of its newest generation."""
    most_unavailable: int = 0
    """How many Nodes a rollout may leave without its pod; 0 where that stops none."""
    selects: tuple[frozenset[str], ...] = ()
    """Keys of the labels that a Node has to have for its pods: all of one of these."""

    @property
    def path(self) -> str:
        """As kubectl takes it."""
        return f"{self.kind}/{self.name}"

    def kubectl(self, verb: str) -> str:
        return f"kubectl -n {self.namespace} {verb} {self.path}"


class Leader(NamedTuple):
    """The controller's Lease: who holds it, until when (seconds since the epoch)."""

    holder: str
    until: float


@dataclass
class ClusterState:
    namespaces: Sequence[str]
    nodes: list[NodeState] = field(default_factory=list)
    pods: list[PodState] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    revisions: dict[tuple[str, str], str] = field(default_factory=dict)
    """The newest revision of each DaemonSet, by namespace and name."""
    leader: Leader | None = None
    """None where there is no Lease."""
    events: list[Object] = field(default_factory=list)
    """Warnings of the last hour."""
    present: set[str] = field(default_factory=set)
    """UIDs of Nodes, and of netmgr's pods, DaemonSets and Deployments."""
    installed_at: str = ""
    """When the oldest of its DaemonSets and Deployments was made, or empty."""
    reports: dict[str, NodeReport] = field(default_factory=dict)
    """By the Node's name."""
    silent: dict[str, str] = field(default_factory=dict)
    """Why there is no report, by the Node's name."""
    unread: dict[str, str] = field(default_factory=dict)
    """What could not be read, and why."""

    def of(self, component: str) -> list[Workload]:
        return [owner for owner in self.workloads if owner.component == component]


def node_state(node: Object) -> NodeState:
    labels = node["metadata"].get("labels", {})
    component = {Role.NODE: AGENT, Role.NAT_HOST: NAT_HOST}.get(labels.get(ROLE, Role.NODE), "")
    # The manifests' DaemonSets select Linux.
    if labels.get("kubernetes.io/os", "linux") != "linux":
        component = ""
    return NodeState(node_view(node), is_ready(node), component, frozenset(labels))


def pod_state(pod_object: Object, pod: AgentPod) -> PodState:
    status, metadata = pod_object.get("status", {}), pod_object["metadata"]
    container, trouble = AGENT, ""
    if status.get("phase") == "Failed":
        trouble = f"its agent's pod failed: {status.get('reason') or 'no reason is given'}"
    # Init containers first: while one of them waits, nothing behind it is started.
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    for container_status in statuses:
        reason = container_status.get("state", {}).get("waiting", {}).get("reason")
        if reason and reason not in _STARTING:
            container = container_status["name"]
            ended = container_status.get("lastState", {}).get("terminated")
            last = f", exit code {ended['exitCode']}" if ended else ""
            trouble = f"container {container} of its agent's pod: {reason}{last}"
            break
    revision = metadata.get("labels", {}).get(REVISION, "")
    images = [spec["image"] for spec in pod_object["spec"]["containers"] if spec["name"] == AGENT]
    image = images[0] if images else ""
    return PodState(pod, metadata["namespace"], image, revision, trouble, container)


def workload(kind: str, workload_object: Object, nodes: Sequence[NodeState] = ()) -> Workload:
    """What matters about a DaemonSet or Deployment (`kind` as kubectl takes it)."""
    metadata, status = workload_object["metadata"], workload_object.get("status", {})
    is_everywhere = kind == "daemonset"
    # A Deployment's status leaves out numbers that are 0.
    ready = status.get("numberReady" if is_everywhere else "readyReplicas", 0)
    selects = tuple(_selected(workload_object["spec"].get("template", {}).get("spec", {})))
    if is_everywhere:
        wanted = status.get("desiredNumberScheduled", 0)
    else:
        # Its pods have a host port: no more of them run than there are Nodes for them.
        eligible = sum(any(keys <= node.labels for keys in selects) for node in nodes)
        most = max(ready, eligible, 1) if nodes else math.inf
        wanted = min(workload_object["spec"].get("replicas", 1), most)
    return Workload(
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        component=metadata.get("labels", {}).get(COMPONENT, ""),
        wanted=wanted,
        scheduled=status.get("currentNumberScheduled" if is_everywhere else "replicas", 0),
        ready=ready,
        is_current=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        most_unavailable=_most_unavailable(workload_object["spec"], wanted) if is_everywhere else 0,
        selects=selects,
    )


def _most_unavailable(spec: Object, wanted: int) -> int:
    most = spec.get("updateStrategy", {}).get("rollingUpdate", {}).get("maxUnavailable", 0)
    if isinstance(most, int):
        return most
    # Rounded up, as the DaemonSet controller does it.
    share = most.removesuffix("%")
    return -(-int(share) * wanted // 100) if share.isdecimal() else 0


def _selected(pod: Object) -> Iterator[frozenset[str]]:
    """Keys of the labels by which pods choose their Nodes, in each of the ways that they may."""
    everywhere = frozenset(pod.get("nodeSelector") or ())
    affinity = pod.get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    # Terms are alternatives; within one, all expressions have to be met.
    for term in required.get("nodeSelectorTerms", [{}]):
        expressions = term.get("matchExpressions", ())
        # NotIn and DoesNotExist are met by a Node without the label.
        yield everywhere | {e["key"] for e in expressions if e["operator"] in ("Exists", "In")}


def leader(lease: Object) -> Leader:
    """What a Lease says; one that was given up has no holder."""
    spec = lease.get("spec", {})
    renewed = spec.get("renewTime")
    since = datetime.fromisoformat(renewed).timestamp() if renewed else 0.0
    return Leader(spec.get("holderIdentity") or "", since + spec.get("leaseDurationSeconds", 0))


def findings(cluster: ClusterState, now: float) -> list[Finding]:
    """What is wrong, worst first, and then what concerns the most; `now` since the epoch."""
    return grouped(_observed(cluster, now))


def _found(severity: Severity, check: str, message: str, remedy: str, about: str) -> Finding:
    return Finding(severity, message, remedy, check, (about,))


def _observed(cluster: ClusterState, now: float) -> Iterator[Finding]:
    if not cluster.of(AGENT) and not cluster.of(CONTROLLER) and not cluster.of(NAT_HOST):
        message = f"no DaemonSet or Deployment of netmgr is in {', '.join(cluster.namespaces)}"
        remedy = "kubectl apply -k an overlay, or name the namespace with --namespace"
        yield _found(Severity.ERROR, "installation", message, remedy, "cluster")
        return
    for resource, why in cluster.unread.items():
        remedy = "kubectl auth can-i --list"
        yield _found(Severity.WARNING, "access", f"not examined: {why}", remedy, resource)
    yield from _workloads(cluster)
    yield from _leader(cluster, now)
    yield from _nodes(cluster)
    for shared in shared_ranges([state.view for state in cluster.nodes]):
        about = f"node/{shared.younger}"
        yield _found(Severity.ERROR, "ranges", shared.message, shared.remedy, about)
    yield from _events(event for event in cluster.events if not _is_over(event, cluster))


def _workloads(cluster: ClusterState) -> Iterator[Finding]:
    for owner in cluster.workloads:
        if not owner.is_current:
            message = "kube-controller-manager has not acted on its newest form"
            remedy = owner.kubectl("describe")
            yield _found(Severity.ERROR, "installation", message, remedy, owner.path)
        elif owner.component == CONTROLLER and owner.ready < owner.wanted:
            yield _controllers(owner, cluster)


def _controllers(deployment: Workload, cluster: ClusterState) -> Finding:
    message = f"{deployment.ready} of {deployment.wanted} controllers are ready"
    remedy = deployment.kubectl("describe")
    if deployment.ready:
        return _found(Severity.WARNING, "controller", message, remedy, deployment.path)
    present = frozenset[str]().union(*(state.labels for state in cluster.nodes))
    for label in sorted(frozenset[str]().union(*deployment.selects) - present):
        message += f", and no Node has the label {label} that they need"
        remedy = f"kubectl label node NODE {label}="
    return _found(Severity.ERROR, "controller", message, remedy, deployment.path)


def _leader(cluster: ClusterState, now: float) -> Iterator[Finding]:
    running = [deployment for deployment in cluster.of(CONTROLLER) if deployment.ready]
    # A Lease that may not be read is not one that is missing.
    if not running or "leases" in cluster.unread:
        return
    held = cluster.leader
    if held is None or not held.holder:
        message = "no controller leads"
    elif now > held.until + LEASE_GRACE_SECONDS:
        message = f"{held.holder} leads, and its Lease ended {now - held.until:.0f} s ago"
    else:
        return
    remedy = running[0].kubectl("logs")
    yield _found(Severity.ERROR, "controller", message, remedy, running[0].path)


def _nodes(cluster: ClusterState) -> Iterator[Finding]:
    # A pod that is ready comes last and is kept: the one that it replaces may still be there.
    by_readiness = sorted(cluster.pods, key=lambda agent: agent.pod.is_ready)
    pods = {agent.pod.node: agent for agent in by_readiness}
    sets = {component: cluster.of(component) for component in (AGENT, NAT_HOST)}
    for state in sorted(cluster.nodes, key=lambda state: state.view.name):
        wanted, name = sets.get(state.component), state.view.name
        if wanted:
            yield from _agent(state, pods.get(name), wanted, cluster)
            yield from _network(state, cluster.reports.get(name))
    for owner in cluster.workloads:
        yield from _rollout(owner, cluster, pods)


def _rollout(
    daemon_set: Workload, cluster: ClusterState, pods: Mapping[str, PodState]
) -> Iterator[Finding]:
    """A rollout that Nodes which are not Ready have stopped."""
    nodes = [node for node in cluster.nodes if node.component == daemon_set.component]
    # The DaemonSet controller counts their pods as unavailable, like those it replaces.
    down = sorted(node.view.name for node in nodes if not node.is_ready)
    newest = cluster.revisions.get((daemon_set.namespace, daemon_set.name))
    older = {
        node.view.name
        for node in nodes
        if node.view.name in pods and pods[node.view.name].revision != newest
    }
    if not newest or not older or not 0 < daemon_set.most_unavailable <= len(down):
        return
    message = (
        f"the rollout of {daemon_set.path} has stopped: no more than "
        f"{daemon_set.most_unavailable} may be without an agent, {len(down)} are not Ready, and "
        f"{len(older)} have an older revision"
    )
    remedy = f"repair these Nodes or delete them, or raise maxUnavailable of {daemon_set.path}"
    for name in down:
        yield _found(Severity.ERROR, "rollout", message, remedy, f"node/{name}")


def _agent(
    state: NodeState, agent: PodState | None, wanted: Sequence[Workload], cluster: ClusterState
) -> Iterator[Finding]:
    """What keeps a Node's agent from serving, or where it lags behind."""
    about = f"node/{state.view.name}"
    if not state.is_ready:
        message = "the Node is not Ready, so that nothing is known of its agent"
        remedy = f"kubectl describe {about}"
        yield _found(Severity.ERROR, "node", message, remedy, about)
    elif agent is None:
        yield _absent(about, wanted)
    elif agent.pod.is_ready:
        yield from _serving(state.view, agent, cluster)
    else:
        yield _unready(state, agent)
    newest = {cluster.revisions.get((owner.namespace, owner.name)) for owner in wanted} - {None}
    if agent is not None and newest and agent.revision not in newest:
        message = f"its agent is of an older revision of {wanted[0].path}"
        remedy = wanted[0].kubectl("rollout status")
        yield _found(Severity.WARNING, "rollout", message, remedy, about)


def _absent(about: str, wanted: Sequence[Workload]) -> Finding:
    describe = wanted[0].kubectl("describe")
    if any(daemon_set.wanted > daemon_set.scheduled for daemon_set in wanted):
        return _found(Severity.ERROR, "agent", "no agent's pod is on it", describe, about)
    message = f"no agent's pod is on it, and {wanted[0].path} wants none there"
    return _found(Severity.WARNING, "agent", message, describe, about)


def _unready(state: NodeState, agent: PodState) -> Finding:
    about, remedy = f"node/{state.view.name}", agent.logs()
    if state.component == AGENT and not state.view.cidrs:
        check, remedy = "ranges", f"kubectl describe {about}"
        message = "it waits for ranges: it has no podCIDRs, and its agent is not ready"
    elif agent.pod.failed_preflight:
        check, message = "preflight", f"its preflight fails: {agent.pod.failed_preflight}"
    else:
        check, message = "agent", agent.trouble or "its agent is not ready"
    return _found(Severity.ERROR, check, message, remedy, about)


def _serving(view: NodeView, agent: PodState, cluster: ClusterState) -> Iterator[Finding]:
    """What keeps pods from a Node although its agent is ready, and an exporter that is silent."""
    about = f"node/{view.name}"
    if agent.trouble:
        yield _found(Severity.ERROR, "agent", agent.trouble, agent.logs(), about)
    if view.has_taint(STARTUP_TAINT):
        message = f"its agent is ready, and it still has the taint {STARTUP_TAINT}"
        logs = (deployment.kubectl("logs") for deployment in cluster.of(CONTROLLER))
        remedy = next(logs, "no controller is installed, which would remove it")
        yield _found(Severity.ERROR, "taint", message, remedy, about)
    if view.is_network_unavailable:
        message = "its agent is ready, and its condition NetworkUnavailable is True"
        yield _found(Severity.ERROR, "taint", message, f"kubectl describe {about}", about)
    if view.name in cluster.silent:
        message = f"its exporter does not answer: {cluster.silent[view.name]}"
        yield _found(Severity.WARNING, "exporter", message, agent.logs("exporter"), about)


def _network(state: NodeState, report: NodeReport | None) -> Iterator[Finding]:
    """What its condition says, and what its exporter reports beside that."""
    view = state.view
    about, describe = f"node/{view.name}", f"kubectl describe node/{view.name}"
    status, reason = view.health or (None, None)
    # A preflight that fails is reported with its agent, and shared ranges of all Nodes at once.
    if status == "False" and reason not in (PREFLIGHT_FAILED, RANGES_SHARED):
        message = f"{reason}: {view.health_message}"
        yield _found(Severity.ERROR, "network", message, describe, about)
    elif status == "Unknown" and state.is_ready:
        message = f"its condition NetmgrHealthy is Unknown: {view.health_message}"
        yield _found(Severity.WARNING, "network", message, describe, about)
    if view.has_taint(UNHEALTHY_TAINT):
        message = f"it has the taint {UNHEALTHY_TAINT}, so that no new pod comes"
        yield _found(Severity.WARNING, "taint", message, describe, about)
    for problem in report.problems if report else ():
        if problem.reason != reason:
            message = f"{problem.reason}: {problem.message}"
            yield _found(Severity.ERROR, "network", message, describe, about)


def _is_over(event: Object, cluster: ClusterState) -> bool:
    """Whether an Event is of a former installation, or about an object that is gone."""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    about, names = event["involvedObject"], [f"{owner.name}-" for owner in cluster.workloads]
    kind, uid = about.get("kind"), about.get("uid")
    # Only what was listed can be known to be gone: ReplicaSets and others' pods were not.
    is_read = kind in _READ or (kind == "Pod" and about.get("name", "").startswith(tuple(names)))
    is_gone = is_read and uid and uid not in cluster.present
    # The API server's times all have one form, in which the earlier text sorts first.
    return bool(is_gone or (at and at[:_SECOND] < cluster.installed_at[:_SECOND]))


def _events(events: Iterable[Object]) -> Iterator[Finding]:
    for event in events:
        about = event["involvedObject"]
        kind, name = about.get("kind", "").lower(), about.get("name", "")
        inside = f" -n {about['namespace']}" if about.get("namespace") else ""
        message = f"{event.get('reason', '')}: {event.get('message', '').strip()}"
        remedy = f"kubectl{inside} describe {kind} {name}"
        yield _found(Severity.WARNING, "event", message, remedy, f"{kind}/{name}")
