"""Who reaches whom: the isolation matrix of a derived network.

Every packet that any route or rule could tell from another is followed once: sources and
destinations are cut at the borders of every prefix the network has, so what the matrix says
holds for every address, not for samples.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from itertools import chain, pairwise
from typing import Literal

from netmgr.documents.sites import HUB
from netmgr.documents.special_use import PRIVATE_USE
from netmgr.plan.check.trace import INTERNET, Path, Tracer, grouped
from netmgr.plan.network import Network, Subnet, VirtualNetwork
from netmgr.prefixes import Address, Family, Prefix, merge

# Of prefixes for documentation: no pool has them, and they are internet (`special_use`).
_PUBLIC = {Family.V4: Address.parse("203.0.113.1"), Family.V6: Address.parse("2001:db8:ffff::1")}


OTHERS = "other spokes"
"""Owner of a cell that speaks for many."""


class ReachTarget(StrEnum):
    NODES = "nodes and pods"
    SERVICES = "Services"
    INTERNET = INTERNET


_Targets = dict[ReachTarget, list[Prefix]]


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
    """Every owner's way to its own, the hub's, and other spokes' machines, and to the internet.

    From a spoke, one cell of `OTHERS` speaks for all other spokes that none of its packets reaches.
    """
    networks = grouped(
        (virtual_network.owner, virtual_network) for virtual_network in network.networks
    )
    targets = _targets(network, networks)
    spokes = [held for owner, held in targets.items() if owner not in {HUB, INTERNET}]
    others = {
        target: sorted(chain.from_iterable(held.get(target, ()) for held in spokes))
        for target in (ReachTarget.NODES, ReachTarget.SERVICES)
    }
    # The internet has no private addresses, whatever pools there are.
    tracer, cuts = Tracer(network), _Cuts(chain(_every_prefix(network), PRIVATE_USE))
    cells: list[Cell] = []
    for origin, own in networks.items():
        flows = [_Flow(tracer, cuts, *start) for start in _starts(own, cuts)]
        cells += _by_owner(origin, flows, targets)
        cells += _of_others(origin, flows, targets[origin], others) if origin != HUB else ()
    return cells


def _by_owner(
    origin: str, flows: Sequence[_Flow], targets: Mapping[str, _Targets]
) -> Iterator[Cell]:
    for owner in targets if origin == HUB else _near(origin, flows):
        for target, prefixes in targets[owner].items():
            # kube-proxy translates on the node that sends, before any route lookup.
            local = target is ReachTarget.SERVICES and origin == owner
            yield Cell(origin, owner, target, () if local else _paths(flows, owner, prefixes))


def _near(origin: str, flows: Iterable[_Flow]) -> Iterable[str]:
    """Whom a spoke is to reach, and whom it does."""
    reached = {path.owner for flow in flows for path in flow.paths if path.owner}
    return dict.fromkeys((HUB, origin, *sorted(reached), INTERNET))


def _of_others(
    origin: str, flows: Sequence[_Flow], ours: _Targets, others: _Targets
) -> Iterator[Cell]:
    for target, prefixes in others.items():
        own = ours.get(target, ())
        if lost := [path for flow in flows for path in flow.dropped(prefixes, own)]:
            yield Cell(origin, OTHERS, target, tuple(lost))


def _targets(
    network: Network, networks: Mapping[str, Iterable[VirtualNetwork]]
) -> dict[str, _Targets]:
    """What there is to reach of each owner."""
    targets = {owner: {ReachTarget.NODES: _prefixes(held)} for owner, held in networks.items()}
    for host in network.appliances:
        if shown := merge(translation.vip_range for translation in host.translations):
            # Any host of an owner translates all of its Services.
            targets[host.owner][ReachTarget.SERVICES] = shown
    internet = [address.prefix for address in _PUBLIC.values()]
    return targets | {INTERNET: {ReachTarget.INTERNET: internet}}


def _starts(
    networks: Iterable[VirtualNetwork], cuts: _Cuts
) -> Iterator[tuple[VirtualNetwork, Subnet, Address]]:
    for network in networks:
        for subnet in network.subnets:
            for prefix in subnet.prefixes:
                for address in cuts.points(prefix.network, prefix.last):
                    yield network, subnet, address


class _Flow:
    """What becomes of packets from one address to every other of its family.

    Each of `paths` speaks for all destinations from its own to the next one's.
    """

    def __init__(
        self, tracer: Tracer, cuts: _Cuts, network: VirtualNetwork, subnet: Subnet, source: Address
    ) -> None:
        self.paths: list[Path] = []
        self._family, end = source.family, 1 << source.family.width
        starts = _Cuts(tracer.deciding(network, subnet)).points(Address(self._family, 0), end - 1)
        for first, after in pairwise([*starts, Address(self._family, end)]):
            # What never leaves the subnet is cut no finer: one path speaks for a thousand spokes
            # that one route keeps away.
            is_kept = tracer.keeps(network, subnet, first)
            points = [first] if is_kept else cuts.points(first, after.value - 1)
            self.paths += [tracer.trace(network, subnet, source, point) for point in points]
        self._starts = [path.destination for path in self.paths]

    def to(self, prefix: Prefix) -> Iterator[Path]:
        """A packet of each path to a prefix."""
        # A packet has one family; the other one's addresses are other packets.
        if prefix.family is self._family:
            first = bisect_right(self._starts, prefix.network) - 1
            after = bisect_right(self._starts, Address(prefix.family, prefix.last))
            for path in self.paths[first:after]:
                yield replace(path, destination=max(path.destination, prefix.network))

    def dropped(self, prefixes: Sequence[Prefix], ours: Collection[Prefix]) -> Iterator[Path]:
        """A packet of each path that ends on its way to `prefixes`, in order, but not `ours`."""
        ends = [*self._starts[1:], Address(self._family, 1 << self._family.width)]
        for path, end in zip(self.paths, ends, strict=True):
            # The last that begins before the end: if it is over by then, so are all others.
            number = bisect_left(prefixes, end) - 1
            while number >= 0 and prefixes[number] in ours:
                number -= 1
            if number >= 0 and not path.owner:
                start = max(path.destination, prefixes[number].network)
                if prefixes[number].holds(start):
                    yield replace(path, destination=start)


def _paths(flows: Iterable[_Flow], owner: str, prefixes: Iterable[Prefix]) -> tuple[Path, ...]:
    """One packet of each kind, those that reach the owner first."""
    paths = (path for flow in flows for prefix in prefixes for path in flow.to(prefix))
    # The first is shown as the example.
    return tuple(sorted(paths, key=lambda path: path.owner != owner))


def _prefixes(networks: Iterable[VirtualNetwork]) -> list[Prefix]:
    subnets = chain.from_iterable(network.subnets for network in networks)
    return [prefix for subnet in subnets for prefix in subnet.prefixes]


class _Cuts:
    """The address space, cut into stretches that no route and no rule distinguishes."""

    def __init__(self, prefixes: Iterable[Prefix]) -> None:
        borders = set[Address]()
        for prefix in prefixes:
            # Between two neighbouring borders every prefix holds either all addresses or none, so
            # that one of them speaks for the stretch.
            borders |= {prefix.network, Address(prefix.family, prefix.last + 1)}
        self._borders = sorted(borders)

    def points(self, first: Address, last: int) -> list[Address]:
        """The first address of each stretch of a range."""
        begin = bisect_right(self._borders, first)
        after = bisect_right(self._borders, Address(first.family, last))
        return [first, *self._borders[begin:after]]


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
