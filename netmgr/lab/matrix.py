"""Who reaches whom across a hub and its spokes, and as whom: what the design says, as probes to send.

| from, to | hub | own nodes, pods | own Services | another spoke | internet |
|---|---|---|---|---|---|
| researcher | | as itself | as the NAT host, or itself | | as itself |
| pod | as itself | as itself | as itself | dropped, counted | as its node |
| node | as itself | as itself | as itself | dropped, counted | as itself |

A spoke without a NAT gateway reaches the internet by the hub's router, and is seen as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from netmgr.lab import services
from netmgr.lab.exchange import End
from netmgr.lab.nodes import LabNode
from netmgr.lab.runtime import Sandbox
from netmgr.lab.topology import INTERNET, Spoke
from netmgr.lab.traffic import Protocol
from netmgr.lab.world import World
from netmgr.prefixes import Address, Family
from netmgr.sites import HUB, Role, SourceAddress

INTERNET_SITE = "internet"


class Who(StrEnum):
    """What kind of machine speaks."""

    RESEARCHER = "researcher"
    POD = "pod"
    NODE = "node"


class Target(StrEnum):
    """What of a site is spoken to."""

    RESEARCHER = "researcher"
    NODES = "nodes"
    PODS = "pods"
    SERVICES = "Services"
    INTERNET = "internet"


@dataclass(frozen=True, slots=True)
class Origin:
    """Somebody who speaks. `machine` is whose rules see it first; empty where no agent runs."""

    site: str
    who: Who
    name: str
    machine: str
    ends: tuple[End, ...]

    def end(self, family: Family) -> End:
        """Where it speaks from."""
        return next(end for end in self.ends if end.address.family is family)


@dataclass(frozen=True, slots=True)
class Probe:
    """One packet exchange to attempt.

    Attributes:
        target: address that is spoken to; `listeners` are the ends of which one hears it.
        seen: the address the listener shall see; None when nothing shall arrive.
    """

    origin: Origin
    site: str
    kind: Target
    protocol: Protocol
    near: End
    target: Address
    port: int
    listeners: tuple[End, ...]
    seen: Address | None


@dataclass(frozen=True, slots=True)
class _Goal:
    """One thing to speak to, in one family."""

    kind: Target
    address: Address
    port: int
    listeners: tuple[End, ...]


def probes(world: World) -> list[Probe]:
    """Every cell of the matrix, in TCP and UDP, IPv4 and IPv6, as often as there are such machines."""
    found = {spoke.name: services.service(world, spoke) for spoke in world.topology.spokes}
    return [
        Probe(origin, site, goal.kind, protocol, origin.end(family), goal.address, goal.port, goal.listeners, seen)
        for origin, family in product(origins(world), Family)
        for site, goal in _goals(world, origin, family, found)
        for seen in [_seen_as(world, origin, site, goal)]
        for protocol in Protocol
    ]


def origins(world: World) -> Iterator[Origin]:
    """The researcher, then of each spoke its first pod and the node that runs it."""
    researcher = world.topology.researcher
    yield Origin(HUB, Who.RESEARCHER, researcher, "", tuple(_ends(world, researcher)))
    for spoke in world.topology.spokes:
        node = services.machines(world, spoke, Role.NODE)[0]
        for pod in node.runtime.sandboxes()[:1]:
            ends = tuple(End(pod.netns, address) for address in pod.addresses)
            yield Origin(spoke.name, Who.POD, pod.pod.name, node.name, ends)
        yield Origin(spoke.name, Who.NODE, node.name, node.name, tuple(_ends(world, node.name)))


def _ends(world: World, host: str) -> Iterator[End]:
    for family in Family:
        yield End(world.namespace(host), world.topology.address(host, family))


def _goals(
    world: World, origin: Origin, family: Family, found: dict[str, services.Service]
) -> Iterator[tuple[str, _Goal]]:
    if origin.who is not Who.RESEARCHER:
        yield HUB, _at(Target.RESEARCHER, next(e for e in _ends(world, world.topology.researcher) if _is(e, family)))
    for spoke in world.topology.spokes:
        for node in services.machines(world, spoke, Role.NODE):
            if node.name != origin.name:
                yield spoke.name, _at(Target.NODES, End(node.namespace, node.node.address(family)))
            for pod in node.runtime.sandboxes()[-1:]:
                if pod.pod.name != origin.name:
                    yield spoke.name, _at(Target.PODS, End(pod.netns, pod.address(family)))
        yield from _service(origin, spoke, family, found[spoke.name])
    yield INTERNET_SITE, _at(Target.INTERNET, End(world.internet, INTERNET[family]))


def _service(origin: Origin, spoke: Spoke, family: Family, found: services.Service) -> Iterator[tuple[str, _Goal]]:
    """A Service that the origin itself serves is left out: what it sees then is kube-proxy's affair."""
    if found.backends and not any(pod.pod.name == origin.name for pod in found.backends):
        address = found.address(family, inside=origin.site == spoke.name)
        ends = tuple(End(pod.netns, pod.address(family)) for pod in found.backends)
        yield spoke.name, _Goal(Target.SERVICES, address, services.PORT, ends)


def _at(kind: Target, end: End) -> _Goal:
    return _Goal(kind, end.address, services.TARGET_PORT, (end,))


def _is(end: End, family: Family) -> bool:
    return end.address.family is family


def _seen_as(world: World, origin: Origin, site: str, goal: _Goal) -> Address | None:
    """The design's table: whose address the far end sees; None when nothing arrives."""
    family = goal.address.family
    own = origin.end(family).address
    if site == INTERNET_SITE:
        return _internet_client(world, origin, own)
    if HUB not in (origin.site, site) and origin.site != site:
        return None
    if origin.who is Who.RESEARCHER and goal.kind is Target.SERVICES:
        return _service_client(world, next(each for each in world.topology.spokes if each.name == site), own)
    return own


def _internet_client(world: World, origin: Origin, own: Address) -> Address:
    """Whom the internet sees: the last machine on the way that masquerades."""
    by_hub = [spoke.name for spoke in world.topology.spokes if not spoke.gateway]
    if origin.site in by_hub:
        router = next(node for node in world.nodes if node.node.role is Role.HUB_ROUTER)
        return router.node.address(own.family)
    return world.node(origin.machine).node.address(own.family) if origin.who is Who.POD else own


def _service_client(world: World, spoke: Spoke, client: Address) -> Address:
    """Whom a Service's endpoint sees of a researcher."""
    if not services.proxies_itself(world, spoke):
        return services.machines(world, spoke, Role.NODE)[0].node.address(client.family)
    if spoke.source is SourceAddress.PRESERVE:
        return client
    return world.node(spoke.nat_host).node.address(client.family)


def names(world: World) -> dict[Address, str]:
    """Whose address is whose."""
    hosts: Sequence[str] = [host.name for host in world.topology.hosts]
    own = {own.address: host for host in hosts for end in world.topology.attached(host) for own in end.addresses}
    pods: Sequence[Sandbox] = world.pods()
    return own | {address: pod.pod.name for pod in pods for address in pod.addresses}


def machines(world: World) -> list[LabNode]:
    """Every machine with rules that keep sites apart."""
    return [node for node in world.nodes if node.node.site]
