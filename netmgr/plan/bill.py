"""The bill of limits: what a plan uses of everything that is limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.plan.demand import mappings_of, mappings_per_node
from netmgr.plan.derive import network
from netmgr.plan.document import Cluster, PlanDocument
from netmgr.plan.findings import KeyPath
from netmgr.plan.limits import KUBERNETES, CloudLimits
from netmgr.plan.lock import ClusterLock, LockDocument, Segment
from netmgr.plan.network import Network
from netmgr.prefixes import Family
from netmgr.sites import HUB

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


def bill(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Line, ...]:
    """Every line, the plan's as a whole first."""
    net = network(plan, lock, limits)
    lines = [*_whole(plan, lock, limits, net)]
    for name, cluster in plan.clusters.items():
        lines += _of_cluster(name, cluster, lock.clusters[name], limits, plan.pools.families)
    return tuple(lines)


def _whole(plan: PlanDocument, lock: LockDocument, limits: CloudLimits, net: Network) -> Iterator[Line]:
    figures = limits.limits
    peers = Counter(peering.network for peering in net.peerings)
    yield Line("peerings", HUB, peers.get(HUB, 0), figures.peerings_per_vnet, ("clusters",))
    yield Line("mappings of the hub and its peers", HUB, all_mappings(plan, lock), _group_limit(limits), ("clusters",))
    yield Line("route tables", plan.name, len(net.tables), figures.route_tables, ("clusters",))
    regions = Counter(scale_set.location for scale_set in net.scale_sets)
    for region, used in sorted(regions.items()):
        yield Line("scale sets of a region", region, used, figures.scale_sets_per_region, ("clusters",))
    longest = max(net.tables, key=lambda table: len(table.routes))
    yield Line("routes", longest.name, len(longest.routes), figures.routes_per_table, ("clusters",))
    fullest = max(net.networks, key=lambda vnet: len(vnet.subnets))
    yield Line("subnets", fullest.name, len(fullest.subnets), figures.subnets_per_vnet, ("clusters",))


def _group_limit(limits: CloudLimits) -> int | None:
    return limits.limits.mappings_per_peered_group


def all_mappings(plan: PlanDocument, lock: LockDocument) -> int:
    """Private addresses of the hub and everything that is peered with it."""
    spokes = sum(sum(vnet_mappings(cluster, lock.clusters[name]).values()) for name, cluster in plan.clusters.items())
    return spokes + (plan.hub.researchers + plan.hub.routers) * len(plan.pools.service_families)


def _of_cluster(
    name: str, cluster: Cluster, held: ClusterLock, limits: CloudLimits, families: tuple[Family, ...]
) -> Iterator[Line]:
    figures, path = limits.limits, ("clusters", name)
    for vnet, used in sorted(vnet_mappings(cluster, held).items()):
        yield Line("mappings in a VNet", vnet, used, figures.mappings_per_vnet, (*path, "node_pools"))
    for pool, spec in cluster.node_pools.items():
        each, where = mappings_per_node(spec, families), (*path, "node_pools", pool)
        yield Line("addresses of a NIC", f"{name}/{pool}", each, figures.addresses_per_nic, (*where, "pods_per_node"))
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip:
        ports = cluster.nat_gateway_ips * figures.snat_ports_per_ip
        yield Line("pods to one SNAT port each", name, pods(cluster), ports, (*path, "nat_gateway_ips"), is_advice=True)
    yield Line("nodes (tested by Kubernetes)", name, cluster.nodes, KUBERNETES["cluster_nodes"], path, is_advice=True)
    yield Line("pods (tested by Kubernetes)", name, pods(cluster), KUBERNETES["cluster_pods"], path, is_advice=True)


def vnet_mappings(cluster: Cluster, held: ClusterLock) -> dict[str, int]:
    """Private addresses by VNet, as the cloud counts them (a block is one), with every surge at once.

    Never more than the allocator promised: the same figure for a node, and at most the places of a segment.
    """
    found = Counter({held.nat.vnet: sum(map(len, held.nat.hosts))})
    for pool, spec in cluster.node_pools.items():
        for segment in held.node_pools[pool].segments:
            found[segment.vnet] += _present(segment, spec.needed) * mappings_of(segment)
    return dict(found)


def _present(segment: Segment, nodes: int) -> int:
    return max(0, min(segment.nodes, nodes - segment.first))


def pods(cluster: Cluster) -> int:
    """Pods of a cluster whose nodes are all full."""
    return sum(pool.nodes * pool.pods_per_node for pool in cluster.node_pools.values())
