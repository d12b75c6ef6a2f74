"""Every machine that a lock has addresses for: nodes, the hub's routers, and NAT hosts.

All of it is arithmetic on the lock: one node takes microseconds, whatever the pool's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.documents.sites import HUB, Role
from netmgr.plan.lock import Layout, LockDocument, Segment
from netmgr.prefixes import Address, Prefix


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One node as the lock has it; `offset` counts from 0 within `segment`."""

    cluster: str
    pool: str
    index: int
    segment: Segment
    offset: int

    @property
    def name(self) -> str:
        """`<cluster>-<node pool>-<number>`."""
        return f"{self.cluster}-{self.pool}-{self.index}"

    @property
    def hosts(self) -> tuple[Address, ...]:
        """The node's own addresses, v4 first."""
        return tuple(layout.host(self.offset) for layout in self.segment.layouts)

    @property
    def blocks(self) -> tuple[Prefix, ...]:
        """What its pods get addresses of, v4 first."""
        return tuple(
            block for layout in self.segment.layouts for block in layout.node_blocks(self.offset)
        )


def segments(lock: LockDocument) -> Iterator[tuple[str, str, Segment]]:
    """Every segment with the names of its cluster and node pool, tombstones included."""
    for cluster, held in lock.clusters.items():
        for pool, spec in held.node_pools.items():
            for segment in spec.segments:
                yield cluster, pool, segment


def planned_pods(lock: LockDocument) -> dict[str, int]:
    """How many pods each node of all clusters has addresses for, by its name."""
    return {
        PlannedNode(cluster, pool, index, segment, 0).name: segment.v4.stride
        for cluster, pool, segment in segments(lock)
        for index in range(segment.first, segment.last + 1)
    }


def node(lock: LockDocument, cluster: str, pool: str, index: int) -> PlannedNode | None:
    """The node numbered `index` (from 0), or None if the node pool has fewer."""
    held = lock.clusters.get(cluster)
    spec = held.node_pools.get(pool) if held else None
    for segment in spec.segments if spec else ():
        if segment.first <= index <= segment.last:
            return PlannedNode(cluster, pool, index, segment, index - segment.first)
    return None


def node_named(lock: LockDocument, name: str) -> PlannedNode | None:
    """The node of that name (`<cluster>-<node pool>-<number>`), or None."""
    stem, _, number = name.rpartition("-")
    # A node has one name: `a-gpu-007` is no alias of `a-gpu-7`.
    if not (number.isascii() and number.isdigit()) or number != str(int(number)):
        return None
    for cluster, pool, _ in segments(lock):
        if stem == f"{cluster}-{pool}":
            return node(lock, cluster, pool, int(number))
    return None


def node_owning(lock: LockDocument, address: Address) -> PlannedNode | None:
    """The node whose own address it is, or one of whose blocks holds it; or None."""
    for cluster, pool, segment in segments(lock):
        for layout in segment.layouts:
            offset = _offset(layout, address)
            # A subnet may hold more addresses than the segment has nodes.
            if offset is not None and offset < segment.nodes:
                return PlannedNode(cluster, pool, segment.first + offset, segment, offset)
    return None


def _offset(layout: Layout, address: Address) -> int | None:
    if not layout.subnet.holds(address):
        return None
    if address.value >= layout.pod_base.value:
        return (address.value - layout.pod_base.value) // layout.stride
    # Before the first host are addresses that the cloud keeps.
    offset = address.value - layout.host_base.value
    return offset if offset >= 0 else None


@dataclass(frozen=True, slots=True)
class PlannedHost:
    """One router (`site` is the hub) or NAT host (`site` is its cluster), and its own addresses."""

    role: Role
    site: str
    number: int
    addresses: tuple[Address, ...]

    @property
    def name(self) -> str:
        """`router-<number>.hub` or `nat-<number>.<cluster>`, numbers from 0."""
        # With a dot, which no cluster and no node pool can have: it is never a node's name.
        return f"{'router' if self.role is Role.HUB_ROUTER else 'nat'}-{self.number}.{self.site}"


def hosts(lock: LockDocument) -> Iterator[PlannedHost]:
    """Every router, then every NAT host of the clusters that are in use."""
    for number, addresses in enumerate(lock.hub.routers.hosts):
        yield PlannedHost(Role.HUB_ROUTER, HUB, number, addresses)
    for name, held in lock.clusters.items():
        for number, addresses in enumerate(held.nat.hosts if not held.tombstone else ()):
            yield PlannedHost(Role.NAT_HOST, name, number, addresses)
