"""A site's subnets: which are missing, what exists already, and the lock's entries for both.

A node pool's pinned subnets become its first segments; from there on they are in the lock like any
other. Machines with fixed addresses (routers, researchers, NAT hosts) have subnets of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """New segments, and the subnets that these, and older ones without IPv6, ask for."""

    segments: tuple[demand.NewSegment, ...]
    requests: tuple[demand.SubnetRequest, ...]


@dataclass(frozen=True, slots=True)
class ClusterDemand:
    """A cluster of the plan beside `held`, the node pools that the lock has of it."""

    name: str
    spec: Cluster
    held: Mapping[str, NodePoolLock]
    families: tuple[Family, ...]
    limits: CloudLimits

    def missing(self, sizes: Mapping[str, list[int]] | None = None) -> Missing:
        """What it lacks for the capacity that it declares.

        `sizes` divides what a node pool lacks into segments of so many nodes; without, it gets one.
        """
        budget = self._budget(self.held)
        segments: list[demand.NewSegment] = []
        requests: list[demand.SubnetRequest] = []
        largest_first = sorted(
            self.spec.node_pools.items(),
            key=lambda named_pool: (-named_pool[1].capacity, named_pool[0]),
        )
        for pool, spec in largest_first:
            held = self.held.get(pool, NodePoolLock())
            parts = (sizes or {}).get(pool, [missing_nodes(spec, held)])
            mappings = demand.mappings_per_node(spec, self.families)
            for new in budget.segments(pool, parts, len(held.segments), mappings):
                segments.append(new)
                requests += self.requests(pool, new.number, new.nodes, self.families)
            for number, segment in enumerate(held.segments):
                # Made before the plan had IPv6: nodes keep their numbers and IPv4 addresses.
                if segment.v6 is None and Family.V6 in self.families:
                    requests += self.requests(pool, number, segment.nodes, [Family.V6])
        # Only once every node pool has what it asks for may one promise more than that.
        widened = []
        for new in segments:
            spec = self.spec.node_pools[new.pool]
            most = demand.fitting(new.nodes, spec, self.families, self.limits)
            mappings = demand.mappings_per_node(spec, self.families)
            widened.append(budget.widened(new, most, mappings))
        return Missing(tuple(widened), tuple(requests))

    def requests(
        self, pool: str, number: int, nodes: int, families: Iterable[Family]
    ) -> Iterator[demand.SubnetRequest]:
        """A segment's subnets for so many nodes, one of each family."""
        spec, limits = self.spec.node_pools[pool], self.limits
        path: KeyPath = ("clusters", self.name, "node_pools", pool, "nodes")
        for family in families:
            length = demand.subnet_length(nodes, demand.blocks(spec, family), limits)
            yield demand.SubnetRequest(_key(pool, number, family), family, length, path)

    def _budget(self, held: Mapping[str, NodePoolLock]) -> demand.MappingBudget:
        """What its networks have room for beside these node pools."""
        promised = demand.promised_mappings(self.spec.node_pools, held, self.families)
        return demand.MappingBudget(self.name, self.limits.limits.mappings_per_network, promised)

    def complete(self, new: Missing, placed: Placement) -> dict[str, NodePoolLock]:
        """The node pools' entries, with new segments appended and old ones as they were."""
        node_pools = {}
        for name in sorted(self.held.keys() | self.spec.node_pools.keys()):
            held = self.held.get(name, NodePoolLock())
            if name not in self.spec.node_pools:
                # Its nodes may still run. Back in the plan, it finds the same addresses.
                node_pools[name] = held.model_copy(update={"tombstone": True})
                continue
            # A family that came later is added.
            segments = [
                segment.model_copy(update=self._layouts(name, number, segment.nodes, placed))
                for number, segment in enumerate(held.segments)
            ]
            # Only appended to: a node's number counts through the segments in order, so that
            # inserting one would renumber every node behind it.
            first = held.capacity
            for added in new.segments:
                if added.pool == name:
                    own = self._layouts(name, added.number, added.nodes, placed)
                    place = {"first": first, "nodes": added.nodes, "vnet": added.network}
                    segments.append(Segment.model_validate(place | own))
                    first += added.nodes
            node_pools[name] = NodePoolLock(segments=tuple(segments))
        return node_pools

    def _layouts(self, pool: str, number: int, nodes: int, placed: Placement) -> dict[str, Layout]:
        """What was placed of a segment, by the lock's key for the family."""
        layouts = {}
        for family in self.families:
            if subnet := placed.get(_key(pool, number, family)):
                cut = demand.blocks(self.spec.node_pools[pool], family)
                layouts[f"v{family}"] = demand.layout(subnet, nodes, cut, self.limits)
        return layouts

    def with_pinned(self) -> ClusterDemand:
        """The same with the pinned subnets that the lock lacks as segments of their node pools.

        PlanRefused if no node fits into a pinned subnet, or its network.
        """
        node_pools = dict(self.held)
        for pool, spec in sorted(self.spec.node_pools.items()):
            segments = list(node_pools[pool].segments) if pool in node_pools else []
            # Pins that the lock has are segments of it already; a pin can only be added behind
            # those.
            for number in range(len(segments), len(spec.subnets)):
                left = self._budget(node_pools).left(self.name)
                first = sum(segment.nodes for segment in segments)
                segments.append(self._pinned_segment(pool, number, first, left))
                node_pools[pool] = NodePoolLock(segments=tuple(segments))
        return replace(self, held=node_pools)

    def _pinned_segment(self, pool: str, number: int, first: int, left: int | None) -> Segment:
        """The segment of a pinned subnet, in a network with so many mappings left."""
        spec, limits = self.spec.node_pools[pool], self.limits
        subnets = {prefix.family: prefix for prefix in spec.subnets[number]}
        cuts = {family: demand.blocks(spec, family) for family in subnets}
        # The family with less room decides: every node has both.
        nodes = min(
            demand.holds(subnets[family].length, cut, limits) for family, cut in cuts.items()
        )
        if left is not None:
            nodes = min(nodes, left // demand.mappings_per_node(spec, subnets))
        if nodes < 1:
            path = ("clusters", self.name, "node_pools", pool, "subnets", number)
            word = limits.words.network
            message = f"no node fits into this subnet beside what its {word} has"
            remedy = "pin a subnet that holds what a node takes"
            raise PlanRefused([error(message, path, remedy=remedy)])
        layouts = {
            family: demand.layout(subnets[family], nodes, cut, limits)
            for family, cut in cuts.items()
        }
        v4, v6 = layouts[Family.V4], layouts.get(Family.V6)
        return Segment(first=first, nodes=nodes, network=self.name, v4=v4, v6=v6)

    def pieces(
        self, spaces: Sequence[Space], fixed: Iterable[demand.SubnetRequest]
    ) -> dict[str, list[int]] | None:
        """Smaller segments for a demand that no single free block holds: nodes of each, by pool.

        `spaces` are what is free (IPv4), in the order in which to use it, and are changed. `fixed`
        are subnets that cannot be divided. None when the demand does not fit even in pieces.
        """
        if not take_all(spaces, (request.length for request in fixed)):
            return None
        missing = {
            pool: missing_nodes(spec, self.held.get(pool))
            for pool, spec in self.spec.node_pools.items()
        }
        sizes: dict[str, list[int]] = {}
        # What is large has the fewest blocks to choose from; the name decides between equals, so
        # that every run divides alike.
        for pool in sorted(missing, key=lambda name: (-missing[name], name)):
            spec = self.spec.node_pools[pool]
            sizes[pool] = list(pieces_of(spaces, spec, missing[pool], self.limits))
            if sum(sizes[pool]) < missing[pool]:
                return None
        return sizes


def _key(pool: str, number: int, family: Family) -> demand.Key:
    return ("node_pools", pool, str(number), f"v{family}")


def missing_nodes(spec: NodePool, held: NodePoolLock | None) -> int:
    """How many more nodes the lock must have room for."""
    return max(spec.capacity - (held.capacity if held else 0), 0)


def taken_by(held: ClusterLock | None) -> list[Prefix]:
    """The subnets a cluster has, those of tombstones included."""
    return [*held.nat.prefixes, *taken_by_pools(held.node_pools)] if held else []


def taken_by_pools(pools: Mapping[str, NodePoolLock]) -> list[Prefix]:
    segments = (segment for spec in pools.values() for segment in spec.segments)
    return [prefix for segment in segments for prefix in segment.prefixes]


def pieces_of(
    spaces: Sequence[Space], pool: NodePool, nodes: int, limits: CloudLimits
) -> Iterator[int]:
    """Nodes of each segment, the largest first, whose subnets are then taken from `spaces`."""
    cut = demand.blocks(pool, Family.V4)
    # Growth in steps would find room in such pieces, too. Every size in which a subnet is used to
    # its last address is tried, as often as it fits.
    for size in _full_sizes(pool, nodes, limits):
        while nodes:
            piece = min(size, nodes)
            if not take_all(spaces, [demand.subnet_length(piece, cut, limits)]):
                break
            nodes -= piece
            yield piece


def _full_sizes(pool: NodePool, nodes: int, limits: CloudLimits) -> list[int]:
    """Numbers of nodes that fill a subnet, the largest first."""
    cut = demand.blocks(pool, Family.V4)
    # Subnets are powers of two: any other number of nodes leaves part of one unused.
    sizes = {demand.holds(length, cut, limits) for length in range(1, Family.V4.width + 1)}
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
