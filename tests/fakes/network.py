"""A whole lab on paper: packets follow its routes from machine to machine, past every machine's
rules.

The rules are those that each machine's document asks for, held by the fake kernel. What is no
rule of netmgr's is played here: routing and kube-proxy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from netmgr.documents.node import Backend, NodeDocument
from netmgr.documents.sites import Role, SourceAddress
from netmgr.plan.document import ServiceMode
from netmgr.prefixes import Address, Family, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from netmgr.rules.policy import Policy
from tests.fakes.passage import FORWARDED, RECEIVED, Packet
from tests.fakes.rules import FakeBackend
from tests.lab import planned, services
from tests.lab.runtime import Sandbox
from tests.lab.topology import Node, Pod, Topology

OTHER_KINDS = (
    planned.Kind(ServiceMode.SHARED, SourceAddress.PRESERVE),
    planned.Kind(ServiceMode.UNIQUE, SourceAddress.SNAT, gateway=False),
    planned.Kind(ServiceMode.SHARED, SourceAddress.SNAT, gateway=False),
)
"""What the default spokes do not show."""

MOST_HOPS = 16
BEFORE_ROUTING = (Hook.PREROUTING, Hook.DSTNAT)
SENT = (
    Hook.OUTPUT,
    Hook.DSTNAT,
    Hook.BEFORE_SRCNAT,
    Hook.POSTROUTING,
    Hook.DEPARTURE,
)
"""As the kernel's, and kube-proxy's translation of what the machine itself sends."""


@dataclass(frozen=True)
class PaperNode:
    """What a lab's node says of itself, without a kernel."""

    node: Node
    pods: tuple[Sandbox, ...]

    @property
    def name(self) -> str:
        return self.node.host

    @property
    def namespace(self) -> Path:
        return Path(self.name)

    @property
    def runtime(self) -> SimpleNamespace:
        return SimpleNamespace(sandboxes=lambda: list(self.pods))


@dataclass(frozen=True)
class PaperWorld:
    """What the matrix asks of a lab: pods have the first addresses of their node's ranges."""

    topology: Topology
    backend: Backend

    @cached_property
    def nodes(self) -> list[PaperNode]:
        return [
            PaperNode(node, tuple(_pods(node, self.topology.pods))) for node in self.topology.nodes
        ]

    def node(self, name: str) -> PaperNode:
        return next(node for node in self.nodes if node.name == name)

    def namespace(self, host: str) -> Path:
        return Path(host)

    @property
    def internet(self) -> Path:
        return Path(self.topology.internet)

    def pods(self) -> list[Sandbox]:
        return [pod for node in self.nodes for pod in node.pods]


def _pods(node: Node, pods: Sequence[Pod]) -> Iterator[Sandbox]:
    own = [pod for pod in pods if pod.node == node.host]
    for number, pod in enumerate(own):
        first = {
            family: next(block for block in node.ranges if block.family is family)
            for family in Family
        }
        addresses = tuple(Address(family, block.value + number) for family, block in first.items())
        yield Sandbox(pod, pod.name, pod.name, Path(pod.name), addresses)


@dataclass(frozen=True)
class Journey:
    """Where a packet came to: the host or pod that got it, or the machine and counter that dropped
    it.
    """

    src: Address
    dst: Address
    reached: str = ""
    dropped_at: str = ""
    dropped_by: str = ""
    way: tuple[str, ...] = ()


@dataclass
class Machine:
    """One host with an agent: its rules, and whom its kube-proxy sends where."""

    node: Node
    kernel: FakeBackend
    elsewhere: Callable[[Address], Address]
    hides: bool = False
    hidden: dict[tuple[Address, Address], Address] = field(default_factory=dict)

    def own(self, family: Family) -> Address:
        return self.node.address(family)


class PaperNetwork:
    """The lab's routes, with every machine's rules in force but those of `lawless` machines."""

    def __init__(self, world: PaperWorld, lawless: Iterable[str] = ()) -> None:
        self._topology = world.topology
        self._pods = {address: pod for pod in world.pods() for address in pod.addresses}
        self._owners = {
            own.address: host.name
            for host in world.topology.hosts
            for end in world.topology.attached(host.name)
            for own in end.addresses
        }
        self._hosts = {host.name: host for host in world.topology.hosts}
        self.machines = {
            node.host: self._machine(world, node, in_force=node.host not in lawless)
            for node in world.topology.nodes
        }

    def _machine(self, world: PaperWorld, node: Node, *, in_force: bool) -> Machine:
        # As in a lab, a host that preserves clients' addresses has nftables.
        preserves = node.document.get("nat", {}).get("source") == SourceAddress.PRESERVE
        kernel = FakeBackend(rewrites=preserves or world.backend is not Backend.IPTABLES_LEGACY)
        if in_force:
            rules = Rules(kernel, Policy.of(NodeDocument.model_validate(node.document)))
            pods = [address for address, pod in self._pods.items() if pod.pod.node == node.host]
            rules.apply(rules.plan(pods))
        return Machine(node, kernel, _elsewhere(world, node), hides=node.role is Role.NODE)

    def forget(self) -> None:
        """End every connection: the fake tells them by their addresses alone."""
        for machine in self.machines.values():
            machine.kernel.connections.clear()
            machine.hidden.clear()

    def send(self, origin: str, src: Address, dst: Address) -> Journey:
        """Send one packet from a host, or from a pod by its name."""
        pod = self._pods.get(src)
        if pod is not None and pod.pod.name == origin:
            return self._travel(Journey(src, dst), pod.pod.node, f"nm{origin}")
        return self._travel(Journey(src, dst), origin, "")

    def _travel(self, journey: Journey, host: str, iif: str) -> Journey:
        for _ in range(MOST_HOPS):
            journey = replace(journey, way=(*journey.way, host))
            journey, onward = self._pass(journey, host, iif)
            if onward is None:
                return journey
            host, iif = onward
        return replace(journey, dropped_by="hops")

    def _pass(
        self, journey: Journey, host: str, iif: str
    ) -> tuple[Journey, tuple[str, str] | None]:
        """Past one host; returns the next and the link it comes in by, None at the end."""
        machine = self.machines.get(host)
        if machine is None:
            arrived = self._owners.get(journey.dst) == host
            return (
                (replace(journey, reached=host), None)
                if arrived
                else (journey, self._next(host, journey.dst, iif))
            )
        dst = machine.hidden.get((journey.src, journey.dst), journey.dst)
        packet = Packet(journey.src, dst, iif=iif, way_back=iif)
        target = _routed(machine, packet, iif)
        here = self._owners.get(target) == host
        hooks = RECEIVED if here else FORWARDED if iif else SENT
        pod = self._pods.get(target)
        local = pod is not None and pod.pod.node == host
        outcome = machine.kernel.send(
            replace(
                packet,
                hooks=hooks,
                oif="" if here else f"nm{pod.pod.name}" if local and pod else "eth0",
                own=machine.own(dst.family),
                elsewhere=machine.elsewhere,
            )
        )
        if outcome.dropped_by:
            return replace(journey, dropped_at=host, dropped_by=outcome.dropped_by), None
        src = self._hide(machine, journey, outcome.src, outcome.dst)
        journey = replace(journey, src=src, dst=outcome.dst)
        if here:
            return replace(journey, reached=host), None
        if local and pod:
            return replace(journey, reached=pod.pod.name), None
        return journey, self._next(host, outcome.dst, iif)

    @staticmethod
    def _hide(machine: Machine, before: Journey, src: Address, dst: Address) -> Address:
        """Kube-proxy hides clients that are not of the cluster."""
        if not machine.hides or machine.elsewhere(before.dst) == before.dst or src != before.src:
            return src
        if any(block.holds(src) for block in machine.node.ranges):
            return src
        machine.hidden[dst, machine.own(dst.family)] = src
        return machine.own(dst.family)

    def _next(self, host: str, dst: Address, iif: str) -> tuple[str, str] | None:
        """Whom a host's routes give a packet, and by which of its links it arrives there."""
        via = self._via(host, dst, iif)
        if via is None or via not in self._owners:
            return None
        following = self._owners[via]
        if host in (self._topology.internet, "fabric") or following != "fabric":
            return following, "eth0" if following != "fabric" else "internet"
        return following, next(
            end.segment for end in self._topology.interfaces() if end.name == host
        )

    def _via(self, host: str, dst: Address, iif: str) -> Address | None:
        """The next hop: the destination itself when it is on a link."""
        known = self._hosts[host]
        for table in known.tables:
            if table.arriving_on == iif and (
                hop := _longest(((r.to, r.via) for r in table.routes), dst)
            ):
                return hop
        near = [(net, dst) for end in self._topology.attached(host) for net in end.networks]
        machine = self.machines.get(host)
        listed = machine.node.document.get("routes", ()) if machine else ()
        planned = [(Prefix.parse(route["to"]), Address.parse(route["via"])) for route in listed]
        return _longest([*near, *planned, *((route.to, route.via) for route in known.routes)], dst)


def _longest(hops: Iterable[tuple[Prefix, Address]], dst: Address) -> Address | None:
    fitting = [(prefix.length, hop) for prefix, hop in hops if prefix.holds(dst)]
    return max(fitting, key=lambda each: each[0])[1] if fitting else None


def _routed(machine: Machine, packet: Packet, iif: str) -> Address:
    """The destination that the packet is routed by: translations before routing are done.

    Tried on a copy that knows the connections and forgets this one; what it counts is of no matter
    here.
    """
    if not iif:
        return machine.elsewhere(packet.dst)
    trial = copy.copy(machine.kernel)
    trial.connections = list(machine.kernel.connections)
    return trial.send(replace(packet, hooks=BEFORE_ROUTING, elsewhere=machine.elsewhere)).dst


def _elsewhere(world: PaperWorld, node: Node) -> Callable[[Address], Address]:
    """What translates Services at this machine beside netmgr's rules."""
    spoke = next((each for each in world.topology.spokes if each.name == node.site), None)
    if spoke is None:
        return lambda address: address
    found = services.service(spoke, world.nodes)
    ends: Mapping[Family, Address] = {
        family: found.backends[0].address(family) for family in Family
    }
    if node.role is Role.NODE:
        known = set(found.addresses)
    else:
        known = set(found.addresses) if services.proxies_itself(spoke, world.backend) else set()
    return lambda address: ends[address.family] if address in known else address
