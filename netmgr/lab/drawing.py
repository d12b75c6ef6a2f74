"""A hub and its spokes, drawn from an address plan and its lock: every address, range and route is the plan's.

    researcher ─┐                        ┌─ spoke-1: nodes, NAT host, a rogue
    router-0.hub┴─ fabric (the cloud) ───┼─ spoke-2: the same Service range as spoke-1
                     │                   └─ spoke-3: a Service range of its own
                  internet

Each site is one bridge of the fabric, which is its gateway and routes as the cloud does: pods'
blocks to their nodes, Services to their NAT host. It keeps nobody apart. What one spoke sends to
another it passes to the hub's router, as a cloud does whose `None` routes are overridden, so
that only the rules of nodes, NAT hosts and router isolate. A `rogue` is a machine of a
spoke without an agent: it shows what the others' rules do alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from netmgr import plan_files
from netmgr.config import NodeDocument
from netmgr.lab.topology import (
    EVERYTHING,
    INTERNET,
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
)
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Address, Family, Prefix
from netmgr.render.node import Documents
from netmgr.sites import HUB, Mapping, Role, SourceAddress

RESEARCHER, FABRIC, INTERNET_HOST, UPLINK = "researcher", "fabric", "internet", "eth0"
POOL = "cpu"
_BESIDE_INTERNET = {Family.V4: Address.parse("203.0.113.254"), Family.V6: Address.parse("2001:db8:ffff::fe")}
_OUTSIDE = {Family.V4: 24, Family.V6: 64}
_INTERNET = [InterfaceAddress(own, _OUTSIDE[family]).network for family, own in INTERNET.items()]
_GATEWAY, _FIRST_USABLE = 1, 4
_ROGUE = {Family.V4: -2, Family.V6: 0xFF00}
"""Place in a subnet, from its end if negative: where no node is until the cluster is upgraded."""


def draw(plan: PlanDocument, lock: LockDocument, pods: int) -> Topology:
    """The world that a plan and its lock mean, with `pods` pods on each node."""
    return _Drawing(plan, lock, pods).topology()


@dataclass(frozen=True)
class _Place:
    """A machine: where it is, what is on its link, and what its agent is told, if it has one."""

    name: str
    site: str
    addresses: tuple[InterfaceAddress, ...]
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> tuple[Address, ...]:
        return tuple(each.address for each in self.addresses)


@dataclass(frozen=True)
class _Drawing:
    """Everything that follows from one plan and its lock."""

    plan: PlanDocument
    lock: LockDocument
    pods: int

    def topology(self) -> Topology:
        nodes = [self._node(place) for place in self._places if place.document]
        return Topology(
            internet=INTERNET_HOST,
            hosts=(
                Host(INTERNET_HOST, tuple(self._inward())),
                Host(FABRIC, tuple(self._routes(self._spokes)), forwards=True, tables=tuple(self._tables())),
                *map(self._host, self._places),
            ),
            links=(_to_internet(), *map(self._link, self._places)),
            nodes=tuple(nodes),
            pods=tuple(self._pods(nodes)),
            segments=tuple(Segment(FABRIC, site, tuple(self._gateways(site))) for site in self._subnets),
            spokes=self._spokes,
            researcher=RESEARCHER,
            files={
                "plan.yaml": plan_files.to_yaml(self.plan),
                "plan.lock.yaml": plan_files.lock_text(self.lock),
            },
        )

    @cached_property
    def _subnets(self) -> dict[str, tuple[Prefix, ...]]:
        """Where machines have their own addresses, by site; the hub's routers' and a spoke's NAT host's first."""
        hub = self.lock.hub
        found = {HUB: (*hub.routers.prefixes, *chain.from_iterable(each.prefixes for each in hub.researchers))}
        for name, held in self.lock.clusters.items():
            segments = chain.from_iterable(pool.segments for pool in held.node_pools.values())
            layouts = chain.from_iterable(segment.layouts for segment in segments)
            found[name] = (*held.nat.prefixes, *(layout.hosts for layout in layouts))
        return found

    @cached_property
    def _documents(self) -> dict[str, dict[str, Any]]:
        every = dict(Documents(self.plan, self.lock).every())
        sites = [HUB, *self.lock.clusters]
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
            services=tuple(Shown(Prefix.parse(one["seen"]), Prefix.parse(one["real"])) for one in nat["services"]),
            translation=services.translation,
            source=services.source,
            gateway=bool(self.plan.clusters[name].nat_gateway_ips),
            rogues=(f"rogue.{name}",),
        )

    @cached_property
    def _places(self) -> tuple[_Place, ...]:
        return (
            _Place(RESEARCHER, HUB, tuple(self._researcher())),
            *(self._machine(name, document) for name, document in self._documents.items()),
            *(
                _Place(name, spoke.name, tuple(self._rogue(spoke.name)))
                for spoke in self._spokes
                for name in spoke.rogues
            ),
        )

    def _researcher(self) -> Iterator[InterfaceAddress]:
        for subnet in self.lock.hub.researchers[0].prefixes:
            yield InterfaceAddress(Address(subnet.family, subnet.value + _FIRST_USABLE), subnet.length)

    def _rogue(self, site: str) -> Iterator[InterfaceAddress]:
        """One among the first nodes of the cluster."""
        pool = self.lock.clusters[site].node_pools[POOL]
        for subnet in (layout.hosts for layout in pool.segments[0].layouts):
            place = _ROGUE[subnet.family]
            yield InterfaceAddress(Address(subnet.family, subnet.value + place % subnet.size), subnet.length)

    def _machine(self, name: str, document: dict[str, Any]) -> _Place:
        site = document["site"]
        addresses = map(Address.parse, document["node"]["addresses"])
        placed = (
            InterfaceAddress(address, next(net.length for net in self._subnets[site] if net.holds(address)))
            for address in addresses
        )
        return _Place(name, site, tuple(placed), document)

    def _node(self, place: _Place) -> Node:
        parsed = NodeDocument.model_validate(place.document)
        return Node(
            place.name,
            UPLINK,
            place.own,
            ranges=parsed.ranges,
            role=parsed.role,
            site=place.site,
            document=place.document,
        )

    def _pods(self, nodes: Sequence[Node]) -> Iterator[Pod]:
        running = [node for node in nodes if node.role is Role.NODE]
        for place, node in enumerate(running):
            for number in range(self.pods):
                yield Pod(f"pod-{place * self.pods + number + 1}", node.host)

    def _gateways(self, site: str) -> Iterator[InterfaceAddress]:
        for subnet in self._subnets[site]:
            yield InterfaceAddress(Address(subnet.family, subnet.value + _GATEWAY), subnet.length)

    def _link(self, place: _Place) -> Link:
        own = {each.network for each in place.addresses}
        beside = tuple(net for net in self._subnets[place.site] if net not in own)
        return Link(
            (Interface(FABRIC, place.name, segment=place.site), Interface(place.name, UPLINK, place.addresses, beside))
        )

    def _host(self, place: _Place) -> Host:
        """Everything goes by the gateway; a NAT host leaves the Services inside to a node's kube-proxy."""
        near = {own.network for own in place.addresses}
        gateways = [own.address for own in self._gateways(place.site) if own.network in near]
        routes = [Route(all_, next(each for each in gateways if each.family is all_.family)) for all_ in EVERYTHING]
        for spoke in self._spokes:
            if spoke.nat_host == place.name and spoke.translation is Mapping.NETMAP:
                routes += [Route(each.real, self._proxy(spoke.name, each.real.family)) for each in spoke.services]
        return Host(place.name, tuple(routes))

    def _proxy(self, site: str, family: Family) -> Address:
        """A node of the site whose kube-proxy serves what the NAT host sends it."""
        name = next(n for n, d in self._documents.items() if d["site"] == site and "ranges" in d)
        return next(a for a in map(Address.parse, self._documents[name]["node"]["addresses"]) if a.family is family)

    def _routes(self, spokes: Sequence[Spoke]) -> Iterator[Route]:
        """The fabric's: pods by their nodes, Services by their NAT hosts."""
        for place in self._places:
            for text in place.document.get("ranges", ()):
                prefix = Prefix.parse(text)
                yield Route(prefix, next(own for own in place.own if own.family is prefix.family))
        for spoke in spokes:
            for shown in spoke.services:
                yield Route(shown.seen, self._address(spoke.nat_host, shown.seen.family))

    def _tables(self) -> Iterator[RouteTable]:
        """What one spoke sends another goes by the hub's router, and without a gateway what it sends the internet."""
        router = next(name for name, document in self._documents.items() if document.get("role") == Role.HUB_ROUTER)
        for spoke in self._spokes:
            prefixes = [
                prefix
                for other in self._spokes
                if other is not spoke
                for prefix in (*other.prefixes, *(shown.seen for shown in other.services))
            ]
            if not spoke.gateway:
                prefixes += _INTERNET
            yield RouteTable(spoke.name, tuple(Route(each, self._address(router, each.family)) for each in prefixes))
        # Where answers to the hub go by the NAT host, all that they answer must come by it: a machine
        # that tracks connections and sees one half of each would be full of half-open ones.
        both_ways = tuple(
            Route(prefix, self._address(spoke.nat_host, prefix.family))
            for spoke in self._spokes
            if spoke.source is SourceAddress.PRESERVE
            for prefix in spoke.prefixes
        )
        yield RouteTable(HUB, both_ways)

    def _address(self, host: str, family: Family) -> Address:
        place = next(place for place in self._places if place.name == host)
        return next(own for own in place.own if own.family is family)

    def _inward(self) -> Iterator[Route]:
        """The internet answers machines by their own addresses; it knows no way to a pod."""
        for subnet in chain.from_iterable(self._subnets.values()):
            yield Route(subnet, _BESIDE_INTERNET[subnet.family])


def _to_internet() -> Link:
    near, far = (
        Interface(host, name, tuple(InterfaceAddress(own, _OUTSIDE[family]) for family, own in addresses.items()))
        for host, name, addresses in (
            (INTERNET_HOST, UPLINK, INTERNET),
            (FABRIC, INTERNET_HOST, _BESIDE_INTERNET),
        )
    )
    return Link((near, far))
