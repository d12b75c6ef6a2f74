"""The bill of limits: what a plan uses of everything that is limited, and which limit a cluster meets first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.plan.demand import mappings_per_node
from netmgr.plan.derive import network
from netmgr.plan.document import HUB, Cluster, NodePool, PlanDocument
from netmgr.plan.findings import KeyPath
from netmgr.plan.limits import KUBERNETES, CloudLimits
from netmgr.plan.lock import ClusterLock, LockDocument, Segment
from netmgr.plan.network import Network
from netmgr.plan.space import Space
from netmgr.prefixes import Family

NEAR = 0.8
"""From this share of a limit on, a line is worth a warning."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the bill: `used` of `limit` (None: unknown), where `subject` is a site, a VNet or a node pool."""

    what: str
    subject: str
    used: int
    limit: int | None
    path: KeyPath
    is_advice: bool = False
    """Whether passing the limit is unwise and not impossible."""

    @property
    def status(self) -> str:
        """unknown, ok, near or over."""
        if self.limit is None:
            return "unknown"
        if self.used > self.limit:
            return "over"
        return "near" if self.used >= NEAR * self.limit else "ok"


@dataclass(frozen=True, slots=True)
class Outlook:
    """How far a cluster can grow.

    `doublings` is how often it can double in place; `first_limit` what then stops it, or
    empty, and `at_nodes` with how many nodes.
    """

    cluster: str
    nodes: int
    capacity: int
    doublings: int
    first_limit: str
    at_nodes: int
    vnets: int


def bill(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Line, ...]:
    """Every line, the plan's as a whole first."""
    net = network(plan, lock)
    lines = [*_whole(plan, lock, limits, net)]
    for name, cluster in plan.clusters.items():
        lines += _of_cluster(name, cluster, lock.clusters[name], limits, _families(plan))
    return tuple(lines)


def _families(plan: PlanDocument) -> int:
    return len(plan.pools.families)


def _whole(plan: PlanDocument, lock: LockDocument, limits: CloudLimits, net: Network) -> Iterator[Line]:
    figures = limits.limits
    peers = Counter(peering.network for peering in net.peerings)
    yield Line("peerings", HUB, peers.get(HUB, 0), figures.peerings_per_vnet, ("clusters",))
    yield Line("mappings of the hub and its peers", HUB, _all_mappings(plan, lock), _group_limit(limits), ("clusters",))
    yield Line("route tables", plan.name, len(net.tables), figures.route_tables, ("clusters",))
    longest = max(net.tables, key=lambda table: len(table.routes))
    yield Line("routes", longest.name, len(longest.routes), figures.routes_per_table, ("clusters",))
    fullest = max(net.networks, key=lambda vnet: len(vnet.subnets))
    yield Line("subnets", fullest.name, len(fullest.subnets), figures.subnets_per_vnet, ("clusters",))


def _group_limit(limits: CloudLimits) -> int | None:
    return limits.limits.mappings_per_peered_group


def _all_mappings(plan: PlanDocument, lock: LockDocument) -> int:
    spokes = sum(
        sum(vnet_mappings(cluster, lock.clusters[name], _families(plan)).values())
        for name, cluster in plan.clusters.items()
    )
    return spokes + plan.hub.researchers + plan.hub.routers


def _of_cluster(name: str, cluster: Cluster, held: ClusterLock, limits: CloudLimits, families: int) -> Iterator[Line]:
    figures, path = limits.limits, ("clusters", name)
    for vnet, used in sorted(vnet_mappings(cluster, held, families).items()):
        yield Line("mappings in a VNet", vnet, used, figures.mappings_per_vnet, (*path, "node_pools"))
    for pool, spec in cluster.node_pools.items():
        each, where = mappings_per_node(spec, families), (*path, "node_pools", pool)
        yield Line("addresses of a NIC", f"{name}/{pool}", each, figures.addresses_per_nic, (*where, "pods_per_node"))
        yield Line("nodes of a VMSS", f"{name}/{pool}", _largest_set(spec, held, pool), figures.nodes_per_vmss, where)
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip:
        ports = cluster.nat_gateway_ips * figures.snat_ports_per_ip
        yield Line(
            "pods to one SNAT port each", name, _pods(cluster), ports, (*path, "nat_gateway_ips"), is_advice=True
        )
    yield Line("nodes (tested by Kubernetes)", name, cluster.nodes, KUBERNETES["cluster_nodes"], path, is_advice=True)
    yield Line("pods (tested by Kubernetes)", name, _pods(cluster), KUBERNETES["cluster_pods"], path, is_advice=True)


def vnet_mappings(cluster: Cluster, held: ClusterLock, families: int) -> dict[str, int]:
    """Private addresses by VNet, as the cloud counts them (a block is one), with every surge at once."""
    found = Counter({held.nat.vnet: len(held.nat.addresses)})
    for pool, spec in cluster.node_pools.items():
        for segment in held.node_pools[pool].segments:
            found[segment.vnet] += _present(segment, spec.needed) * mappings_per_node(spec, families)
    return dict(found)


def _present(segment: Segment, nodes: int) -> int:
    return max(0, min(segment.nodes, nodes - segment.first))


def _largest_set(spec: NodePool, held: ClusterLock, pool: str) -> int:
    return max((_present(segment, spec.needed) for segment in held.node_pools[pool].segments), default=0)


def _pods(cluster: Cluster) -> int:
    return sum(pool.nodes * pool.pods_per_node for pool in cluster.node_pools.values())


def outlooks(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Outlook, ...]:
    """How far each cluster can grow while the others stay as they are."""
    space = Space(Family.V4, plan.pools.nodes)
    for prefix in (*limits.forbidden, *(exclusion.prefix for exclusion in plan.exclude)):
        space.withdraw(prefix)
    for prefixes in plan.pinned.values():
        for prefix in prefixes:
            space.withdraw(prefix)
    for allocations in (lock.hub.prefixes, *(held.prefixes for held in lock.clusters.values())):
        for allocation in allocations:
            space.withdraw(allocation.reserve)
    total = _all_mappings(plan, lock)
    return tuple(_outlook(plan, lock, limits, name, space, total) for name in plan.clusters)


def _outlook(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits, name: str, space: Space, total: int
) -> Outlook:
    cluster, held = plan.clusters[name], lock.clusters[name]
    needed = sum(pool.needed for pool in cluster.node_pools.values())
    capacity = sum(held.node_pools[pool].capacity for pool in cluster.node_pools)
    own = [allocation for allocation in held.prefixes if allocation.prefix.family is Family.V4]
    doublings = max((a.prefix.length - a.reserve.length + space.room(a.reserve) for a in own), default=0)
    within = max(0, (capacity // max(needed, 1)).bit_length() - 1)
    hits = dict(_hits(plan, cluster, held, limits, total))
    hits["addresses where it stands"] = capacity << doublings
    first = min(hits, key=lambda what: (hits[what], what))
    vnets = {segment.vnet for pool in cluster.node_pools for segment in held.node_pools[pool].segments}
    return Outlook(name, cluster.nodes, capacity, doublings + within, first, hits[first], max(len(vnets), 1))


def _hits(
    plan: PlanDocument, cluster: Cluster, held: ClusterLock, limits: CloudLimits, total: int
) -> Iterator[tuple[str, int]]:
    """Limits that the number of nodes meets, and the number that still fits, its mix of node pools as today."""
    families, figures = _families(plan), limits.limits
    nodes = max(cluster.nodes, 1)
    own = sum(vnet_mappings(cluster, held, families).values())
    if figures.mappings_per_vnet:
        yield "mappings of one VNet (then it needs another)", figures.mappings_per_vnet * nodes // max(own, 1)
    if figures.mappings_per_peered_group:
        left = figures.mappings_per_peered_group - (total - own)
        yield "mappings of the hub and its peers", max(left, 0) * nodes // max(own, 1)
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip and figures.nat_gateway_ips:
        ports = figures.snat_ports_per_ip * figures.nat_gateway_ips
        yield "SNAT ports (one a pod)", ports * nodes // max(_pods(cluster), 1)
