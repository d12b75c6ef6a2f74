"""From node counts to subnets: how large each must be, and what a layout holds.

Some clouds keep the first and last addresses of every subnet to themselves (Azure: four and
one). A subnet of pods then loses the blocks these lie in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from netmgr.plan.document import V6_SUBNET, NodePool
from netmgr.plan.findings import KeyPath
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Layout, NodePoolLock, Segment
from netmgr.plan.space import length_for
from netmgr.prefixes import Address, Family, Prefix

NAT_HOSTS = 8
"""As many as a plan may ask for; there are addresses for all of them, so that asking for more moves nothing."""

NAT_MAPPINGS = NAT_HOSTS * len(Family)
"""What they may come to use of their VNet's mappings."""

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


def fitting(nodes: int, pool: NodePool, families: Iterable[Family], limits: CloudLimits) -> int:
    """How many nodes fit into the subnets that a segment for `nodes` gets."""
    return min(_fitting(nodes, blocks(pool, family), limits) for family in families)


def _fitting(nodes: int, cut: Blocks, limits: CloudLimits) -> int:
    hosts = Prefix(cut.family, 0, hosts_length(nodes, cut.family, limits))
    return holds(layout(hosts, Prefix(cut.family, 0, pods_length(nodes, cut, limits)), cut, limits), limits)


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
    """Fills a cluster's VNets with mappings (private addresses as the cloud counts them), up to the limit of each.

    `promised` is what the hosts of each VNet's segments may come to use, whether they exist yet or not. A
    segment keeps its places for ever, so it is their sum that must stay within the limit.
    """

    cluster: str
    limit: int | None
    promised: dict[str, int]

    def segments(self, name: str, sizes: Iterable[int], held: NodePoolLock | None, each: int) -> Iterator[NewSegment]:
        """New segments for so many nodes of `each` mappings, in order; one that no VNet has room for is divided."""
        first, number = (held.capacity, len(held.segments)) if held else (0, 0)
        for size in sizes:
            missing = size
            while missing:
                vnet, most = self._vnet_for(missing, each)
                nodes = min(missing, most)
                self.promised[vnet] = self.promised.get(vnet, 0) + nodes * each
                yield NewSegment(name, number, first, nodes, nodes, vnet)
                first, number, missing = first + nodes, number + 1, missing - nodes

    def widened(self, segment: NewSegment, fitting: int, each: int) -> NewSegment:
        """The segment with places beyond those wanted, where its subnets have room for `fitting`.

        It gets at most half of what its VNet has left, so that node pools to come find room there too.
        """
        more = max(fitting - segment.nodes, 0)
        if (left := self._left(segment.vnet)) is not None:
            more = min(more, max(left, 0) // 2 // each)
            self.promised[segment.vnet] += more * each
        return replace(segment, most=segment.nodes + more)

    def _vnet_for(self, nodes: int, each: int) -> tuple[str, int]:
        """The first VNet with room for so many nodes, otherwise a new one, and the most it takes."""
        name, number = self.cluster, 1
        while (left := self._left(name)) is not None and nodes * each > left:
            if name not in self.promised:
                return name, max(left // each, 1)
            number += 1
            name = f"{self.cluster}_{number}"  # no cluster is called so
        return name, nodes

    def _left(self, vnet: str) -> int | None:
        if self.limit is None:
            return None
        nat = NAT_MAPPINGS if vnet == self.cluster else 0
        return self.limit - nat - self.promised.get(vnet, 0)


def mappings_per_node(pool: NodePool, families: Iterable[Family]) -> int:
    """Private addresses that a node of a pool counts as: one of its own and one a block, in each family."""
    return sum(1 + blocks(pool, family).count for family in families)


def mappings_of(segment: Segment) -> int:
    """The same for a node of a segment, which has the blocks that were locked for it."""
    return sum(1 + found.blocks for found in segment.layouts)


def promised_mappings(
    held: Iterable[tuple[NodePool | None, NodePoolLock]], families: Iterable[Family]
) -> dict[str, int]:
    """What existing segments may come to use, by VNet: all their places, in every family they will have.

    Node pools that left the plan keep their addresses and may come back to them.
    """
    wanted = tuple(families)
    promised: dict[str, int] = {}
    for pool, spec in held:
        for segment in spec.segments:
            each = max(mappings_of(segment), mappings_per_node(pool, wanted) if pool else 0)
            promised[segment.vnet] = promised.get(segment.vnet, 0) + segment.nodes * each
    return promised


def segment_wants(
    segment: NewSegment, pool: NodePool, families: Iterable[Family], limits: CloudLimits, path: KeyPath
) -> Iterator[Want]:
    """The subnets of a new segment."""
    for family in families:
        cut = blocks(pool, family)
        yield Want(segment.key("hosts"), family, hosts_length(segment.nodes, family, limits), path)
        yield Want(segment.key("pods"), family, pods_length(segment.nodes, cut, limits), path)
