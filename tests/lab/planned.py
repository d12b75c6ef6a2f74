"""A lab with a hub and spokes: an address plan of its own, and the world that follows from it.

    researcher ─┐                        ┌─ spoke-1: nodes, NAT host, a rogue
    router-0.hub┴─ fabric (the cloud) ───┼─ spoke-2: the same Service range as spoke-1
                     │                   └─ spoke-3: a Service range of its own
                  internet

Every address, range and route is the plan's. Of each three spokes, two have the same Service range
inside and a NAT host whose address their Services see, the third has a range of its own and
preserves clients' addresses.

Each site is one bridge of the fabric, which is its gateway and routes as the cloud does: pods'
blocks to their nodes, Services to their NAT host. The fabric isolates nothing. What one spoke
sends to another it passes to the hub's router, as a cloud does whose `None` routes are overridden,
so that only the rules of nodes, NAT hosts and router isolate. A `rogue` is a machine of a spoke
without an agent: it shows what the others' rules do alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

from netmgr.documents.node import NodeDocument
from netmgr.documents.sites import HUB, Role, SourceAddress
from netmgr.errors import ConfigError
from netmgr.plan import files
from netmgr.plan.document import PlanDocument, ServiceMode
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from netmgr.plan.render.node import Documents
from netmgr.prefixes import Address, Family, Prefix
from tests.builders import PLAN_KEYS
from tests.lab.topology import (
    BESIDE_INTERNET,
    EVERYTHING,
    INTERNET_NETWORKS,
    Host,
    Interface,
    InterfaceAddress,
    Link,
    Node,
    Pod,
    Route,
    RouteTable,
    Segment,
    Shown,
    Spoke,
    Topology,
    internet_link,
)

RESEARCHER, FABRIC, INTERNET_HOST, UPLINK = "researcher", "fabric", "internet", "eth0"
POOL = "cpu"
_GATEWAY, _FIRST_USABLE = 1, 4
_ROGUE = {Family.V4: -2, Family.V6: 0xFF00}
"""Offset in a subnet, from its end if negative: no node is there until the cluster is upgraded."""

MAX_SPOKES = 8
MAX_NODES = 8
MAX_PODS = 12
"""A node of a planned lab has one /28, with room for pods that come and go."""


class Kind(NamedTuple):
    """How a spoke exposes its Services, and whether it has a NAT gateway of its own."""

    mode: ServiceMode
    source: SourceAddress
    gateway: bool = True


KINDS = (
    Kind(ServiceMode.SHARED, SourceAddress.SNAT),
    Kind(ServiceMode.SHARED, SourceAddress.SNAT),
    Kind(ServiceMode.UNIQUE, SourceAddress.PRESERVE),
)
"""The spokes, in turn."""

OTHER_KINDS = (
    Kind(ServiceMode.SHARED, SourceAddress.PRESERVE),
    Kind(ServiceMode.UNIQUE, SourceAddress.SNAT, gateway=False),
    Kind(ServiceMode.SHARED, SourceAddress.SNAT, gateway=False),
)
"""Spokes of the combinations that those do not have."""


def plan(spokes: int, nodes: int, kinds: Sequence[Kind] = KINDS) -> PlanDocument:
    if not 1 <= spokes <= MAX_SPOKES or not 1 <= nodes <= MAX_NODES:
        raise ConfigError(
            f"a lab has 1 to {MAX_SPOKES} spokes with 1 to {MAX_NODES} nodes each, "
            f"not {spokes} with {nodes}"
        )
    clusters = {
        f"spoke-{number + 1}": _cluster(nodes, kinds[number % len(kinds)])
        for number in range(spokes)
    }
    return PlanDocument.model_validate(
        {
            **PLAN_KEYS,
            "name": "lab",
            "pools": {
                "nodes": ["10.64.0.0/12", "fd00:64::/40"],
                "services": ["172.16.0.0/16", "fd00:61::/96"],
            },
            "shared_services": ["100.64.0.0/24", "fd00:60::/112"],
            "hub": {"researchers": 4, "routers": 1},
            "clusters": clusters,
        }
    )


def _cluster(nodes: int, kind: Kind) -> dict[str, Any]:
    return {
        "nat_hosts": 1,
        "nat_gateway_ips": int(kind.gateway),
        "services": {"mode": kind.mode, "length": 24, "source": kind.source},
        "node_pools": {POOL: {"nodes": nodes, "pods_per_node": 16, "surge": 1}},
    }


def lock(planned: PlanDocument) -> LockDocument:
    return make_lock(planned, None, files.load_limits(planned.cloud))


def network(spokes: int, nodes: int, pods: int, kinds: Sequence[Kind] = KINDS) -> Topology:
    """A hub and `spokes` spokes, each with `nodes` nodes that run `pods` pods."""
    if not 0 <= pods <= MAX_PODS:
        raise ConfigError(f"a lab with spokes has up to {MAX_PODS} pods a node, not {pods}")
    asked = plan(spokes, nodes, kinds)
    return _Builder(asked, lock(asked), pods).topology()


@dataclass(frozen=True)
class _Machine:
    """A machine: its site, its addresses, and its agent's node.yaml if it has an agent."""

    name: str
    site: str
    addresses: tuple[InterfaceAddress, ...]
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> tuple[Address, ...]:
        return tuple(each.address for each in self.addresses)


@dataclass(frozen=True)
class _Builder:
    """Derives a topology from one plan and its lock."""

    plan: PlanDocument
    lock: LockDocument
    pods: int

    def topology(self) -> Topology:
        nodes = [self._node(machine) for machine in self._machines if machine.document]
        return Topology(
            internet=INTERNET_HOST,
            hosts=(
                Host(INTERNET_HOST, tuple(self._inward())),
                Host(
                    FABRIC,
                    tuple(self._routes(self._spokes)),
                    forwards=True,
                    tables=tuple(self._tables()),
                ),
                *map(self._host, self._machines),
            ),
            links=(internet_link(), *map(self._link, self._machines)),
            nodes=tuple(nodes),
            pods=tuple(self._pods(nodes)),
            segments=tuple(
                Segment(FABRIC, site, tuple(self._gateways(site))) for site in self._subnets
            ),
            spokes=self._spokes,
            researcher=RESEARCHER,
        )

    @cached_property
    def _subnets(self) -> dict[str, tuple[Prefix, ...]]:
        """The machines' subnets by site; those of hub routers and NAT hosts come first."""
        hub = self.lock.hub
        found = {
            HUB: (
                *hub.routers.prefixes,
                *chain.from_iterable(each.prefixes for each in hub.researchers),
            )
        }
        for name, held in self.lock.clusters.items():
            segments = chain.from_iterable(pool.segments for pool in held.node_pools.values())
            layouts = chain.from_iterable(segment.layouts for segment in segments)
            # The cloud answers for pods' addresses itself, which a bridge does not do.
            own = chain.from_iterable(layout.below_pods for layout in layouts)
            found[name] = (*held.nat.prefixes, *own)
        return found

    @cached_property
    def _documents(self) -> dict[str, dict[str, Any]]:
        documents = Documents(self.plan, self.lock)
        every = {machine.name: documents.of(machine) for machine in documents.machines()}
        sites = [HUB, *self.lock.clusters]
        # By site, so that pictures and tables show a site's machines together.
        ordered = sorted(every, key=lambda name: sites.index(every[name]["site"]))
        return {name: every[name] for name in ordered}

    @cached_property
    def _spokes(self) -> tuple[Spoke, ...]:
        return tuple(map(self._spoke, self.lock.clusters))

    def _spoke(self, name: str) -> Spoke:
        services = self.plan.clusters[name].services
        host, nat = next(
            (host, document["nat"])
            for host, document in self._documents.items()
            if document["site"] == name and "nat" in document
        )
        site = next(each for each in self._documents[host]["sites"] if each["name"] == name)
        return Spoke(
            name,
            prefixes=tuple(map(Prefix.parse, site["prefixes"])),
            nat_host=host,
            services=tuple(
                Shown(Prefix.parse(one["vip_range"]), Prefix.parse(one["service_cidr"]))
                for one in nat["services"]
            ),
            source=services.source,
            gateway=bool(self.plan.clusters[name].nat_gateway_ips),
            rogues=(f"rogue.{name}",),
        )

    @cached_property
    def _machines(self) -> tuple[_Machine, ...]:
        return (
            _Machine(RESEARCHER, HUB, tuple(self._researcher())),
            *(self._placed(name, document) for name, document in self._documents.items()),
            *(
                _Machine(name, spoke.name, tuple(self._rogue(spoke.name)))
                for spoke in self._spokes
                for name in spoke.rogues
            ),
        )

    def _researcher(self) -> Iterator[InterfaceAddress]:
        for subnet in self.lock.hub.researchers[0].prefixes:
            yield InterfaceAddress(
                Address(subnet.family, subnet.value + _FIRST_USABLE), subnet.length
            )

    def _rogue(self, site: str) -> Iterator[InterfaceAddress]:
        """One among the first nodes of the cluster."""
        pool = self.lock.clusters[site].node_pools[POOL]
        for subnet in (layout.below_pods[0] for layout in pool.segments[0].layouts):
            place = _ROGUE[subnet.family]
            yield InterfaceAddress(
                Address(subnet.family, subnet.value + place % subnet.size), subnet.length
            )

    def _placed(self, name: str, document: dict[str, Any]) -> _Machine:
        site = document["site"]
        addresses = map(Address.parse, document["node"]["addresses"])
        placed = (
            InterfaceAddress(
                address, next(net.length for net in self._subnets[site] if net.holds(address))
            )
            for address in addresses
        )
        return _Machine(name, site, tuple(placed), document)

    def _node(self, machine: _Machine) -> Node:
        parsed = NodeDocument.model_validate(machine.document)
        return Node(
            machine.name,
            UPLINK,
            machine.own,
            ranges=parsed.ranges,
            role=parsed.role,
            site=machine.site,
            document=machine.document,
        )

    def _pods(self, nodes: Sequence[Node]) -> Iterator[Pod]:
        running = [node for node in nodes if node.role is Role.NODE]
        for place, node in enumerate(running):
            for number in range(self.pods):
                yield Pod(f"pod-{place * self.pods + number + 1}", node.host)

    def _gateways(self, site: str) -> Iterator[InterfaceAddress]:
        for subnet in self._subnets[site]:
            yield InterfaceAddress(Address(subnet.family, subnet.value + _GATEWAY), subnet.length)

    def _link(self, machine: _Machine) -> Link:
        own = {each.network for each in machine.addresses}
        beside = tuple(net for net in self._subnets[machine.site] if net not in own)
        return Link(
            (
                Interface(FABRIC, machine.name, segment=machine.site),
                Interface(machine.name, UPLINK, machine.addresses, beside),
            )
        )

    def _host(self, machine: _Machine) -> Host:
        """Everything goes by the gateway; a NAT host leaves the Services inside to a kube-proxy."""
        near = {own.network for own in machine.addresses}
        gateways = {
            own.address.family: own.address
            for own in self._gateways(machine.site)
            if own.network in near
        }
        # Hosts know no route of their own: as in a cloud, the fabric decides.
        routes = [Route(prefix, gateways[prefix.family]) for prefix in EVERYTHING]
        for spoke in self._spokes:
            if spoke.nat_host == machine.name:
                routes += [
                    Route(each.service_cidr, self._proxy(spoke.name, each.service_cidr.family))
                    for each in spoke.services
                ]
        return Host(machine.name, tuple(routes))

    def _proxy(self, site: str, family: Family) -> Address:
        """A node of the site, whose kube-proxy serves what the NAT host sends it."""
        name = next(n for n, d in self._documents.items() if d["site"] == site and "ranges" in d)
        return next(
            a
            for a in map(Address.parse, self._documents[name]["node"]["addresses"])
            if a.family is family
        )

    def _routes(self, spokes: Sequence[Spoke]) -> Iterator[Route]:
        """The fabric's: pods by their nodes, Services by their NAT hosts."""
        for machine in self._machines:
            for text in machine.document.get("ranges", ()):
                prefix = Prefix.parse(text)
                yield Route(prefix, next(own for own in machine.own if own.family is prefix.family))
        for spoke in spokes:
            for shown in spoke.services:
                yield Route(shown.vip_range, self._address(spoke.nat_host, shown.vip_range.family))

    def _tables(self) -> Iterator[RouteTable]:
        """What spokes send each other, or the internet without a gateway, goes by the router."""
        roles = {name: document.get("role") for name, document in self._documents.items()}
        router = next(name for name, role in roles.items() if role == Role.HUB_ROUTER)
        for spoke in self._spokes:
            routes = tuple(self._routes_by(router, self._outside(spoke)))
            yield RouteTable(spoke.name, routes)
        # Where answers to the hub pass the NAT host, requests must pass it too: connection tracking
        # that sees one direction alone would fill up with half-open connections.
        both_ways = [
            self._routes_by(spoke.nat_host, spoke.prefixes)
            for spoke in self._spokes
            if spoke.source is SourceAddress.PRESERVE
        ]
        yield RouteTable(HUB, tuple(chain.from_iterable(both_ways)))

    def _outside(self, spoke: Spoke) -> Iterator[Prefix]:
        """What a spoke reaches by the hub's router."""
        if not spoke.gateway:
            yield from INTERNET_NETWORKS
        for other in self._spokes:
            if other is not spoke:
                yield from other.prefixes
                yield from (shown.vip_range for shown in other.services)

    def _routes_by(self, host: str, prefixes: Iterable[Prefix]) -> Iterator[Route]:
        for prefix in prefixes:
            yield Route(prefix, self._address(host, prefix.family))

    def _address(self, host: str, family: Family) -> Address:
        machine = next(each for each in self._machines if each.name == host)
        return next(own for own in machine.own if own.family is family)

    def _inward(self) -> Iterator[Route]:
        """The internet answers machines by their own addresses; it knows no way to a pod."""
        for subnet in chain.from_iterable(self._subnets.values()):
            yield Route(subnet, BESIDE_INTERNET[subnet.family])
