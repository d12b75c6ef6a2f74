"""From node counts to subnets: how large each must be, and how many nodes fit.

Hosts and pods share a prefix, since clouds give a network interface addresses of one alone. The
hosts come first, behind the addresses that the cloud keeps; pods have the whole blocks behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from netmgr.documents.diagnostics import KeyPath
from netmgr.plan.allocate.space import length_for
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import V6_SUBNET, Addressing, NodePool
from netmgr.plan.lock import Layout, NodePoolLock, Segment
from netmgr.prefixes import Address, Family, Prefix

NAT_HOSTS = 8
"""As many as a plan may ask for. All have addresses, so that asking for more moves nothing."""

NAT_MAPPINGS = NAT_HOSTS * len(Family)
"""What they may come to use of their network's mappings."""

Key = tuple[str, ...]
"""What a requested subnet is found by once it has a prefix; the last part is the family."""


@dataclass(frozen=True, slots=True)
class SubnetRequest:
    """A subnet that has no prefix yet. `path` is the key of plan.yaml that asks for it."""

    key: Key
    family: Family
    length: int
    path: KeyPath

    @property
    def size(self) -> int:
        return 1 << (self.family.width - self.length)


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the nodes of a pool cut their subnet: `count` blocks of `length` each."""

    family: Family
    length: int
    count: int

    @property
    def size(self) -> int:
        return 1 << (self.family.width - self.length)


def blocks(pool: NodePool, family: Family) -> Blocks:
    """What a node of this pool gets for its pods."""
    if family is Family.V4:
        return Blocks(family, pool.effective_block_length, pool.blocks_per_node)
    if pool.addressing is Addressing.SINGLE:
        return Blocks(family, family.width, pool.pods_per_node)
    return Blocks(family, pool.block_length_v6, 1)


def hosts_length(hosts: int, family: Family, limits: CloudLimits) -> int:
    if family is Family.V6:
        # Clouds take no IPv6 subnet of another length, and a /64 is never short of hosts.
        return V6_SUBNET
    return min(limits.smallest_subnet, length_for(hosts + limits.reserved, family))


def subnet_length(nodes: int, cut: Blocks, limits: CloudLimits) -> int:
    """Of the subnet for so many nodes and their pods."""
    longest = V6_SUBNET if cut.family is Family.V6 else limits.smallest_subnet
    # Subnets are powers of two, so the rest of this one is room for more nodes (`fitting`).
    return min(longest, length_for(_span(nodes, cut, limits), cut.family))


def _first_block(nodes: int, cut: Blocks, limits: CloudLimits) -> int:
    """Offset of the first whole block behind the addresses of so many hosts."""
    return -(-(limits.reserved_first + nodes) // cut.size) * cut.size


def _span(nodes: int, cut: Blocks, limits: CloudLimits) -> int:
    """Addresses from a subnet's first to its last, the cloud's own at both ends included."""
    pods = nodes * cut.count * cut.size
    return _first_block(nodes, cut, limits) + pods + limits.reserved_last


def layout(subnet: Prefix, nodes: int, cut: Blocks, limits: CloudLimits) -> Layout:
    # In Kubernetes, a Node has one podCIDR of a family: where there is room, it holds all blocks.
    joined = replace(cut, length=cut.length - (cut.count - 1).bit_length(), count=1)
    is_one = joined.size == cut.size * cut.count and _span(nodes, joined, limits) <= subnet.size
    pods = subnet.value + _first_block(nodes, joined if is_one else cut, limits)
    return Layout(
        subnet=subnet,
        host_base=Address(subnet.family, subnet.value + limits.reserved_first),
        pod_base=Address(subnet.family, pods),
        block_length=cut.length,
        blocks=cut.count,
    )


def fitting(nodes: int, pool: NodePool, families: Iterable[Family], limits: CloudLimits) -> int:
    """How many nodes fit into the subnets that a segment for `nodes` gets."""
    cuts = [blocks(pool, family) for family in families]
    return min(holds(subnet_length(nodes, cut, limits), cut, limits) for cut in cuts)


def holds(length: int, cut: Blocks, limits: CloudLimits) -> int:
    """How many nodes fit into a subnet of that length; 0 or less if none does."""
    size = 1 << (cut.family.width - length)
    nodes = (size - limits.reserved) // (cut.count * cut.size + 1)
    # What lies between the hosts and the first whole block behind them may cost one node.
    return nodes - (_span(nodes, cut, limits) > size)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment to be made: the `number`th of a pool, for so many nodes."""

    pool: str
    number: int
    nodes: int
    network: str


@dataclass
class MappingBudget:
    """Puts new segments into a cluster's networks, each of which has a limit of mappings.

    Mappings are private addresses as the cloud counts them. `promised` is what the hosts of each
    network's segments may come to use, whether they exist yet or not: a segment never gives up its
    addresses, so it is their sum that must stay within the limit.
    """

    cluster: str
    limit: int | None
    promised: dict[str, int]

    def segments(
        self, pool: str, sizes: Iterable[int], number: int, mappings: int
    ) -> Iterator[NewSegment]:
        """New segments, from `number` on, for so many nodes of `mappings` each.

        They are divided where no network has room.
        """
        for size in sizes:
            missing = size
            while missing:
                network, most = self._network_for(missing, mappings)
                nodes = min(missing, most)
                # Promised at once, before any node exists: the cloud counts addresses of machines
                # that run, and a full segment must not find its network full.
                self.promised[network] = self.promised.get(network, 0) + nodes * mappings
                yield NewSegment(pool, number, nodes, network)
                number, missing = number + 1, missing - nodes

    def widened(self, segment: NewSegment, fitting: int, mappings: int) -> NewSegment:
        """The segment with more nodes than asked for, where its subnets have room for `fitting`."""
        more = fitting - segment.nodes
        # At most half of what its network has left, so that future node pools find room.
        if (left := self.left(segment.network)) is not None:
            more = min(more, left // (2 * mappings))
        more = max(more, 0)
        self.promised[segment.network] += more * mappings
        return replace(segment, nodes=segment.nodes + more)

    def _network_for(self, nodes: int, mappings: int) -> tuple[str, int]:
        """The first network with room for so many nodes, or a new one, and the most it takes."""
        name, number = self.cluster, 1
        while (left := self.left(name)) is not None and nodes * mappings > left:
            if name not in self.promised:
                # At least one, or this would never end: too large a node is alone in a network.
                return name, max(left // mappings, 1)
            number += 1
            name = f"{self.cluster}_{number}"  # no cluster's name has an underscore
        return name, nodes

    def left(self, network: str) -> int | None:
        """Mappings that a network of the cluster has left; None without a limit."""
        if self.limit is None:
            return None
        nat = NAT_MAPPINGS if network == self.cluster else 0
        return self.limit - nat - self.promised.get(network, 0)


def mappings_per_node(pool: NodePool, families: Iterable[Family]) -> int:
    """Mappings of a node of a pool: one for itself and one a block, in each family."""
    return sum(1 + blocks(pool, family).count for family in families)


def mappings_of(segment: Segment) -> int:
    """The same for a node of a segment, with the blocks that the lock has for it."""
    return sum(1 + segment_layout.blocks for segment_layout in segment.layouts)


def promised_mappings(
    pools: Mapping[str, NodePool], held: Mapping[str, NodePoolLock], families: Sequence[Family]
) -> dict[str, int]:
    """Mappings of existing segments with all their nodes, in the plan's families, by network."""
    promised: Counter[str] = Counter()
    for name, held_pool in held.items():
        # A node pool that left the plan keeps its addresses, and may come back to them.
        # A segment from before IPv6 gets blocks of that, too: the larger figure is what it may use.
        least = mappings_per_node(pools[name], families) if name in pools else 0
        for segment in held_pool.segments:
            promised[segment.network] += segment.nodes * max(mappings_of(segment), least)
    return promised
