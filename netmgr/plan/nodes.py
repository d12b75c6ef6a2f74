"""From a node's name to its addresses, and from an address back to its node: arithmetic on the lock.

A controller that gives nodes their blocks asks `planned` for all places of a node pool, `node`
for the blocks of one (microseconds, whatever the pool's size), and `owning` for the place that
a block it finds in use belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.plan.lock import Layout, LockDocument, Segment
from netmgr.prefixes import Address, Prefix


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node as the lock has it.

    `hosts` are its own addresses and `blocks` its pods', v4 first; `place` counts from 0
    within `segment`.
    """

    cluster: str
    pool: str
    index: int
    segment: Segment
    place: int

    @property
    def name(self) -> str:
        """`<cluster>-<node pool>-<number>`."""
        return f"{self.cluster}-{self.pool}-{self.index}"

    @property
    def hosts(self) -> tuple[Address, ...]:
        """The node's own addresses, one a family."""
        return tuple(layout.host(self.place) for layout in self.segment.layouts)

    @property
    def blocks(self) -> tuple[Prefix, ...]:
        """What its pods get addresses of."""
        return tuple(block for layout in self.segment.layouts for block in layout.node_blocks(self.place))


def segments(lock: LockDocument) -> Iterator[tuple[str, str, Segment]]:
    """Every segment with the names of its cluster and node pool, tombstones included."""
    for cluster, held in lock.clusters.items():
        for pool, spec in held.node_pools.items():
            for segment in spec.segments:
                yield cluster, pool, segment


def node(lock: LockDocument, cluster: str, pool: str, index: int) -> PlannedNode | None:
    """The node numbered `index` (from 0), or None when the lock has no place for it."""
    held = lock.clusters.get(cluster)
    spec = held.node_pools.get(pool) if held else None
    for segment in spec.segments if spec else ():
        if segment.first <= index < segment.first + segment.nodes:
            return PlannedNode(cluster, pool, index, segment, index - segment.first)
    return None


def planned(lock: LockDocument, cluster: str, pool: str) -> Iterator[PlannedNode]:
    """Every place of a node pool in the order of node numbers, none if there is no such pool in use.

    There are as many as fit, which is more than the plan asks for today.
    """
    held = lock.clusters.get(cluster)
    spec = held.node_pools.get(pool) if held and not held.tombstone else None
    for segment in spec.segments if spec and not spec.tombstone else ():
        for place in range(segment.nodes):
            yield PlannedNode(cluster, pool, segment.first + place, segment, place)


def named(lock: LockDocument, name: str) -> PlannedNode | None:
    """The node of that name (`<cluster>-<node pool>-<number>`), or None."""
    stem, _, number = name.rpartition("-")
    if not (number.isascii() and number.isdigit()) or number != str(int(number)):
        return None
    for cluster, pool, _ in segments(lock):
        if stem == f"{cluster}-{pool}":
            return node(lock, cluster, pool, int(number))
    return None


def owning(lock: LockDocument, address: Address) -> PlannedNode | None:
    """The node whose own address it is, or one of whose blocks holds it; or None."""
    for cluster, pool, segment in segments(lock):
        for layout in segment.layouts:
            place = _place(layout, address)
            if place is not None and place < segment.nodes:
                return PlannedNode(cluster, pool, segment.first + place, segment, place)
    return None


def _place(layout: Layout, address: Address) -> int | None:
    if layout.hosts.holds(address) and address.value >= layout.host_base.value:
        return address.value - layout.host_base.value
    if layout.pods.holds(address) and address.value >= layout.pod_base.value:
        return (address.value - layout.pod_base.value) // layout.stride
    return None
