"""From node counts to subnets: how large each must be, and what a layout holds.

Some clouds keep the first and last addresses of every subnet to themselves (Azure: four and
one). A subnet of pods then loses the blocks these lie in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from netmgr.plan.document import NodePool
from netmgr.plan.findings import KeyPath
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Layout, NodePoolLock, Segment
from netmgr.plan.space import length_for
from netmgr.prefixes import Address, Family, Prefix

V6_SUBNET = 64
"""Length of an IPv6 subnet; Azure allows no other."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """A subnet that has no place yet. `path` is the key of plan.yaml that asks for it."""

    key: Key
    family: Family
    length: int
    path: KeyPath

    @property
    def size(self) -> int:
        """Addresses."""
        return 1 << (self.family.width - self.length)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the nodes of a pool cut their subnet: `count` blocks of `length` each."""

    family: Family
    length: int
    count: int

    @property
    def size(self) -> int:
        """Addresses in one block."""
        return 1 << (self.family.width - self.length)

    def skipped(self, limits: CloudLimits) -> tuple[int, int]:
        """Blocks lost at the subnet's beginning and end."""
        if not limits.reserved_among_pods:
            return 0, 0
        return -(-limits.reserved_first // self.size), -(-limits.reserved_last // self.size)


def blocks(pool: NodePool, family: Family) -> Blocks:
    """What a node of this pool gets for its pods."""
    if family is Family.V4:
        return Blocks(family, pool.effective_block_length, pool.blocks_per_node)
    return Blocks(family, pool.block_length_v6, 1)


def hosts_length(hosts: int, family: Family, limits: CloudLimits) -> int:
    """Length of a subnet for so many hosts."""
    if family is Family.V6:
        return V6_SUBNET
    return min(limits.smallest_subnet, length_for(hosts + limits.reserved, family))


def pods_length(nodes: int, cut: Blocks, limits: CloudLimits) -> int:
    """Length of a subnet for the pods of so many nodes."""
    slots = nodes * cut.count + sum(cut.skipped(limits))
    longest = V6_SUBNET if cut.family is Family.V6 else limits.smallest_subnet
    return min(longest, cut.length - max(slots - 1, 0).bit_length())


def layout(hosts: Prefix, pods: Prefix, cut: Blocks, limits: CloudLimits) -> Layout:
    """The arithmetic of a segment whose subnets are these."""
    return Layout(
        hosts=hosts,
        host_base=Address(hosts.family, hosts.value + limits.reserved_first),
        pods=pods,
        pod_base=Address(pods.family, pods.value + cut.skipped(limits)[0] * cut.size),
        block_length=cut.length,
        blocks=cut.count,
    )


def holds(found: Layout, limits: CloudLimits) -> int:
    """How many nodes fit into a layout."""
    cut = Blocks(found.pods.family, found.block_length, found.blocks)
    own = found.hosts.last - limits.reserved_last - found.host_base.value + 1
    pods = (found.pods.last + 1 - found.pod_base.value) // cut.size - cut.skipped(limits)[1]
    return min(own, pods // cut.count)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment to be: nodes `first` and on of a pool, `nodes` of them wanted, `most` allowed."""

    pool: str
    number: int
    first: int
    nodes: int
    most: int
    vnet: str

    def key(self, role: str) -> Key:
        """Key of one of its subnets: role is hosts or pods."""
        return ("node_pools", self.pool, str(self.number), role)


@dataclass
class Vnets:
    """Fills a cluster's VNets with mappings, one after the other; a new one when the last is full."""

    cluster: str
    limit: int | None
    used: dict[str, int]

    def segments(self, name: str, pool: NodePool, held: NodePoolLock | None, families: int) -> Iterator[NewSegment]:
        """Segments that the pool lacks; an empty answer when its capacity is there."""
        first, number = (held.capacity, len(held.segments)) if held else (0, 0)
        each = mappings_per_node(pool, families)
        while first < pool.capacity:
            missing = pool.capacity - first
            vnet, most = self._vnet_for(missing, each)
            segment = NewSegment(name, number, first, min(missing, most), most, vnet)
            self.used[vnet] = self.used.get(vnet, 0) + segment.nodes * each
            yield segment
            first, number = first + segment.nodes, number + 1

    def _vnet_for(self, nodes: int, each: int) -> tuple[str, int]:
        """The VNet for so many nodes, and the most it takes: all that is left, or all of a new one."""
        last = self._name(max(len(self.used), 1))
        if self.limit is None:
            return last, 1 << Family.V4.width
        left = (self.limit - self.used.get(last, 0)) // each
        whole = self.limit // each
        if nodes <= left or self.used.get(last, 0) == 0:
            return last, max(left, 1)
        return self._name(len(self.used) + 1), max(whole, 1)

    def _name(self, number: int) -> str:
        return self.cluster if number == 1 else f"{self.cluster}_{number}"  # no cluster is called so


def mappings_per_node(pool: NodePool, families: int = 1) -> int:
    """Private addresses a node counts as: its own and one a block, once more for IPv6."""
    return 1 + pool.blocks_per_node + 2 * (families - 1)


def segment_wants(
    segment: NewSegment, pool: NodePool, families: Iterable[Family], limits: CloudLimits, path: KeyPath
) -> Iterator[Want]:
    """The subnets of a new segment."""
    for family in families:
        cut = blocks(pool, family)
        yield Want(segment.key("hosts"), family, hosts_length(segment.nodes, family, limits), path)
        yield Want(segment.key("pods"), family, pods_length(segment.nodes, cut, limits), path)


def used_mappings(pools: Iterable[tuple[NodePool | None, NodePoolLock]], families: int) -> dict[str, int]:
    """Mappings that existing segments may come to use, by VNet; pools that are gone use none."""
    used: dict[str, int] = {}
    for pool, held in pools:
        for segment in held.segments:
            used.setdefault(segment.vnet, 0)
            if pool:
                used[segment.vnet] += mappings_per_node(pool, families) * _declared(segment, pool)
    return used


def _declared(segment: Segment, pool: NodePool) -> int:
    return max(0, min(segment.nodes, pool.capacity - segment.first))
