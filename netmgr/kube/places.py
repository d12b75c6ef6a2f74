"""Places of a cluster's nodes (pure): what the lock's arithmetic gives to the node at each number of each node pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.errors import ConfigError
from netmgr.plan import nodes
from netmgr.plan.lock import Layout, LockDocument, Segment
from netmgr.prefixes import Family, Prefix, merge

LARGEST_BY_DEFAULT = 256
"""Addresses of a node whose range kube-controller-manager chose (--node-cidr-mask-size-ipv4, default 24)."""


class Slot(NamedTuple):
    """A place's name: the node pool and the number in it, from 0."""

    pool: str
    number: int

    def __str__(self) -> str:
        return f"{self.pool}/{self.number}"


@dataclass(frozen=True, slots=True)
class Place:
    """What the node there gives to its pods.

    `cidrs` are what Kubernetes can say of it: one prefix a family, the largest there is.
    """

    slot: Slot
    ranges: tuple[Prefix, ...]
    cidrs: tuple[Prefix, ...]

    @classmethod
    def of(cls, slot: Slot, blocks: Iterable[Prefix]) -> Place:
        """Blocks that are neighbours become one range wherever one prefix can say so."""
        ranges = tuple(merge(blocks))
        families = sorted({block.family for block in ranges})
        largest = (min((r for r in ranges if r.family is family), key=lambda r: r.length) for family in families)
        return cls(slot, ranges, tuple(largest))

    @property
    def annotation(self) -> str:
        """All the ranges, where a Node's podCIDRs cannot say them; else nothing."""
        return "" if self.ranges == self.cidrs else ",".join(map(str, self.ranges))


class Places:
    """All the places of one cluster."""

    def __init__(self, lock: LockDocument, cluster: str) -> None:
        """Take them from the lock.

        Raises:
            ConfigError: the lock has no such cluster.
        """
        if cluster not in lock.clusters or lock.clusters[cluster].tombstone:
            known = ", ".join(name for name, held in lock.clusters.items() if not held.tombstone)
            raise ConfigError(f"the lock has no cluster {cluster!r}; there are: {known or 'none'}")
        self._lock = lock
        self.cluster = cluster
        held = lock.clusters[cluster].node_pools
        self.capacity = {name: pool.capacity for name, pool in held.items() if not pool.tombstone}
        """How many nodes each node pool has places for; those that the plan has dropped take no new ones."""
        self._segments = [(pool, segment) for name, pool, segment in nodes.segments(lock) if name == cluster]

    def at(self, slot: Slot) -> Place | None:
        """The place of that name, or None when the lock has none."""
        found = nodes.node(self._lock, self.cluster, slot.pool, slot.number)
        return Place.of(slot, found.blocks) if found else None

    def named(self, node: str, pool: str) -> Slot | None:
        """The place that a node's name asks for, where it is `<cluster>-<node pool>-<number>` as the plan names it."""
        stem, _, number = node.rpartition("-")
        if stem != f"{self.cluster}-{pool}" or not (number.isascii() and number.isdigit()):
            return None
        slot = Slot(pool, int(number))
        return slot if str(slot.number) == number and slot.number < self.capacity.get(pool, 0) else None

    def is_beyond_a_node(self, prefix: Prefix) -> bool:
        """Whether an IPv4 prefix is larger than any node's: a /24, as kube-controller-manager gives, or the plan's."""
        own = max(
            (layout.stride for _, segment in self._segments for layout in segment.layouts if _is_v4(layout)), default=0
        )
        return prefix.family is Family.V4 and prefix.size > max(LARGEST_BY_DEFAULT, own)

    def touched(self, prefixes: Iterable[Prefix]) -> Iterator[Slot]:
        """Every place that has an address in one of the prefixes, some perhaps twice."""
        for prefix in prefixes:
            for pool, segment in self._segments:
                for layout in segment.layouts:
                    numbers = _numbers(layout, segment, prefix)
                    yield from (Slot(pool, segment.first + number) for number in numbers)


def _is_v4(layout: Layout) -> bool:
    return layout.pods.family is Family.V4


def _numbers(layout: Layout, segment: Segment, prefix: Prefix) -> range:
    if layout.pods.family is not prefix.family:
        return range(0)
    base = layout.pod_base.value
    first, last = max(prefix.value, base), min(prefix.last, base + segment.nodes * layout.stride - 1)
    return range((first - base) // layout.stride, (last - base) // layout.stride + 1) if first <= last else range(0)
