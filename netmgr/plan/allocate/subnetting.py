"""A site's subnets: which are missing, what exists already, and the lock's entries for both.

A node pool's pinned subnets become its first segments; from there on they are in the lock like any
other. Machines with fixed addresses (routers, researchers, NAT hosts) have subnets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from netmgr.documents.diagnostics import KeyPath, error
from netmgr.plan.allocate import demand
from netmgr.plan.allocate.pool import Placement
from netmgr.plan.allocate.space import Space
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, NodePool
from netmgr.plan.lock import ClusterLock, Layout, NodePoolLock, PlanRefused, Segment, SubnetLock
from netmgr.prefixes import Address, Family, Prefix


@dataclass(frozen=True, slots=True)
class Missing:
    """What a cluster lacks: new segments, and a subnet for each of their roles and families.

    `existing` are segments of the lock that lack a family.
    """

    segments: tuple[demand.NewSegment, ...]
    existing: tuple[demand.NewSegment, ...]
    requests: tuple[demand.SubnetRequest, ...]


def missing_subnets(
    name: str,
    cluster: Cluster,
    before: Mapping[str, NodePoolLock],
    families: tuple[Family, ...],
    limits: CloudLimits,
    sizes: Mapping[str, list[int]] | None = None,
) -> Missing:
    """What the cluster lacks, beside the node pools it has, for the capacity that it declares.

    `sizes` divides what a node pool lacks into segments of so many nodes; without, it gets one.
    """
    promised = _promised(cluster, before, families)
    budget = demand.MappingBudget(name, limits.limits.mappings_per_network, promised)
    segments: list[demand.NewSegment] = []
    existing: list[demand.NewSegment] = []
    requests: list[demand.SubnetRequest] = []
    largest_first = sorted(
        cluster.node_pools.items(), key=lambda named_pool: (-named_pool[1].capacity, named_pool[0])
    )
    for pool, spec in largest_first:
        path: KeyPath = ("clusters", name, "node_pools", pool, "nodes")
        lacks = missing_nodes(spec, before.get(pool))
        parts = (sizes or {}).get(pool, [lacks])
        mappings = demand.mappings_per_node(spec, families)
        for segment in budget.segments(pool, parts, before.get(pool), mappings):
            segments.append(segment)
            requests += demand.segment_requests(segment, spec, families, limits, path)
        for segment, lacking in _lacking_family(pool, before.get(pool), families):
            existing.append(segment)
            requests += demand.segment_requests(segment, spec, lacking, limits, path)
    # Only once every node pool has what it asks for may one promise more than that.
    widened = []
    for segment in segments:
        spec = cluster.node_pools[segment.pool]
        most = demand.fitting(segment.nodes, spec, families, limits)
        widened.append(budget.widened(segment, most, demand.mappings_per_node(spec, families)))
    return Missing(tuple(widened), tuple(existing), tuple(requests))


def _promised(
    cluster: Cluster, held: Mapping[str, NodePoolLock], families: Iterable[Family]
) -> dict[str, int]:
    pools = ((cluster.node_pools.get(name), spec) for name, spec in held.items())
    return demand.promised_mappings(pools, families)


def missing_nodes(spec: NodePool, held: NodePoolLock | None) -> int:
    """How many more nodes the lock must have room for."""
    return max(spec.capacity - (held.capacity if held else 0), 0)


def _lacking_family(
    pool: str, held: NodePoolLock | None, families: Iterable[Family]
) -> Iterator[tuple[demand.NewSegment, list[Family]]]:
    """Segments that lack a family, because they were made before the plan had IPv6."""
    # Their nodes keep their numbers and IPv4 addresses; only a second family is added.
    for number, segment in enumerate(held.segments if held else ()):
        present = {layout.pods.family for layout in segment.layouts}
        if lacking := [family for family in families if family not in present]:
            first, nodes = segment.first, segment.nodes
            late = demand.NewSegment(pool, number, first, nodes, nodes, segment.network)
            yield late, lacking


def taken_by(held: ClusterLock | None) -> list[Prefix]:
    """The subnets a cluster has, those of tombstones included."""
    return [*held.nat.prefixes, *taken_by_pools(held.node_pools)] if held else []


def taken_by_pools(pools: Mapping[str, NodePoolLock]) -> list[Prefix]:
    segments = (segment for spec in pools.values() for segment in spec.segments)
    return [prefix for segment in segments for prefix in segment.prefixes]


def complete(
    cluster: Cluster,
    before: Mapping[str, NodePoolLock],
    new: Missing,
    placed: Placement,
    limits: CloudLimits,
) -> dict[str, NodePoolLock]:
    """The node pools' entries, with new segments appended and old ones as they were."""
    node_pools = {}
    for name in sorted(before.keys() | cluster.node_pools.keys()):
        old = before.get(name, NodePoolLock())
        if name not in cluster.node_pools:
            # Its nodes may still run. Back in the plan, it finds the same addresses.
            node_pools[name] = old.model_copy(update={"tombstone": True})
            continue
        spec = cluster.node_pools[name]
        # Only appended to: a node's number counts through the segments in order, so that inserting
        # one would renumber every node behind it.
        segments = list(old.segments)
        for late in _of_pool(name, new.existing):
            v6 = _layout(late, spec, Family.V6, placed, limits)
            segments[late.number] = segments[late.number].model_copy(update={"v6": v6})
        added = _of_pool(name, new.segments)
        segments += [_segment(segment, spec, placed, limits) for segment in added]
        node_pools[name] = NodePoolLock(segments=tuple(_numbered(segments)))
    return node_pools


def _of_pool(pool: str, segments: Iterable[demand.NewSegment]) -> list[demand.NewSegment]:
    return [segment for segment in segments if segment.pool == pool]


def _numbered(segments: Iterable[Segment]) -> Iterator[Segment]:
    """New segments begin where those before them end, which may hold more nodes than asked for."""
    first = 0
    for segment in segments:
        # Only new segments change here: those of the lock begin where they always did.
        yield segment.model_copy(update={"first": first})
        first += segment.nodes


def _segment(
    new: demand.NewSegment, spec: NodePool, placed: Placement, limits: CloudLimits
) -> Segment:
    v4 = _layout(new, spec, Family.V4, placed, limits)
    has_v6 = new.key("pods", Family.V6) in placed
    v6 = _layout(new, spec, Family.V6, placed, limits) if has_v6 else None
    nodes = min(new.most, *(demand.holds(layout, limits) for layout in (v4, v6) if layout))
    return Segment(first=new.first, nodes=nodes, network=new.network, v4=v4, v6=v6)


def _layout(
    new: demand.NewSegment, spec: NodePool, family: Family, placed: Placement, limits: CloudLimits
) -> Layout:
    hosts, pods = (placed[new.key(role, family)] for role in ("hosts", "pods"))
    return demand.layout(hosts, pods, demand.blocks(spec, family), limits)


def with_pinned(
    name: str,
    cluster: Cluster,
    held: Mapping[str, NodePoolLock],
    limits: CloudLimits,
    families: tuple[Family, ...],
) -> dict[str, NodePoolLock]:
    """A cluster's node pools as the lock has them, with the pinned subnets that they lack.

    Raises:
        PlanRefused: no node fits into a pinned subnet, or its network.
    """
    node_pools = dict(held)
    for pool, spec in sorted(cluster.node_pools.items()):
        segments = list(node_pools[pool].segments) if pool in node_pools else []
        # Pins that the lock has are segments of it already; a pin can only be added behind those.
        for number in range(len(segments), len(spec.subnets)):
            used = _promised(cluster, node_pools, families).get(name, 0)
            path: KeyPath = ("clusters", name, "node_pools", pool, "subnets", number)
            first = sum(segment.nodes for segment in segments)
            segments.append(_pinned_segment(path, spec, first, limits, used))
            node_pools[pool] = NodePoolLock(segments=tuple(segments))
    return node_pools


def _pinned_segment(
    path: KeyPath, spec: NodePool, first: int, limits: CloudLimits, used: int
) -> Segment:
    """The segment of the pinned subnets at `path`, in a network with `used` mappings."""
    pin, network = spec.subnets[int(path[-1])], str(path[1])
    pods = {prefix.family: prefix for prefix in pin.pods}
    layouts = {}
    for hosts in pin.hosts:
        cut = demand.blocks(spec, hosts.family)
        layouts[hosts.family] = demand.layout(hosts, pods[hosts.family], cut, limits)
    # The family with less room decides: every node has both.
    nodes = min(demand.holds(layout, limits) for layout in layouts.values())
    if limits.limits.mappings_per_network is not None:
        left = limits.limits.mappings_per_network - demand.NAT_MAPPINGS - used
        nodes = min(nodes, left // demand.mappings_per_node(spec, layouts))
    if nodes < 1:
        word = limits.words.network
        message = f"no node fits into these subnets beside what their {word} has"
        raise PlanRefused([error(message, path, remedy="pin subnets that hold what a node takes")])
    v4, v6 = layouts[Family.V4], layouts.get(Family.V6)
    return Segment(first=first, nodes=nodes, network=network, v4=v4, v6=v6)


def pieces(
    spaces: Sequence[Space],
    fixed: Iterable[demand.SubnetRequest],
    missing: Mapping[str, tuple[NodePool, int]],
    limits: CloudLimits,
) -> dict[str, list[int]] | None:
    """Smaller segments for a demand that no single free block holds: nodes of each, by node pool.

    Growth in steps would find room in pieces; this finds the pieces at once. Every size in which a
    subnet is used to its last address is tried, the largest first, as often as it fits.

    `spaces` are what is free (IPv4), in the order in which to use it, and are changed. `fixed` are
    subnets that cannot be divided, `missing` each node pool and how many nodes it lacks room for.
    None when they do not fit even in pieces.
    """
    if not take_all(spaces, (request.length for request in fixed)):
        return None
    sizes: dict[str, list[int]] = {}
    for name, (pool, nodes) in missing.items():
        sizes[name] = list(_pieces_of(spaces, pool, nodes, limits))
        if sum(sizes[name]) < nodes:
            return None
    return sizes


def _pieces_of(
    spaces: Sequence[Space], pool: NodePool, nodes: int, limits: CloudLimits
) -> Iterator[int]:
    cut = demand.blocks(pool, Family.V4)
    for size in _full_sizes(pool, nodes, limits):
        while nodes:
            piece = min(size, nodes)
            hosts = demand.hosts_length(piece, Family.V4, limits)
            if not take_all(spaces, (hosts, demand.pods_length(piece, cut, limits))):
                break
            nodes -= piece
            yield piece


def _full_sizes(pool: NodePool, nodes: int, limits: CloudLimits) -> list[int]:
    """Numbers of nodes that fill a subnet of hosts or of pods, the largest first."""
    cut = demand.blocks(pool, Family.V4)
    lost = sum(cut.skipped(limits))
    sizes: set[int] = set()
    for bits in range(Family.V4.width):
        # Subnets are powers of two: any other number of nodes leaves part of one unused.
        sizes |= {(1 << bits) - limits.reserved, ((1 << bits) - lost) // cut.count}
    # Not all nodes at once, which was tried before; no piece is smaller than one node.
    return sorted({max(size, 1) for size in sizes if size < max(nodes, 2)}, reverse=True)


def take_all(spaces: Sequence[Space], lengths: Iterable[int]) -> bool:
    """Take subnets of these lengths, all or none, each from the first space that has room."""
    taken = []
    # The largest first: a small one could take the only block that is large enough.
    for length in sorted(lengths):
        for space in spaces:
            if (subnet := space.packed(length)) is not None:
                space.take(subnet)
                taken.append((space, subnet))
                break
        else:
            for space, subnet in taken:
                space.give(subnet)
            return False
    return True


@dataclass(frozen=True, slots=True)
class FixedSubnet:
    """A subnet of machines with fixed addresses: what the lock has, and what the plan asks for.

    It has IPv4, and IPv6 once Services have; a family that it lacks is added to what it has.
    `seats` is how many hosts its size allows for, `hosts` how many have addresses in it.
    """

    name: demand.Key
    path: KeyPath
    network: str
    held: SubnetLock | None
    seats: int = demand.NAT_HOSTS
    hosts: int = 0

    def _key(self, family: Family) -> demand.Key:
        return (*self.name, f"v{family}")

    def requests(
        self, families: Iterable[Family], limits: CloudLimits
    ) -> Iterator[demand.SubnetRequest]:
        present = {prefix.family for prefix in self.taken}
        for family in families:
            if family not in present:
                length = demand.hosts_length(self.seats, family, limits)
                yield demand.SubnetRequest(self._key(family), family, length, self.path)

    @property
    def taken(self) -> tuple[Prefix, ...]:
        return self.held.prefixes if self.held else ()

    def complete(self, placed: Placement, limits: CloudLimits) -> SubnetLock:
        """Its entry in the lock, with what it lacked where it was put."""
        prefixes = {prefix.family: prefix for prefix in self.taken}
        for family in Family:
            if self._key(family) in placed:
                prefixes[family] = placed[self._key(family)]
        v4, v6 = prefixes[Family.V4], prefixes.get(Family.V6)
        return SubnetLock(
            prefix=v4,
            prefix_v6=v6,
            network=self.held.network if self.held else self.network,
            addresses=host_addresses(v4, self.hosts, limits),
            addresses_v6=host_addresses(v6, self.hosts, limits) if v6 else (),
        )


def host_addresses(prefix: Prefix, hosts: int, limits: CloudLimits) -> tuple[Address, ...]:
    """The fixed addresses of so many hosts: the first that the cloud leaves free."""
    # By number and never by what is free: a host keeps its address when others come or go.
    first = prefix.value + limits.reserved_first
    return tuple(Address(prefix.family, first + number) for number in range(hosts))
