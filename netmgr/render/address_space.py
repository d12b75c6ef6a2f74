"""From a plan and its lock to the picture of their address space."""

from __future__ import annotations

from collections.abc import Iterator

from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, ClusterLock, Layout, LockDocument, Segment
from netmgr.prefixes import Family, Prefix, merge
from netmgr.render.picture import Nodes, Picture, Region, Use, Window
from netmgr.sites import HUB

_TOMBSTONE = "no longer in the plan; kept until it is released"


def picture(plan: PlanDocument, lock: LockDocument, before: tuple[PlanDocument, LockDocument] | None = None) -> Picture:
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
    outside = [region.prefix for region in regions if not any(pool.covers(region.prefix) for _, pool in pools)]
    for kind, prefix in (*pools, *(("outside the pools", prefix) for prefix in merge(outside))):
        yield Window(kind, prefix, tuple(region for region in regions if prefix.covers(region.prefix)))


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
    for seen, real in held.services.pairs:
        inside = "" if seen == real else f"the cluster itself sees {real}"
        yield Region(seen, name, "Services", use, inside or note)
    yield from (Region(prefix, name, "NAT hosts", use, note) for prefix in held.nat.prefixes)
    for pool, spec in held.node_pools.items():
        asked = 0 if gone or spec.tombstone else plan.clusters[name].node_pools[pool].nodes
        for segment in spec.segments:
            run = Nodes(f"{name}-{pool}", segment.first, 0, 0)
            for layout in segment.layouts:
                yield from _nodes(run, name, segment, layout, max(0, min(asked - segment.first, segment.nodes)))


def _nodes(run: Nodes, owner: str, segment: Segment, layout: Layout, nodes: int) -> Iterator[Region]:
    """A segment's subnets, and within them what the nodes of today have."""
    capacity = f"{run.stem}: room for {segment.nodes} nodes, {nodes} planned"
    parts = (
        ("hosts", layout.hosts, layout.host_base.value, 1),
        ("pods", layout.pods, layout.pod_base.value, layout.stride),
    )
    for role, subnet, base, stride in parts:
        yield Region(subnet, owner, role, Use.RESERVED, capacity)
        numbered = Nodes(run.stem, run.first, base, stride)
        for block in cover(subnet.family, base, nodes * stride):
            if block != subnet:
                yield Region(block, owner, role, Use.USED, nodes=numbered)


def cover(family: Family, first: int, size: int) -> Iterator[Prefix]:
    """The fewest prefixes that are exactly the `size` addresses from `first`."""
    while size > 0:
        aligned = first & -first if first else 1 << family.width
        step = min(aligned, 1 << (size.bit_length() - 1))
        yield Prefix(family, first, family.width - step.bit_length() + 1)
        first, size = first + step, size - step
