"""What `netmgr connectivity-test` tests, and what it makes of the answers.

Each tested Node gets two pods: a server, and a client that probes the servers of its own Node and
of a few others. With many Nodes they are probed in a ring, so that work grows with their number
and every one is probed from several others. Pods that ran before are probed as well: new ones may
have a network where older ones have lost theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from netmgr.api.connectivity import Ending, Probe, ProbeAnswer, ProbeTarget, Result
from netmgr.documents.diagnostics import Severity
from netmgr.findings import Finding, grouped
from netmgr.kube.client.api import Object
from netmgr.kube.controller.claim_store import POOL
from netmgr.kube.controller.nodes import is_ready
from netmgr.kube.diagnose.cluster_status import AGENT, NodeState, PodState, node_state
from netmgr.prefixes import Address, Family

MOST_NODES, MOST_PEERS = 8, 8
"""Nodes that are tested by default, and others that each probes."""
MOST_RUNNING = 4
"""Pods of a Node that ran before and are probed: the oldest."""

ZONE = "topology.kubernetes.io/zone"
SERVICE = "netmgr-connectivity-test"
ICMPV6_BYTES = 256  # more than a neighbour discovery message has


class Check(StrEnum):
    """What is tested for each Node; a column of the table."""

    START = "start"
    SAME_NODE = "same-node"
    OTHER_NODES = "other-nodes"
    PATH_MTU = "path-mtu"
    RUNNING_PODS = "running-pods"
    OWN_ADDRESS = "own-address"
    SERVICE = "service"
    DNS = "dns"
    HOST_PORT = "host-port"
    INTERNAL = "internal"
    INTERNET = "internet"
    UNREACHABLE = "unreachable"
    COUNTED = "counted"


_EXPLAIN = "netmgr node explain {host}, on the node"
_REMEDIES = {
    Check.OTHER_NODES: (
        "kubectl describe node/{node}, and see that the network delivers its podCIDRs to it"
    ),
    Check.RUNNING_PODS: (
        "netmgr node status, on its node; if the pod's address was withdrawn, delete the pod, and "
        "its owner replaces it"
    ),
    Check.SERVICE: "kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide",
    Check.HOST_PORT: "the plugin portmap has to be in the chain: components/host-ports",
    Check.INTERNAL: f"{_EXPLAIN}: if it is native, it needs a way back to the pods' addresses",
}
"""What mends a probe that fails; of any other check, it is `_EXPLAIN`."""


class CheckState(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """A Node that may be tested, and its agent's pod, if it has one."""

    state: NodeState
    pool: str
    zone: str
    agent: PodState | None

    @property
    def name(self) -> str:
        return self.state.view.name

    @property
    def trouble(self) -> str:
        """Why it cannot be tested, or empty."""
        if not self.state.is_ready:
            return "the Node is not Ready"
        return "" if self.agent else "no agent's pod is on it"


class Options(NamedTuple):
    """What the user gave; `host_port` is 0 without one."""

    internet: tuple[ProbeTarget, ...] = ()
    internal: tuple[ProbeTarget, ...] = ()
    unreachable: tuple[ProbeTarget, ...] = ()
    host_port: int = 0


@dataclass(frozen=True, slots=True)
class ProbeServer:
    """A server that runs: its pod's addresses, and its Node's."""

    node: str
    addresses: tuple[str, ...]
    host_addresses: tuple[str, ...]


class RunningPod(NamedTuple):
    """A pod that ran before the test: its namespace and name, its Node and its addresses."""

    path: str
    node: str
    addresses: tuple[str, ...]


class PlannedProbe(NamedTuple):
    """A probe, what it is for, and the Node and the pod that it asks, or empty."""

    check: Check
    node: str
    probe: Probe
    pod: str = ""


class CountedBytes(NamedTuple):
    """What a Node's exporter says of the bytes that a pod exchanged with the internet."""

    bytes_out: int
    bytes_in: int


@dataclass
class NodeResult:
    node: str
    trouble: str = ""
    """Why its pods did not start, or gave no answer; empty if they did."""
    addresses: tuple[str, ...] = ()
    planned: Sequence[PlannedProbe] = ()
    answer: ProbeAnswer | None = None
    counted: CountedBytes | None = None
    """Of the client; None where the exporter does not have it, and `uncounted` says why."""
    server_counted: CountedBytes | None = None
    """Of the server, which never asks the internet for anything."""
    uncounted: str = ""
    states: dict[Check, CheckState] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def candidates(nodes: Iterable[Object], pods: Iterable[PodState]) -> list[NodeCandidate]:
    """Nodes on which netmgr's agents serve pods; `nodes` are API objects."""
    # Of two pods on a Node the ready one stays: the other is the one that it replaces.
    agents = {agent.pod.node: agent for agent in sorted(pods, key=lambda agent: agent.pod.is_ready)}
    eligible = []
    for node in nodes:
        state, labels = node_state(node), node["metadata"].get("labels", {})
        if state.component == AGENT:
            agent = agents.get(state.view.name)
            eligible.append(NodeCandidate(state, labels.get(POOL, ""), labels.get(ZONE, ""), agent))
    return eligible


def usable(wanted: Sequence[NodeCandidate], most: int) -> tuple[list[NodeCandidate], list[Finding]]:
    """Up to `most` testable Nodes, and why others are not; by default those are passed over."""
    ready = [candidate for candidate in wanted if not candidate.trouble]
    # Of a sample, those that are down are passed over; whoever names Nodes hears of each.
    absent = [
        _absent(f"not tested: {candidate.trouble}", f"node/{candidate.name}")
        for candidate in wanted
        if candidate.trouble and (most >= len(wanted) or not ready)
    ]
    if not wanted:
        absent = [_absent("there is no Node on which netmgr's agents serve pods", "cluster")]
    return spread(ready, most), absent


def _absent(message: str, about: str) -> Finding:
    return Finding(Severity.ERROR, message, "netmgr status --cluster", Check.START, (about,))


def spread(nodes: Iterable[NodeCandidate], most: int) -> list[NodeCandidate]:
    """Up to `most` of them: one of each node pool and zone before the second of any."""
    groups: defaultdict[tuple[str, str], list[NodeCandidate]] = defaultdict(list)
    for candidate in sorted(nodes, key=lambda candidate: candidate.name):
        groups[candidate.pool, candidate.zone].append(candidate)
    ranked = [
        (rank, key, candidate)
        for key, group in groups.items()
        for rank, candidate in enumerate(group)
    ]
    chosen = sorted(ranked)[:most]  # no two have the same rank and group
    return sorted((candidate for _, _, candidate in chosen), key=lambda candidate: candidate.name)


def running_pods(
    pods: Iterable[Object], shielded: Collection[str]
) -> defaultdict[str, list[RunningPod]]:
    """The oldest ready pods of each Node, except those on the host network.

    Args:
        pods: API objects.
        shielded: namespaces whose NetworkPolicies may refuse a probe.
    """
    pods_by_node: defaultdict[str, list[RunningPod]] = defaultdict(list)
    # Times in RFC 3339 sort like text.
    for pod in sorted(pods, key=lambda pod: str(pod["status"].get("startTime"))):
        metadata, node = pod["metadata"], pod["spec"]["nodeName"]
        # A pod on the host network answers at the Node's own address, which says nothing of pods'.
        is_shielded = metadata["namespace"] in shielded or pod["spec"].get("hostNetwork")
        serves = is_ready(pod) and "deletionTimestamp" not in metadata
        if is_shielded or not serves or len(pods_by_node[node]) == MOST_RUNNING:
            continue
        addresses = tuple(pod_ip["ip"] for pod_ip in pod["status"].get("podIPs") or ())
        path = f"{metadata['namespace']}/{metadata['name']}"
        pods_by_node[node].append(RunningPod(path, node, addresses))
    return pods_by_node


def plan(
    own: ProbeServer,
    ring: Sequence[ProbeServer],
    service: Sequence[str],
    asked: Options,
    running: Mapping[str, Sequence[RunningPod]] = MappingProxyType({}),
) -> list[PlannedProbe]:
    """What the client of a Node probes.

    Servers of the ring, the Service by its addresses, and pods that ran before (by Node) on its own
    Node and the next one.
    """
    probes: list[PlannedProbe] = []
    begin = ring.index(own)
    # Its own server, and those that follow it.
    peers = [*ring[begin:], *ring[:begin]][: MOST_PEERS + 1]
    for distance, server in enumerate(peers):
        check = Check.OTHER_NODES if distance else Check.SAME_NODE
        probes += _echoes(check, server.node, _of_families(server.addresses, own.addresses))
        # So each Node's pods are probed from two Nodes, however long the ring is.
        if distance <= 1:
            probes += _reaches(running.get(server.node, ()), own)
    probes += _echoes(Check.SERVICE, "", _of_families(service, own.addresses))
    if asked.host_port:
        probes += [
            PlannedProbe(
                Check.HOST_PORT, own.node, Probe(by="tcp", host=address, port=asked.host_port)
            )
            for address in _of_families(own.host_addresses, own.addresses)
        ]
    probes += [
        PlannedProbe(Check.INTERNAL, "", Probe(by="connect", host=target.host, port=target.port))
        for target in asked.internal
    ]
    # Without a domain: the search list of a pod begins with its own namespace.
    return [*probes, PlannedProbe(Check.DNS, "", Probe(by="dns", host=SERVICE))]


def _reaches(pods: Iterable[RunningPod], own: ProbeServer) -> Iterator[PlannedProbe]:
    for pod in pods:
        for address in _of_families(pod.addresses, own.addresses):
            probe = Probe(by="reach", host=address)
            yield PlannedProbe(Check.RUNNING_PODS, pod.node, probe, pod.path)


def _echoes(check: Check, node: str, addresses: Iterable[str]) -> Iterator[PlannedProbe]:
    for address in addresses:
        yield PlannedProbe(check, node, Probe(by="tcp", host=address))
        yield PlannedProbe(check, node, Probe(by="udp", host=address))


def _of_families(addresses: Iterable[str], own: Iterable[str]) -> list[str]:
    """Those in the families of a pod's own addresses."""
    families = {_family(address) for address in own}
    return [address for address in addresses if _family(address) in families]


def _family(address: str) -> Family:
    return Address.parse(address).family


def conclude(tested: NodeResult, service: Sequence[str], asked: Options) -> None:
    """Fill in a Node's states and findings from what its pods and its exporter say."""
    tested.states = dict.fromkeys(Check, CheckState.SKIPPED)
    answer = tested.answer
    # Its node decides what a pod prints: endings that do not match the task are nobody's.
    if answer is None or (
        (len(answer.probes), len(answer.internet), len(answer.unreachable))
        != (len(tested.planned), len(asked.internet), len(asked.unreachable))
    ):
        trouble = tested.trouble or "its client's answer is not to its task"
        _fail(tested, Check.START, trouble, f"kubectl describe node/{tested.node}")
        return
    tested.states[Check.START] = CheckState.OK
    for planned, ending in zip(tested.planned, answer.probes, strict=True):
        _of_probe(tested, planned, ending, service)
    for check, targets, endings, wanted in (
        (Check.INTERNET, asked.internet, answer.internet, Result.OK),
        (Check.UNREACHABLE, asked.unreachable, answer.unreachable, Result.NO_ANSWER),
    ):
        for target, ending in zip(targets, endings, strict=True):
            if ending.result is wanted:
                _pass(tested, check)
            else:
                message = f"{target}: {_words(ending)}"
                _fail(tested, check, message, _EXPLAIN.format(host=target.host))
    _of_counts(tested, answer)


def _of_probe(
    tested: NodeResult, planned: PlannedProbe, ending: Ending, service: Sequence[str]
) -> None:
    check, probe = planned.check, planned.probe
    is_answered = ending.result in (Result.OK, Result.STALLED)
    if check is Check.DNS:
        _of_name(tested, ending, service)
    elif is_answered:
        _pass(tested, check)
        if check not in (Check.INTERNAL, Check.RUNNING_PODS):  # nothing is sent there
            _of_size(tested, planned, ending)
    else:
        _fail(
            tested,
            check,
            f"{_way(planned)}: {_words(ending)}",
            _REMEDIES.get(check, _EXPLAIN).format(node=planned.node, host=probe.host),
            _about(tested, planned),
        )
    if ending.result is Result.OK and check in (Check.SAME_NODE, Check.OTHER_NODES):
        # A source that was masqueraded on the way arrives with a Node's address.
        if ending.seen and set(ending.seen) <= set(tested.addresses):
            _pass(tested, Check.OWN_ADDRESS)
        else:
            seen = _listed(ending.seen)
            message = f"{_way(planned)}: the server saw {seen}, which is not the pod's own address"
            remedy = _EXPLAIN.format(host=probe.host)
            _fail(tested, Check.OWN_ADDRESS, message, remedy, _about(tested, planned))


def _of_name(tested: NodeResult, ending: Ending, service: Sequence[str]) -> None:
    remedy = "kubectl -n kube-system get pods -l k8s-app=kube-dns -o wide"
    if ending.result is not Result.OK:
        _fail(tested, Check.DNS, f"the Service's name: {_words(ending)}", remedy)
    elif not ending.seen or not set(ending.seen) <= set(service):
        message = f"the Service's name leads to {_listed(ending.seen)}, which it does not have"
        _fail(tested, Check.DNS, message, remedy)
    else:
        _pass(tested, Check.DNS)


def _listed(addresses: Iterable[str]) -> str:
    return ", ".join(address or "(empty)" for address in addresses) or "no address"


def _of_size(tested: NodeResult, planned: PlannedProbe, ending: Ending) -> None:
    if ending.result is Result.OK:
        _pass(tested, Check.PATH_MTU)
        return
    reason = f" ({ending.reason})" if ending.reason else ""
    message = f"{_way(planned)}: small packets come through, large ones do not{reason}"
    remedy = "compare the MTU of the nodes' interfaces, of the pods' (ip link) and of the network"
    _fail(tested, Check.PATH_MTU, message, remedy, _about(tested, planned))


def _of_counts(tested: NodeResult, answer: ProbeAnswer) -> None:
    remedy = "netmgr node audit, on the node"
    if tested.counted is None or tested.server_counted is None:
        message = f"the counts cannot be compared: {tested.uncounted}"
        tested.findings.append(
            Finding(Severity.WARNING, message, remedy, Check.COUNTED, (f"node/{tested.node}",))
        )
        return
    for comparison in _comparisons(tested.counted, tested.server_counted, answer):
        if comparison.is_right:
            _pass(tested, Check.COUNTED)
            continue
        wanted = f"{comparison.most:,}"
        if comparison.least < comparison.most:
            wanted = f"{comparison.least:,} to {wanted}"
        message = (
            f"internet-{comparison.way} of the {comparison.who}'s pod: {comparison.counted:,} "
            f"bytes were counted, and it exchanged {wanted}"
        )
        _fail(tested, Check.COUNTED, message, remedy)


def is_as_expected(tested: NodeResult) -> bool:
    """Whether the counts are there, and right: no need to ask the exporter again."""
    if tested.answer is None or tested.counted is None or tested.server_counted is None:
        return False
    comparisons = _comparisons(tested.counted, tested.server_counted, tested.answer)
    return all(comparison.is_right for comparison in comparisons)


class _Comparison(NamedTuple):
    """Bytes that were counted for a pod in one direction, and how many may have been."""

    who: str
    way: str
    counted: int
    least: int
    most: int

    @property
    def is_right(self) -> bool:
        return self.least <= self.counted <= self.most


def _comparisons(
    client: CountedBytes, server: CountedBytes, answer: ProbeAnswer
) -> Iterator[_Comparison]:
    for who, counted, (sent, received) in (
        ("client", client, expected(answer)),
        ("server", server, ((0, 0), (0, 0))),  # it asks the internet for nothing
    ):
        yield _Comparison(who, "out", counted.bytes_out, *sent)
        yield _Comparison(who, "in", counted.bytes_in, *received)


def expected(answer: ProbeAnswer) -> tuple[tuple[int, int], tuple[int, int]]:
    """The least and the most bytes that may have been counted for a client, out and in."""
    sure, maybe = answer.to_internet, answer.to_unreachable
    # What gets no answer may have been dropped before it was counted. Neighbour discovery is in the
    # pod's own figures and not in the node's, since no router forwards it.
    is_reached = all(ending.result is Result.OK for ending in answer.internet)
    least_out = sure.bytes_out - ICMPV6_BYTES * sure.icmpv6_out if is_reached else 0
    least_in = sure.bytes_in - ICMPV6_BYTES * sure.icmpv6_in if is_reached else 0
    return (
        (max(0, least_out), sure.bytes_out + maybe.bytes_out),
        (max(0, least_in), sure.bytes_in + maybe.bytes_in),
    )


def _about(tested: NodeResult, planned: PlannedProbe) -> str:
    if planned.node in ("", tested.node):
        return f"node/{tested.node}"
    return f"node/{tested.node} to node/{planned.node}"


def _way(planned: PlannedProbe) -> str:
    probe = planned.probe
    if planned.pod:
        return f"the pod {planned.pod} at {probe.host}"
    if probe.by == "connect":
        return str(ProbeTarget(probe.host, probe.port))
    return f"IPv{_family(probe.host)} {probe.by.upper()}"


def _words(ending: Ending) -> str:
    words = {
        Result.NO_ANSWER: "no answer",
        Result.REFUSED: "refused",
        Result.STALLED: "broke off",
        Result.NO_NAME: "no such name",
        Result.OK: "it answers, and should not",
    }[ending.result]
    return f"{words} ({ending.reason})" if ending.reason else words


def _pass(tested: NodeResult, check: Check) -> None:
    # One failed probe fails its check, whichever comes last.
    if tested.states[check] is CheckState.SKIPPED:
        tested.states[check] = CheckState.OK


def _fail(tested: NodeResult, check: Check, message: str, remedy: str, about: str = "") -> None:
    tested.states[check] = CheckState.FAILED
    objects = (about or f"node/{tested.node}",)
    tested.findings.append(Finding(Severity.ERROR, message, remedy, check, objects))


def findings(tested: Iterable[NodeResult], others: Iterable[Finding]) -> list[Finding]:
    """All that was found, worst first; one cause on many Nodes is one finding."""
    return grouped([*others, *(finding for result in tested for finding in result.findings)])
