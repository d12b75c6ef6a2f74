"""What the plan's lock gives to each node of a cluster, and the claim of a Node on it (pure).

A node index (node pool and number) names a node of the plan; its allocation is what the plan
gives it. A claim says which Node of the cluster holds an allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.errors import ConfigError
from netmgr.plan import machines
from netmgr.plan.lock import Layout, LockDocument, Segment
from netmgr.prefixes import Family, Prefix, merge

LARGEST_BY_DEFAULT = 256
"""Addresses of a range that kube-controller-manager chose: a /24 by default."""


class NodeIndex(NamedTuple):
    """A node of the plan: its node pool and its number there, from 0."""

    pool: str
    number: int

    def __str__(self) -> str:
        return f"{self.pool}/{self.number}"


@dataclass(frozen=True, slots=True)
class NodeAllocation:
    """What the node at an index gives to its pods.

    `cidrs` are what Kubernetes can express of it: one prefix a family, the largest there is.
    """

    index: NodeIndex
    ranges: tuple[Prefix, ...]
    cidrs: tuple[Prefix, ...]

    @classmethod
    def of(cls, index: NodeIndex, blocks: Iterable[Prefix]) -> NodeAllocation:
        """Join neighbouring blocks into one range wherever one prefix can express them."""
        ranges = tuple(merge(blocks))
        # The API server takes one podCIDR of each family at most. The largest goes there; the
        # annotation names the others.
        largest: dict[Family, Prefix] = {}
        for block in ranges:
            known = largest.get(block.family)
            if known is None or block.length < known.length:
                largest[block.family] = block
        return cls(index, ranges, tuple(largest[family] for family in sorted(largest)))

    @property
    def annotation(self) -> str:
        """All the ranges, where a Node's podCIDRs cannot express them; else empty."""
        return "" if self.ranges == self.cidrs else ",".join(map(str, self.ranges))


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocation that a Node holds, or that is in cooldown because its Node is gone."""

    allocation: NodeAllocation
    node: str
    uid: str
    released: float | None = None
    """When the Node was found gone, in seconds since the epoch; None while it is there."""

    @property
    def index(self) -> NodeIndex:
        return self.allocation.index


class NodeAllocations:
    def __init__(self, lock: LockDocument, cluster: str) -> None:
        """Take them from the lock; ConfigError if it has no such cluster."""
        if cluster not in lock.clusters or lock.clusters[cluster].tombstone:
            known = ", ".join(name for name, held in lock.clusters.items() if not held.tombstone)
            raise ConfigError(f"the lock has no cluster {cluster!r}; there are: {known or 'none'}")
        self._lock = lock
        self.cluster = cluster
        held = lock.clusters[cluster].node_pools
        self.capacity = {name: pool.capacity for name, pool in held.items() if not pool.tombstone}
        """Nodes that each node pool has allocations for; pools that the plan dropped take none."""
        self._segments = [
            (pool, segment) for name, pool, segment in machines.segments(lock) if name == cluster
        ]

    def at(self, index: NodeIndex) -> NodeAllocation | None:
        node = machines.node(self._lock, self.cluster, index.pool, index.number)
        return NodeAllocation.of(index, node.blocks) if node else None

    def named(self, node: str, pool: str) -> NodeIndex | None:
        """The index in a node's name, if it is `<cluster>-<node pool>-<number>` as in the plan."""
        stem, _, text = node.rpartition("-")
        # isdigit alone also takes digits such as '²', which int refuses.
        if stem != f"{self.cluster}-{pool}" or not (text.isascii() and text.isdigit()):
            return None
        number = int(text)
        # 'node-01' and 'node-1' are two Nodes, and only one of them is the plan's.
        is_planned = str(number) == text and number < self.capacity.get(pool, 0)
        return NodeIndex(pool, number) if is_planned else None

    def exceeds_a_node(self, prefix: Prefix) -> bool:
        """Whether an IPv4 prefix is larger than any node's, of the plan or `LARGEST_BY_DEFAULT`."""
        largest = LARGEST_BY_DEFAULT
        for _, segment in self._segments:
            for layout in segment.layouts:
                if layout.family is Family.V4:
                    largest = max(largest, layout.stride)
        return prefix.family is Family.V4 and prefix.size > largest

    def touched(self, prefixes: Iterable[Prefix]) -> Iterator[NodeIndex]:
        """Every index with an address in one of the prefixes, some perhaps twice."""
        for prefix in prefixes:
            for pool, segment in self._segments:
                for layout in segment.layouts:
                    for number in _numbers(layout, segment, prefix):
                        yield NodeIndex(pool, segment.first + number)


def _numbers(layout: Layout, segment: Segment, prefix: Prefix) -> range:
    """Numbers within the segment of the nodes that have addresses in the prefix."""
    if layout.family is not prefix.family:
        return range(0)
    base = layout.pod_base.value
    first = max(prefix.value, base)
    last = min(prefix.last, base + segment.nodes * layout.stride - 1)
    if first > last:
        return range(0)
    # A range, not a list: a false podCIDR may touch every node of the plan, and the caller stops
    # early.
    return range((first - base) // layout.stride, (last - base) // layout.stride + 1)
