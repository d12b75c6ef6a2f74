"""Who reaches whom: the isolation matrix of a derived network.

Every packet that any route or rule could tell from another is followed once: sources and
destinations are cut at the borders of every prefix the network has, so what the matrix says
holds for every address, not for samples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Literal

from netmgr.documents.sites import HUB
from netmgr.plan.check.trace import INTERNET, Path, Tracer
from netmgr.plan.network import Network, NextHop, RouteTable, Subnet, VirtualNetwork
from netmgr.prefixes import Address, Family, Prefix, merge

# Of prefixes for documentation: no pool has them, and they are internet (`special_use`).
_PUBLIC = {Family.V4: Address.parse("203.0.113.1"), Family.V6: Address.parse("2001:db8:ffff::1")}


class ReachTarget(StrEnum):
    NODES = "nodes and pods"
    SERVICES = "Services"
    INTERNET = INTERNET


class Layer(StrEnum):
    """One of the things that keep spokes apart."""

    ROUTES = "routes"
    """Those to None."""
    GROUPS = "groups"
    """Security groups."""
    ROUTERS = "routers"
    """Their rules."""
    PEERINGS = "peerings"
    """That a spoke takes nothing the hub only passes on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Whether the packets of one owner reach something of another.

    Attributes:
        paths: one packet of each kind, those that arrive where they should first; none where
            packets never leave the cluster's own nodes, so that no route matters.
    """

    origin: str
    owner: str
    target: ReachTarget
    paths: tuple[Path, ...] = ()

    @property
    def wanted(self) -> bool | None:
        """Whether they should arrive; None where the plan does not say."""
        if self.owner == INTERNET:
            return None
        return HUB in (self.origin, self.owner) or self.origin == self.owner

    @property
    def outcome(self) -> Literal["reached", "in part", "dropped"]:
        arrived = sum(path.owner == self.owner for path in self.paths)
        if arrived == len(self.paths):
            return "reached"
        return "in part" if arrived else "dropped"

    @property
    def wrong(self) -> str:
        """What is not as it should be; or empty."""
        if self.wanted is None:
            return ""
        verb = "does not reach" if self.wanted else "reaches"
        for path in self.paths:
            if (path.owner == self.owner) != self.wanted:
                way = f"{path.source} to {path.destination}: {'; '.join(path.steps)}"
                return f"{self.origin} {verb} {self.target} of {self.owner}: {way}"
        return ""


def matrix(network: Network) -> list[Cell]:
    """Every owner's way to every other's nodes and Services, and to the internet."""
    cuts = _Cuts(network)
    owners = list(dict.fromkeys(virtual_network.owner for virtual_network in network.networks))
    targets = list(_targets(network, owners, cuts))
    tracer = Tracer(network)
    cells = []
    for origin in owners:
        sources = list(_sources(network.of(origin), cuts))
        for owner, target, points in targets:
            # kube-proxy translates on the node that sends, before any route lookup.
            local = target is ReachTarget.SERVICES and origin == owner
            if points:
                paths = () if local else _paths(tracer, sources, points, owner)
                cells.append(Cell(origin, owner, target, paths))
    return cells


def _targets(
    network: Network, owners: Iterable[str], cuts: _Cuts
) -> Iterator[tuple[str, ReachTarget, list[Address]]]:
    for owner in owners:
        yield owner, ReachTarget.NODES, cuts.points(_prefixes(network.of(owner)))
        if owner != HUB:
            yield owner, ReachTarget.SERVICES, cuts.points(_shown_services(network, owner))
    yield INTERNET, ReachTarget.INTERNET, list(_PUBLIC.values())


def _shown_services(network: Network, owner: str) -> list[Prefix]:
    """Where others see an owner's Services."""
    hosts = [host for host in network.appliances if host.owner == owner]
    return merge(translation.vip_range for host in hosts for translation in host.translations)


def _sources(
    networks: Iterable[VirtualNetwork], cuts: _Cuts
) -> Iterator[tuple[VirtualNetwork, Subnet, Address]]:
    for network in networks:
        for subnet in network.subnets:
            yield from ((network, subnet, address) for address in cuts.points(subnet.prefixes))


def _paths(
    tracer: Tracer,
    sources: Iterable[tuple[VirtualNetwork, Subnet, Address]],
    destinations: Sequence[Address],
    owner: str,
) -> tuple[Path, ...]:
    """One packet of each kind, those that reach the owner first."""
    paths = [
        tracer.trace(network, subnet, source, destination)
        for network, subnet, source in sources
        for destination in destinations
        # A packet has one family; the other one's addresses are other packets.
        if destination.family is source.family
    ]
    # The first is shown as the example.
    return tuple(sorted(paths, key=lambda path: path.owner != owner))


def weakened(network: Network, layers: Collection[Layer]) -> Network:
    """The network as if some of what keeps spokes apart were missing."""
    if Layer.ROUTES in layers:
        network = replace(network, tables=tuple(map(_without_none, network.tables)))
    if Layer.GROUPS in layers:
        network = replace(network, groups=())
    if Layer.ROUTERS in layers:
        harmless = (replace(appliance, drops=()) for appliance in network.appliances)
        network = replace(network, appliances=tuple(harmless))
    if Layer.PEERINGS in layers:
        opened = (replace(peering, forwarded=True) for peering in network.peerings)
        network = replace(network, peerings=tuple(opened))
    return network


def _without_none(table: RouteTable) -> RouteTable:
    routes = (route for route in table.routes if route.hop is not NextHop.NONE)
    return replace(table, routes=tuple(routes))


def _prefixes(networks: Iterable[VirtualNetwork]) -> list[Prefix]:
    subnets = chain.from_iterable(network.subnets for network in networks)
    return [prefix for subnet in subnets for prefix in subnet.prefixes]


class _Cuts:
    """The address space, cut into stretches that no route and no rule distinguishes."""

    def __init__(self, network: Network) -> None:
        borders: dict[Family, set[int]] = {family: set() for family in Family}
        for prefix in _every_prefix(network):
            # Between two neighbouring borders every prefix holds either all addresses or none, so
            # that one of them speaks for the stretch.
            borders[prefix.family] |= {prefix.value, prefix.last + 1}
        self._borders = {family: sorted(values) for family, values in borders.items()}

    def points(self, prefixes: Iterable[Prefix]) -> list[Address]:
        """One address of each stretch inside `prefixes`."""
        points = []
        for prefix in prefixes:
            borders = self._borders[prefix.family]
            first = bisect_left(borders, prefix.value + 1)
            after = bisect_left(borders, prefix.last + 1)
            # The prefix's own first address is a border only if the network has this very prefix.
            points.append(prefix.network)
            points += [Address(prefix.family, value) for value in borders[first:after]]
        return points


def _every_prefix(part: object) -> Iterator[Prefix]:
    """Every prefix in a part of the network, whatever routes or filters by it."""
    # First, since a Prefix is a tuple, too.
    if isinstance(part, Prefix):
        yield part
        return
    if is_dataclass(part):
        part = tuple(getattr(part, field.name) for field in fields(part))
    if isinstance(part, tuple):
        for item in part:
            yield from _every_prefix(item)
