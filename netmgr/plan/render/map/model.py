"""What a map shows, however it is drawn: windows, regions and colours, from a plan and its lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from netmgr.documents.sites import HUB
from netmgr.drawing import plain
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, ClusterLock, Layout, LockDocument, Segment
from netmgr.prefixes import Family, Prefix, PrefixTable, merge

_TOMBSTONE = "no longer in the plan; kept until it is released"


class Use(StrEnum):
    """How far addresses are in use; what is drawn on top comes last."""

    RESERVED = "reserved"
    """Kept for the owner's growth, beside its prefix or in a subnet with room for more nodes."""
    HELD = "held"
    """Routed to the owner, who has no subnet there yet: faint."""
    USED = "used"


@dataclass(frozen=True, slots=True, order=True)
class Nodes:
    """Consecutive nodes: number `first` starts at `base`, each has `stride` addresses."""

    stem: str
    first: int
    base: int
    stride: int


@dataclass(frozen=True, slots=True)
class Room:
    """A subnet's places for nodes of a pool, and how many of them the plan fills.

    `length` is the prefix length of what each node has of it.
    """

    stem: str
    planned: int
    capacity: int
    length: int


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A block of addresses and what it is for.

    Attributes:
        owner: cluster or hub; empty for exclusions.
        role: what the owner uses it for, for example "pods" or "Services".
        note: shown when a pointer is on it.
        nodes: whose addresses they are one by one, if they are nodes'.
        room: how many nodes fit, in a subnet of nodes.
    """

    prefix: Prefix
    owner: str
    role: str
    use: Use = Use.USED
    note: str = ""
    nodes: Nodes | None = None
    room: Room | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Window:
    """One square: all of `prefix`, and the regions inside it."""

    name: str
    prefix: Prefix
    regions: tuple[Region, ...]

    def drawn(self) -> list[Region]:
        """The regions in the order of drawing: what holds others first."""
        inside = [region for region in self.regions if self.prefix.covers(region.prefix)]
        return sorted(
            inside,
            key=lambda region: (region.prefix.length, list(Use).index(region.use), region.role),
        )

    def outermost(self) -> list[Region]:
        """The regions that are in no other one, by address."""
        found: list[Region] = []
        for region in sorted(self.drawn(), key=lambda one: (one.prefix.value, one.prefix.length)):
            if not found or not found[-1].prefix.covers(region.prefix):
                found.append(region)
        return found

    def table(self) -> PrefixTable[Region]:
        """The region that is seen at each address."""
        return PrefixTable((region.prefix, region) for region in self.drawn())


@dataclass(frozen=True, slots=True)
class Picture:
    """One square a pool.

    Attributes:
        title: a line above everything.
        before: the same windows as they were, for a picture of a change; or empty.
    """

    title: str
    windows: tuple[Window, ...]
    before: tuple[Window, ...] = ()

    def owners(self) -> list[str]:
        """Everybody who owns a region, in order of appearance, those of before first."""
        windows = (*self.before, *self.windows)
        return list(
            dict.fromkeys(
                region.owner for window in windows for region in window.regions if region.owner
            )
        )

    def former(self, window: Window) -> Window:
        """A window as it was before; empty if it was not."""
        empty = Window(window.name, window.prefix, ())
        return next((old for old in self.before if old.prefix == window.prefix), empty)

    def added(self, window: Window) -> set[Region]:
        """Regions of a window that it had not before; empty if there is no before."""
        if not self.before or window not in self.windows:
            return set()
        # Without notes: a segment that has more nodes planned is not new.
        former = {
            (region.prefix, region.owner, region.use) for region in self.former(window).regions
        }
        return {
            region
            for region in window.regions
            if (region.prefix, region.owner, region.use) not in former
        }


def describe(region: Region) -> str:
    """One line about a region: what a pointer shows."""
    words = (
        str(region.prefix),
        region.owner,
        region.role,
        "" if region.use is Use.USED else region.use.value,
        region.note,
    )
    return " · ".join(plain(word) for word in words if word)


def picture(
    plan: PlanDocument, lock: LockDocument, before: tuple[PlanDocument, LockDocument] | None = None
) -> Picture:
    """One square for each prefix of a pool, and for whatever else is in use outside all pools.

    `before` is the plan and lock that a change started from.
    """
    former = tuple(_windows(*before)) if before else ()
    return Picture(f"Address plan {plan.name}", tuple(_windows(plan, lock)), former)


def _windows(plan: PlanDocument, lock: LockDocument) -> Iterator[Window]:
    regions = tuple(_regions(plan, lock))
    pools = [("nodes", prefix) for prefix in plan.pools.nodes] + [
        ("Services", prefix) for prefix in plan.pools.services
    ]
    outside = [
        region.prefix
        for region in regions
        if not any(pool.covers(region.prefix) for _, pool in pools)
    ]
    for kind, prefix in (*pools, *(("outside the pools", prefix) for prefix in merge(outside))):
        yield Window(
            kind, prefix, tuple(region for region in regions if prefix.covers(region.prefix))
        )


def _regions(plan: PlanDocument, lock: LockDocument) -> Iterator[Region]:
    for exclusion in plan.exclude:
        yield Region(exclusion.prefix, "", "excluded", note=exclusion.reason)
    for name, prefixes in plan.pinned.items():
        if name != HUB and name not in lock.clusters:
            yield from (Region(prefix, "", "pinned", note=name) for prefix in prefixes)
    yield from _hub(lock)
    for name, held in lock.clusters.items():
        yield from _cluster(plan, name, held)


def _allocated(owner: str, allocations: tuple[Allocation, ...], note: str = "") -> Iterator[Region]:
    for allocation in allocations:
        if allocation.reserve != allocation.prefix:
            yield Region(allocation.reserve, owner, "reserve", Use.RESERVED, note)
        yield Region(allocation.prefix, owner, "prefix", Use.HELD, note)


def _hub(lock: LockDocument) -> Iterator[Region]:
    hub = lock.hub
    yield from _allocated(HUB, hub.prefixes)
    yield from (Region(prefix, HUB, "routers") for prefix in hub.routers.prefixes)
    for subnet in hub.researchers:
        yield from (Region(prefix, HUB, "researchers") for prefix in subnet.prefixes)


def _cluster(plan: PlanDocument, name: str, held: ClusterLock) -> Iterator[Region]:
    gone = held.tombstone or name not in plan.clusters
    note = _TOMBSTONE if gone else ""
    yield from _allocated(name, held.prefixes, note)
    use = Use.HELD if gone else Use.USED
    for vip_range, service_cidr in held.services.pairs:
        inside = "" if vip_range == service_cidr else f"the cluster itself sees {service_cidr}"
        yield Region(vip_range, name, "Services", use, inside or note)
    yield from (Region(prefix, name, "NAT hosts", use, note) for prefix in held.nat.prefixes)
    for pool in held.node_pools:
        yield from _node_pool(name, pool, held, 0 if gone else _planned_nodes(plan, name, pool))


def _planned_nodes(plan: PlanDocument, cluster: str, pool: str) -> int:
    spec = plan.clusters[cluster].node_pools.get(pool)
    return spec.nodes if spec else 0


def _node_pool(cluster: str, pool: str, held: ClusterLock, nodes: int) -> Iterator[Region]:
    for segment in held.node_pools[pool].segments:
        run = Nodes(f"{cluster}-{pool}", segment.first, 0, 0)
        planned = max(0, min(nodes - segment.first, segment.nodes))
        for layout in segment.layouts:
            yield from _nodes(run, cluster, segment, layout, planned)


def _nodes(
    run: Nodes, owner: str, segment: Segment, layout: Layout, nodes: int
) -> Iterator[Region]:
    """A segment's subnets, and within them what the nodes of today have."""
    capacity = f"{run.stem}: room for {segment.nodes} nodes, {nodes} planned"
    parts = (
        ("hosts", layout.hosts, layout.host_base.value, 1),
        ("pods", layout.pods, layout.pod_base.value, layout.stride),
    )
    for role, subnet, base, stride in parts:
        length = subnet.family.width - (stride - 1).bit_length()
        room = Room(run.stem, nodes, segment.nodes, length)
        yield Region(subnet, owner, role, Use.RESERVED, capacity, room=room)
        numbered = Nodes(run.stem, run.first, base, stride)
        for block in cover(subnet.family, base, nodes * stride):
            if block != subnet:
                yield Region(block, owner, role, Use.USED, nodes=numbered)


def cover(family: Family, first: int, size: int) -> Iterator[Prefix]:
    """The fewest prefixes that are exactly the `size` addresses from `first`."""
    while size > 0:
        # The lowest bit that is set: no larger block begins at this address.
        aligned = first & -first if first else 1 << family.width
        step = min(aligned, 1 << (size.bit_length() - 1))
        yield Prefix(family, first, family.width - step.bit_length() + 1)
        first, size = first + step, size - step
