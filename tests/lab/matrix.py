"""Who reaches whom across a hub and its spokes, and as whom: the design, as probes to send.

| from, to | hub | own nodes, pods | own Services | another spoke | internet |
|---|---|---|---|---|---|
| researcher | | as itself | as the NAT host, or itself | | as itself |
| pod | as itself | as itself | as itself | dropped, counted | as its node |
| node | as itself | as itself | as itself | dropped, counted | as itself |

A spoke without a NAT gateway reaches the internet by the hub's router, and appears as that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from netmgr.documents.sites import HUB, Role, SourceAddress
from netmgr.prefixes import Address, Family
from tests.lab import services
from tests.lab.exchange import End
from tests.lab.nodes import LabNode
from tests.lab.topology import Spoke
from tests.lab.traffic import Protocol
from tests.lab.world import World

INTERNET_SITE = "internet"


class Who(StrEnum):
    """What kind of machine sends."""

    RESEARCHER = "researcher"
    POD = "pod"
    NODE = "node"


class Target(StrEnum):
    """What a probe is sent to."""

    RESEARCHER = "researcher"
    NODES = "nodes"
    PODS = "pods"
    SERVICES = "Services"
    INTERNET = "internet"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where probes come from. `machine` has the first rules on the way; empty without an agent."""

    site: str
    who: Who
    name: str
    machine: str
    ends: tuple[End, ...]

    def end(self, family: Family) -> End:
        return next(end for end in self.ends if end.address.family is family)


@dataclass(frozen=True, slots=True)
class Probe:
    """One packet exchange to attempt.

    Attributes:
        target: the address; `listeners` are the ends of which one receives it.
        expected_source: the address that the listener should see; None if nothing should arrive.
    """

    origin: Origin
    site: str
    kind: Target
    protocol: Protocol
    near: End
    target: Address
    port: int
    listeners: tuple[End, ...]
    expected_source: Address | None


@dataclass(frozen=True, slots=True)
class _Goal:
    kind: Target
    address: Address
    port: int
    listeners: tuple[End, ...]


def probes(world: World) -> list[Probe]:
    """Every cell of the matrix, in TCP and UDP, IPv4 and IPv6, for each machine that it covers."""
    found = {spoke.name: services.service(spoke, world.nodes) for spoke in world.topology.spokes}
    wanted: list[Probe] = []
    for origin, family in product(origins(world), Family):
        for site, goal in _goals(world, origin, family, found):
            expected_source = _expected_source(world, origin, site, goal)
            wanted += [
                Probe(
                    origin,
                    site,
                    goal.kind,
                    protocol,
                    origin.end(family),
                    goal.address,
                    goal.port,
                    goal.listeners,
                    expected_source,
                )
                for protocol in Protocol
            ]
    return wanted


def origins(world: World) -> Iterator[Origin]:
    """The researcher, then of each spoke its first pod and the node that runs it."""
    researcher = world.topology.researcher
    yield Origin(HUB, Who.RESEARCHER, researcher, "", tuple(_ends(world, researcher)))
    for spoke in world.topology.spokes:
        node = services.machines(world.nodes, spoke, Role.NODE)[0]
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
    """Every destination but the origin itself, with its site."""
    if origin.who is not Who.RESEARCHER:
        ends = _ends(world, world.topology.researcher)
        yield HUB, _at(Target.RESEARCHER, next(e for e in ends if e.address.family is family))
    for spoke in world.topology.spokes:
        for name, goal in _machines_of(world, spoke, family):
            if name != origin.name:
                yield spoke.name, goal
        yield from _service(origin, spoke, family, found[spoke.name])
    yield INTERNET_SITE, _at(Target.INTERNET, world.outside(family))


def _machines_of(world: World, spoke: Spoke, family: Family) -> Iterator[tuple[str, _Goal]]:
    """Each node of a spoke and the last of its pods, with their names."""
    for node in services.machines(world.nodes, spoke, Role.NODE):
        yield node.name, _at(Target.NODES, node.end(family))
        for pod in node.runtime.sandboxes()[-1:]:
            yield pod.pod.name, _at(Target.PODS, pod.end(family))


def _service(
    origin: Origin, spoke: Spoke, family: Family, found: services.Service
) -> Iterator[tuple[str, _Goal]]:
    """Services, but those that the origin itself serves: what it sees then is up to kube-proxy."""
    if found.backends and not any(pod.pod.name == origin.name for pod in found.backends):
        address = found.address(family, inside=origin.site == spoke.name)
        ends = tuple(pod.end(family) for pod in found.backends)
        yield spoke.name, _Goal(Target.SERVICES, address, services.PORT, ends)


def _at(kind: Target, end: End) -> _Goal:
    return _Goal(kind, end.address, services.TARGET_PORT, (end,))


def _expected_source(world: World, origin: Origin, site: str, goal: _Goal) -> Address | None:
    """The design's table: whose address the far end sees; None when nothing arrives."""
    family = goal.address.family
    own = origin.end(family).address
    if site == INTERNET_SITE:
        return _internet_client(world, origin, own)
    if HUB not in (origin.site, site) and origin.site != site:
        return None
    if origin.who is Who.RESEARCHER and goal.kind is Target.SERVICES:
        return _service_client(
            world, next(each for each in world.topology.spokes if each.name == site), own
        )
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
    if not services.proxies_itself(spoke, world.backend):
        return services.machines(world.nodes, spoke, Role.NODE)[0].node.address(client.family)
    if spoke.source is SourceAddress.PRESERVE:
        return client
    return world.node(spoke.nat_host).node.address(client.family)


def names(world: World) -> dict[Address, str]:
    """Whose address is whose."""
    found: dict[Address, str] = {}
    for host in world.topology.hosts:
        for end in world.topology.attached(host.name):
            found |= {own.address: host.name for own in end.addresses}
    for pod in world.pods():
        found |= dict.fromkeys(pod.addresses, pod.pod.name)
    return found


def machines(world: World) -> list[LabNode]:
    """Every machine with rules that keep sites apart."""
    return [node for node in world.nodes if node.node.site]
