"""What the pods of a lab send to whom, and how much of it is internet traffic.

Every pod talks UDP and TCP, v4 and v6, both ways, to four peers: the internet host, a pod of
its own node, a pod of another node, and its node. Only the first is internet. UDP is known to
the byte because every datagram was made here; TCP is what the capture at the internet host
saw of the connection, handshake and acknowledgements included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice, product

from netmgr.model import Traffic
from netmgr.prefixes import Family
from tests.lab.capture import Capture, Flow, Tally
from tests.lab.errors import LabError
from tests.lab.exchange import End, Heard, datagrams, stream
from tests.lab.runtime import Sandbox
from tests.lab.world import World

DATAGRAMS = 200
SIZES_OUT = (1, 64, 512, 1200, 1452)
"""Payloads in bytes; the largest is the most that a v6 packet of 1,500 bytes can carry."""

SIZES_IN = (1452, 9, 300)
STREAM_OUT = 300_000
STREAM_IN = 700_000


class Protocol(StrEnum):
    """What carries a conversation."""

    UDP = "UDP"
    TCP = "TCP"


class Peer(StrEnum):
    """The other end of a conversation."""

    INTERNET = "internet"
    SAME_NODE = "pod on the same node"
    OTHER_NODE = "pod on another node"
    NODE = "its node"


@dataclass(frozen=True, slots=True)
class Talk:
    pod: Sandbox
    peer: Peer
    protocol: Protocol
    near: End
    far: End


@dataclass(frozen=True, slots=True, order=True)
class Column:
    """What one number of the comparison is about: a pod, and a direction of internet traffic."""

    namespace: str
    pod: str
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent: internet traffic by pod and direction, and each pod's internal bytes."""

    internet: dict[Column, Tally]
    internal: dict[str, int]


def plan(world: World) -> list[Talk]:
    """Every conversation of every pod that runs in `world`."""
    pods = world.pods()
    talks: list[Talk] = []
    for pod in pods:
        talks += _talks(world, pod, pods)
    return talks


def _talks(world: World, pod: Sandbox, pods: list[Sandbox]) -> Iterator[Talk]:
    for family in sorted({address.family for address in pod.addresses}):
        near = pod.end(family)
        for peer, far in _peers(world, pod, pods, family):
            for protocol in Protocol:
                yield Talk(pod, peer, protocol, near, far)


def _peers(
    world: World, pod: Sandbox, pods: list[Sandbox], family: Family
) -> Iterator[tuple[Peer, End]]:
    node = world.node(pod.pod.node)
    yield Peer.INTERNET, world.outside(family)
    yield Peer.NODE, node.end(family)
    sites = {each.name: each.node.site for each in world.nodes}
    neighbours: list[Sandbox] = []
    strangers: list[Sandbox] = []
    for other in pods:
        if other == pod:
            continue
        if other.pod.node == node.name:
            neighbours.append(other)
        elif sites[other.pod.node] == node.node.site:
            # Of the pod's own site: what crosses to another spoke is dropped.
            strangers.append(other)
    for peer, others in ((Peer.SAME_NODE, neighbours), (Peer.OTHER_NODE, strangers)):
        if others:
            # Spread over all, so that no pod is everybody's peer.
            other = others[pods.index(pod) % len(others)]
            yield peer, other.end(family)


def drive(world: World, talks: Iterable[Talk]) -> Sent:
    """Have every conversation, one after the other."""
    internal: defaultdict[str, int] = defaultdict(int)
    owners: dict[tuple[Flow, ...], Sandbox] = {}
    sent: dict[Flow, Tally] = {}
    with Capture(world.internet, _interface(world)) as capture:
        for talk in talks:
            heard = _have(talk)
            if talk.peer is Peer.INTERNET:
                flows = _flows(talk, heard)
                owners[flows] = talk.pod
                if talk.protocol is Protocol.UDP:
                    # TCP is left out: what its handshake and acknowledgements took, only the
                    # capture knows.
                    sent |= dict(zip(flows, (heard.forth, heard.back), strict=True))
            else:
                internal[talk.pod.pod.name] += heard.forth.bytes + heard.back.bytes
            # After each conversation, so that the socket's queue never holds more than one.
            capture.drain()
        capture.settle()
        seen = capture.flows()
    _compare_datagrams(sent, seen)
    return Sent(_by_pod(owners, seen), dict(internal))


def _have(talk: Talk) -> Heard:
    if talk.protocol is Protocol.TCP:
        return stream(talk.near, talk.far, STREAM_OUT, STREAM_IN)
    forth, back = (list(islice(cycle(sizes), DATAGRAMS)) for sizes in (SIZES_OUT, SIZES_IN))
    return datagrams(talk.near, talk.far, forth, back)


def _flows(talk: Talk, heard: Heard) -> tuple[Flow, Flow]:
    """What the capture calls this conversation: out first, then in."""
    out = Flow(talk.protocol, heard.peer, heard.port, heard.server_port, Traffic.INTERNET_OUT)
    return out, out._replace(traffic=Traffic.INTERNET_IN)


def _interface(world: World) -> str:
    return next(
        end.name for end in world.topology.interfaces() if end.host == world.topology.internet
    )


def _compare_datagrams(sent: dict[Flow, Tally], seen: dict[Flow, Tally]) -> None:
    """The two independent measures of UDP must agree, or neither can be trusted."""
    for flow, tally in sent.items():
        if seen.get(flow) != tally:
            raise LabError(f"the capture saw {seen.get(flow)} of {flow}, but {tally} was sent")


def _by_pod(
    owners: dict[tuple[Flow, ...], Sandbox], seen: dict[Flow, Tally]
) -> dict[Column, Tally]:
    totals: defaultdict[Column, Tally] = defaultdict(Tally)
    pod_of = {flow: sandbox.pod for flows, sandbox in owners.items() for flow in flows}
    for flow, tally in seen.items():
        if (pod := pod_of.get(flow)) is None:
            raise LabError(
                f"{flow} passed the internet host, but no pod of this run sent it; "
                "does something else use the lab?"
            )
        totals[Column(pod.namespace, pod.name, flow.traffic)] += tally
    for pod, traffic in product({sandbox.pod for sandbox in owners.values()}, Traffic):
        # A pod that sent nothing must be compared, too: a counter that moves by itself is a fault.
        totals.setdefault(Column(pod.namespace, pod.name, traffic), Tally())
    return dict(totals)
