"""How far each cluster can grow, and which limit it meets first.

What is said of addresses is what one `grow` of the largest node pool would find: the same
subnets are fitted into the same space, without making a lock for every number of nodes. It is what
fits in one piece: where nothing larger is free, `grow` divides the demand and may find room for more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from netmgr.plan.bill import all_mappings, pods, vnet_mappings
from netmgr.plan.carve import taken_by
from netmgr.plan.demand import Blocks, blocks, hosts_length
from netmgr.plan.document import PERCENT, Cluster, NodePool, PlanDocument
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Allocation, ClusterLock, LockDocument
from netmgr.plan.space import Space
from netmgr.prefixes import Family, Prefix

ADDRESSES = "addresses where it stands"


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far a cluster can grow while the others stay as they are.

    `capacity` is how many nodes its subnets hold now, `doublings` how often its nodes can
    double in place, `first_limit` what stops it first, and `at_nodes` the last number of nodes
    before that.
    """

    cluster: str
    nodes: int
    capacity: int
    doublings: int
    first_limit: str
    at_nodes: int
    vnets: int


def outlooks(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Outlook, ...]:
    """One for each cluster of the plan. The lock must answer it."""
    space = Space(Family.V4, plan.pools.nodes)
    for prefix in _used(plan, lock, limits):
        space.withdraw(prefix)
    total = all_mappings(plan, lock)
    return tuple(_outlook(plan, lock, limits, name, space, total) for name in plan.clusters)


def _used(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Prefix]:
    yield from limits.forbidden
    yield from (exclusion.prefix for exclusion in plan.exclude)
    for prefixes in plan.pinned.values():
        yield from prefixes
    for allocations in (lock.hub.prefixes, *(held.prefixes for held in lock.clusters.values())):
        yield from (allocation.reserve for allocation in allocations)


def _outlook(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits, name: str, space: Space, total: int
) -> Outlook:
    cluster, held = plan.clusters[name], lock.clusters[name]
    in_place = _nodes_in_place(cluster, held, limits, space)
    hits = {ADDRESSES: in_place, **dict(_hits(cluster, held, limits, total))}
    first = min(hits, key=lambda what: (hits[what], what))
    capacity = sum(held.node_pools[pool].capacity for pool in cluster.node_pools)
    doublings = max(0, (in_place // max(cluster.nodes, 1)).bit_length() - 1)
    vnets = {segment.vnet for pool in cluster.node_pools for segment in held.node_pools[pool].segments}
    return Outlook(name, cluster.nodes, capacity, doublings, first, hits[first], max(len(vnets), 1))


def _nodes_in_place(cluster: Cluster, held: ClusterLock, limits: CloudLimits, space: Space) -> int:
    """Nodes the cluster can have before it needs a prefix elsewhere, all new ones in its largest node pool."""
    largest = max(sorted(cluster.node_pools), key=lambda pool: cluster.node_pools[pool].nodes)
    pool = cluster.node_pools[largest]
    own = [allocation for allocation in held.prefixes if allocation.prefix.family is Family.V4]
    more = max((_fitting(inner, pool, limits) for inner in _reaches(own, held, space)), default=0)
    places = held.node_pools[largest].capacity + more
    return cluster.nodes - pool.nodes + _without_surge(places, pool)


def _without_surge(places: int, pool: NodePool) -> int:
    """The most nodes that fit with their surge."""
    return max(pool.nodes, (places - pool.surge.nodes) * PERCENT // (PERCENT + pool.surge.percent))


def _reaches(own: Iterable[Allocation], held: ClusterLock, space: Space) -> Iterator[Space]:
    """What is free within the cluster once one of its prefixes has grown as far as it can."""
    allocations = list(own)
    for wide in allocations:
        reach = space.grown(wide.reserve, wide.reserve.length - space.room(wide.reserve)) or wide.reserve
        inner = Space(Family.V4, [reach, *(other.prefix for other in allocations if other is not wide)])
        for subnet in taken_by(held):
            inner.withdraw(subnet)
        yield inner


def _fitting(inner: Space, pool: NodePool, limits: CloudLimits) -> int:
    """The most nodes of one new segment: its two subnets are placed as a lock would place them."""
    cut = blocks(pool, Family.V4)
    for length in range(limits.smallest_subnet):
        nodes = _nodes_of(length, cut, limits)
        while nodes > 0 and inner.packed(length):
            if _both_fit(inner, length, hosts_length(nodes, Family.V4, limits)):
                return nodes
            # A subnet for half as many hosts is the next smaller; the subnet of pods is then half empty.
            nodes = (1 << (Family.V4.width - hosts_length(nodes, Family.V4, limits) - 1)) - limits.reserved
    return 0


def _nodes_of(length: int, cut: Blocks, limits: CloudLimits) -> int:
    slots = (1 << max(cut.length - length, 0)) - sum(cut.skipped(limits))
    return slots // cut.count


def _both_fit(inner: Space, *lengths: int) -> bool:
    trial = inner.copy()
    for length in sorted(lengths):
        place = trial.packed(length)
        if place is None:
            return False
        trial.take(place)
    return True


def _hits(cluster: Cluster, held: ClusterLock, limits: CloudLimits, total: int) -> Iterator[tuple[str, int]]:
    """Limits that the number of nodes meets, and the number that still fits, its mix of node pools as today."""
    figures = limits.limits
    nodes = max(cluster.nodes, 1)
    own = sum(vnet_mappings(cluster, held).values())
    if figures.mappings_per_vnet:
        yield "mappings of one VNet (then it needs another)", figures.mappings_per_vnet * nodes // max(own, 1)
    if figures.mappings_per_peered_group:
        left = figures.mappings_per_peered_group - (total - own)
        yield "mappings of the hub and its peers", max(left, 0) * nodes // max(own, 1)
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip and figures.nat_gateway_ips:
        ports = figures.snat_ports_per_ip * figures.nat_gateway_ips
        yield "SNAT ports (one a pod)", ports * nodes // max(pods(cluster), 1)
