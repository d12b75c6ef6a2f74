"""Who reaches whom: the isolation matrix of a derived network.

Every packet that any route or rule could tell from another is followed once: sources and
destinations are cut at the borders of every prefix the network has, so what the matrix says
holds for every address, not for samples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from netmgr.plan.network import Network, NextHop, Subnet, Vnet
from netmgr.plan.trace import INTERNET, Path, Tracer
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.sites import HUB

_PUBLIC = {Family.V4: Address.parse("203.0.113.1"), Family.V6: Address.parse("2001:db8:ffff::1")}


class Target(StrEnum):
    """What of somebody is to be reached."""

    NODES = "nodes and pods"
    SERVICES = "Services"
    INTERNET = INTERNET


@dataclass(frozen=True, slots=True)
class Cell:
    """Whether the packets of one owner reach something of another.

    Attributes:
        paths: one packet of each kind, those that arrive where they should first.
        wanted: whether they should arrive; None where the plan does not say.
        local: never leaves the cluster's own nodes, so that no route matters.
    """

    origin: str
    owner: str
    target: Target
    paths: tuple[Path, ...] = ()
    wanted: bool | None = None
    local: bool = False

    @property
    def arrived(self) -> int:
        """How many of the paths arrive."""
        return sum(path.owner == self.owner for path in self.paths)

    @property
    def verdict(self) -> str:
        """reached, dropped, or in part."""
        if self.local or self.arrived == len(self.paths):
            return "reached"
        return "in part" if self.arrived else "dropped"

    @property
    def wrong(self) -> str:
        """What is not as it should be, as a sentence; or empty."""
        if self.local or self.wanted is None:
            return ""
        if not self.wanted and self.arrived:
            path = next(path for path in self.paths if path.owner == self.owner)
            return f"{self.origin} reaches {self.target} of {self.owner}: {_tell(path)}"
        if self.wanted and self.arrived < len(self.paths):
            path = next(path for path in self.paths if path.owner != self.owner)
            return f"{self.origin} does not reach {self.target} of {self.owner}: {_tell(path)}"
        return ""


def _tell(path: Path) -> str:
    return f"{path.source} to {path.destination}: {'; '.join(path.steps)}"


def matrix(network: Network) -> list[Cell]:
    """Every owner's way to every other's nodes and Services, and to the internet."""
    tracer = Tracer(network)
    cuts = _Cuts(network)
    owners = list(dict.fromkeys(vnet.owner for vnet in network.networks))
    sources = {owner: list(_sources(network.of(owner), cuts)) for owner in owners}
    places = {owner: list(cuts.points(_prefixes(network.of(owner)))) for owner in owners}
    services = {owner: list(cuts.points(_services(network, owner))) for owner in owners}
    cells = []
    for origin in owners:
        for owner in owners:
            wanted = HUB in (origin, owner) or origin == owner
            cells.append(_cell(tracer, origin, sources[origin], (owner, Target.NODES), places[owner], wanted))
            if origin == owner != HUB:
                cells.append(Cell(origin, owner, Target.SERVICES, wanted=True, local=True))
            elif services[owner]:
                cells.append(_cell(tracer, origin, sources[origin], (owner, Target.SERVICES), services[owner], wanted))
        public = list(_PUBLIC.values())
        cells.append(_cell(tracer, origin, sources[origin], (INTERNET, Target.INTERNET), public, None))
    return cells


def weakened(network: Network, layers: Collection[str]) -> Network:
    """The network as if some of what keeps spokes apart were missing.

    `layers`: "routes" (to None), "groups" (security groups), "routers" (their rules) and
    "peerings" (that a spoke takes nothing the hub only passes on).
    """
    if "routes" in layers:
        tables = (replace(t, routes=tuple(r for r in t.routes if r.hop is not NextHop.NONE)) for t in network.tables)
        network = replace(network, tables=tuple(tables))
    if "groups" in layers:
        network = replace(network, groups=())
    if "routers" in layers:
        network = replace(network, appliances=tuple(replace(each, drops=()) for each in network.appliances))
    if "peerings" in layers:
        network = replace(network, peerings=tuple(replace(each, forwarded=True) for each in network.peerings))
    return network


def _cell(
    tracer: Tracer,
    origin: str,
    sources: list[tuple[Vnet, Subnet, Address]],
    target: tuple[str, Target],
    destinations: list[Address],
    wanted: bool | None,  # noqa: FBT001  private, and what a cell has
) -> Cell:
    paths = tuple(
        tracer.trace(vnet, subnet, source, destination)
        for vnet, subnet, source in sources
        for destination in destinations
        if source.family is destination.family
    )
    owner, what = target
    return Cell(origin, owner, what, tuple(sorted(paths, key=lambda path: path.owner != owner)), wanted)


def _sources(vnets: Iterable[Vnet], cuts: _Cuts) -> Iterator[tuple[Vnet, Subnet, Address]]:
    for vnet in vnets:
        for subnet in vnet.subnets:
            for address in cuts.points(subnet.prefixes):
                yield vnet, subnet, address


def _prefixes(vnets: Iterable[Vnet]) -> list[Prefix]:
    return [prefix for vnet in vnets for subnet in vnet.subnets for prefix in subnet.prefixes]


def _services(network: Network, owner: str) -> list[Prefix]:
    """Where others see an owner's Services."""
    own = (each for host in network.appliances if host.owner == owner for each in host.translations)
    return merge(translation.seen for translation in own)


class _Cuts:
    """First addresses of all stretches that no route and no rule tells apart."""

    def __init__(self, network: Network) -> None:
        borders: dict[Family, set[int]] = {family: set() for family in Family}
        for prefix in _every_prefix(network):
            borders[prefix.family] |= {prefix.value, prefix.last + 1}
        self._borders = {family: sorted(values) for family, values in borders.items()}

    def points(self, prefixes: Iterable[Prefix]) -> Iterator[Address]:
        """One address of each stretch inside `prefixes`."""
        for prefix in prefixes:
            borders = self._borders[prefix.family]
            yield prefix.network
            for value in borders[bisect_left(borders, prefix.value + 1) : bisect_left(borders, prefix.last + 1)]:
                yield Address(prefix.family, value)


def _every_prefix(network: Network) -> Iterator[Prefix]:
    for vnet in network.networks:
        yield from vnet.address_space
        yield from _prefixes([vnet])
    for table in network.tables:
        yield from (route.prefix for route in table.routes)
    for group in network.groups:
        for rule in group.rules:
            yield from rule.peers
    for appliance in network.appliances:
        for sources, destinations in appliance.drops:
            yield from (*sources, *destinations)
        for translation in appliance.translations:
            yield from (translation.seen, translation.real)
