"""What a plan uses of everything that is limited, and how far each cluster can grow.

A forecast of addresses is what one `grow` of the largest node pool would find: the same subnets
are fitted into the same space, without making a lock for every number of nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from netmgr.documents.diagnostics import KeyPath
from netmgr.documents.sites import HUB
from netmgr.plan.allocate import demand
from netmgr.plan.allocate.pool import AddressPool, free_pool
from netmgr.plan.allocate.space import Space
from netmgr.plan.allocate.subnetting import pieces_of, taken_by
from netmgr.plan.clouds.cloud import KUBERNETES, CloudLimits
from netmgr.plan.derive import network
from netmgr.plan.document import PERCENT, Cluster, PlanDocument
from netmgr.plan.lock import ClusterLock, LockDocument
from netmgr.plan.network import Direction, Network, SecurityGroup
from netmgr.prefixes import Family, Prefix

NEAR = 0.8
"""From this share of a limit on, a line is worth a warning."""
ADDRESSES = "addresses in place"


@dataclass(frozen=True, slots=True)
class Usage:
    """`used` of `limit` (None: unknown); `subject` is a site, a network or a node pool."""

    what: str
    subject: str
    used: int
    limit: int | None
    path: KeyPath
    is_advice: bool = False
    """Whether passing the limit is unwise and not impossible."""

    @property
    def status(self) -> Literal["unknown", "ok", "near", "over"]:
        if self.limit is None:
            return "unknown"
        if self.used > self.limit:
            return "over"
        return "near" if self.used >= NEAR * self.limit else "ok"


def limit_usage(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Usage, ...]:
    """Every line, those of the whole plan first. The lock must be up to date."""
    of_clusters = (_of_cluster(plan, lock, limits, name) for name in plan.clusters)
    return (*_of_plan(plan, lock, limits), *chain.from_iterable(of_clusters))


def _of_plan(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Usage]:
    net, figures, path = network(plan, lock, limits), limits.limits, ("clusters",)
    peers = sum(peering.network == HUB for peering in net.peerings)
    yield Usage("peerings", HUB, peers, figures.peerings_per_network, path)
    group = all_mappings(plan, lock)
    limit = figures.mappings_per_peered_group
    yield Usage("mappings of the hub and its peers", HUB, group, limit, path)
    yield from _of_regions(plan, net, limits)
    # Of tables, groups and networks the fullest alone: every cluster has some.
    longest = max(net.tables, key=lambda table: len(table.routes))
    yield Usage("routes", longest.name, len(longest.routes), figures.routes_per_table, path)
    if net.groups:
        largest = max(net.groups, key=_prefixes)
        rules, prefixes = len(largest.rules), _prefixes(largest)
        yield Usage("security rules", largest.name, rules, figures.rules_per_security_group, path)
        quantity, limit = "prefixes in security rules", figures.prefixes_per_security_group
        yield Usage(quantity, largest.name, prefixes, limit, path)
    fullest = max(net.networks, key=lambda virtual_network: len(virtual_network.subnets))
    used = len(fullest.subnets)
    yield Usage("subnets", fullest.name, used, figures.subnets_per_network, path)


def _prefixes(group: SecurityGroup) -> int:
    """As they are limited: sources and destinations each."""
    sides = Counter[Direction]()
    for rule in group.rules:
        sides[rule.direction] += len(rule.peers)
    return max(sides.values(), default=0)


def _of_regions(plan: PlanDocument, net: Network, limits: CloudLimits) -> Iterator[Usage]:
    location = {held.owner: held.location for held in net.networks}
    used = Counter(("network", held.location) for held in net.networks)
    used.update(("node_group", held.location) for held in net.node_groups if held.pods)
    used.update(("route_table", location[held.owner]) for held in net.tables)
    used.update(("security_group", location[held.owner]) for held in net.groups)
    for gateway in net.gateways:
        used["public_ip", gateway.location] += gateway.addresses
    # Researchers' machines, too.
    used["interface", location[HUB]] = plan.hub.researchers + plan.hub.routers
    for owner, cluster in plan.clusters.items():
        nodes = sum(spec.needed for spec in cluster.node_pools.values())
        used["interface", location[owner]] += nodes + cluster.nat_hosts
    for (kind, region), count in sorted(used.items()):
        name = getattr(limits.words, kind, kind.replace("_ip", " IP").replace("_", " "))
        limit = getattr(limits.limits, f"{kind}s_per_region")
        # How many public addresses there are depends on the contract.
        is_advice = kind == "public_ip"
        key: KeyPath = ("clusters",)
        yield Usage(f"{name}s of a region", region, count, limit, key, is_advice=is_advice)


def all_mappings(plan: PlanDocument, lock: LockDocument) -> int:
    """Private addresses of the hub and everything that is peered with it."""
    # Researchers' machines are not planned one by one, so all their addresses count.
    hub = (plan.hub.researchers + plan.hub.routers) * len(plan.pools.service_families)
    clusters = plan.clusters.items()
    spokes = (network_mappings(cluster, lock.clusters[name]) for name, cluster in clusters)
    return hub + sum(map(Counter.total, spokes))


def _of_cluster(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits, name: str
) -> Iterator[Usage]:
    cluster, figures, words = plan.clusters[name], limits.limits, limits.words
    path: KeyPath = ("clusters", name)
    pools: KeyPath = (*path, "node_pools")
    for subject, used in sorted(network_mappings(cluster, lock.clusters[name]).items()):
        quantity = f"mappings in a {words.network}"
        yield Usage(quantity, subject, used, figures.mappings_per_network, pools)
    for pool, spec in cluster.node_pools.items():
        # Nodes with blocks are in no node group: each is made with an interface of its own.
        owner = f"{words.node_group}'s " if spec.single_addresses else ""
        quantity, where = (
            f"addresses of a {owner}{words.interface}",
            (*pools, pool, "pods_per_node"),
        )
        mappings = demand.mappings_per_node(spec, plan.pools.families)
        yield Usage(quantity, f"{name}/{pool}", mappings, figures.addresses_per_interface, where)
    pods = pods_of(cluster)
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip:
        ports = cluster.nat_gateway_ips * figures.snat_ports_per_ip
        key: KeyPath = (*path, "nat_gateway_ips")
        yield Usage("pods to one SNAT port each", name, pods, ports, key, is_advice=True)
    for quantity, used in (("nodes", cluster.nodes), ("pods", pods)):
        tested = KUBERNETES[f"cluster_{quantity}"]
        yield Usage(f"{quantity} (tested by Kubernetes)", name, used, tested, path, is_advice=True)


def network_mappings(cluster: Cluster, held: ClusterLock) -> Counter[str]:
    """Private addresses by virtual network, as the cloud counts them, with every surge at once.

    A block counts as one. It is never more than the allocator promised: the same figure for a
    node, and at most as many nodes as fit into a segment.
    """
    mappings = Counter({held.nat.network: sum(map(len, held.nat.hosts))})
    for pool, spec in cluster.node_pools.items():
        for segment in held.node_pools[pool].segments:
            # Node indexes fill segments in order, the surge after the others.
            present = max(0, min(segment.nodes, spec.needed - segment.first))
            mappings[segment.network] += present * demand.mappings_of(segment)
    return mappings


def pods_of(cluster: Cluster) -> int:
    """Pods of a cluster whose nodes are all full."""
    return sum(pool.nodes * pool.pods_per_node for pool in cluster.node_pools.values())


@dataclass(frozen=True, slots=True)
class Forecast:
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
    networks: int


def forecasts(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Forecast, ...]:
    """One for each cluster of the plan. The lock must be up to date."""
    pool = free_pool(plan, limits, lock.sites, Family.V4)
    excluded = [exclusion.prefix for exclusion in plan.exclude]
    total = all_mappings(plan, lock)
    cluster_forecasts = []
    for name, cluster in plan.clusters.items():
        held = lock.clusters[name]
        in_place = _nodes_in_place(cluster, held, limits, _reaches(held, pool, excluded))
        hits = {ADDRESSES: in_place, **dict(_hits(cluster, held, limits, total))}
        first = min(hits, key=lambda limit: (hits[limit], limit))
        pools = [held.node_pools[pool] for pool in cluster.node_pools]
        networks = {segment.network for pool in pools for segment in pool.segments}
        forecast = Forecast(
            cluster=name,
            nodes=cluster.nodes,
            capacity=sum(pool.capacity for pool in pools),
            doublings=max(0, (in_place // max(cluster.nodes, 1)).bit_length() - 1),
            first_limit=first,
            at_nodes=hits[first],
            networks=max(len(networks), 1),
        )
        cluster_forecasts.append(forecast)
    return tuple(cluster_forecasts)


def _nodes_in_place(
    cluster: Cluster, held: ClusterLock, limits: CloudLimits, reaches: Iterator[Space]
) -> int:
    """Nodes before the cluster needs a prefix elsewhere, if its largest node pool grows."""
    # As `grow` chooses it.
    largest = max(sorted(cluster.node_pools), key=lambda pool: cluster.node_pools[pool].nodes)
    pool = cluster.node_pools[largest]
    # The first piece of any number of nodes is the largest segment that a lock could place there.
    # `grow` divides what fits in no one piece, and so may find room for more.
    segments = (next(pieces_of([inner], pool, inner.size, limits), 0) for inner in reaches)
    more = max(segments, default=0)
    places = held.node_pools[largest].capacity + more
    # The most nodes that fit with their surge.
    nodes = (places - pool.surge.nodes) * PERCENT // (PERCENT + pool.surge.percent)
    return cluster.nodes - pool.nodes + max(pool.nodes, nodes)


def _reaches(held: ClusterLock, pool: AddressPool, excluded: list[Prefix]) -> Iterator[Space]:
    """What is free within the cluster once one of its prefixes has grown as far as it can."""
    own = [allocation for allocation in held.prefixes if allocation.prefix.family is Family.V4]
    for wide in own:
        others = [other.prefix for other in own if other is not wide]
        reach = wide.reserve if wide.prefix in pool.pinned else pool.space.reach(wide.reserve)
        yield Space(Family.V4, [reach, *others], [*taken_by(held), *excluded])


def _hits(
    cluster: Cluster, held: ClusterLock, limits: CloudLimits, total: int
) -> Iterator[tuple[str, int]]:
    """Limits on the number of nodes and the most that still fit, with node pools mixed as today."""
    figures = limits.limits
    nodes = max(cluster.nodes, 1)
    own = network_mappings(cluster, held).total()
    if figures.mappings_per_network:
        limit = f"mappings of one {limits.words.network} (then it needs another)"
        yield limit, figures.mappings_per_network * nodes // max(own, 1)
    if figures.mappings_per_peered_group:
        left = figures.mappings_per_peered_group - (total - own)
        yield "mappings of the hub and its peers", max(left, 0) * nodes // max(own, 1)
    if cluster.nat_gateway_ips and figures.snat_ports_per_ip and figures.nat_gateway_ips:
        ports = figures.snat_ports_per_ip * figures.nat_gateway_ips
        yield "SNAT ports (one a pod)", ports * nodes // max(pods_of(cluster), 1)
