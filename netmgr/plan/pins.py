"""What a plan pins: subnets of node pools and Service ranges that exist already, so that a running cluster keeps them.

A node pool's pinned subnets become its first segments; from there on they are in the lock like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from netmgr.plan.demand import NAT_MAPPINGS, blocks, holds, layout, mappings_of, mappings_per_node, promised_mappings
from netmgr.plan.document import Cluster, NodePool, PinnedSubnets, PlanDocument
from netmgr.plan.findings import Finding, KeyPath, PlanRefused, error
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Layout, NodePoolLock, Segment
from netmgr.prefixes import Family, Prefix

Entry = tuple[Prefix, KeyPath]


def with_pinned(
    name: str, cluster: Cluster, held: Mapping[str, NodePoolLock], limits: CloudLimits, families: tuple[Family, ...]
) -> dict[str, NodePoolLock]:
    """A cluster's node pools as the lock has them, and before anything is allocated, the pinned subnets it lacks.

    Raises:
        PlanRefused: no node fits into a pinned subnet, or its VNet.
    """
    found = dict(held)
    for pool in sorted(cluster.node_pools):
        spec, segments = cluster.node_pools[pool], list(found[pool].segments if pool in found else ())
        for number, pin in list(enumerate(spec.subnets))[len(segments) :]:
            known = ((cluster.node_pools.get(each), entry) for each, entry in found.items())
            used = promised_mappings(known, families).get(name, 0)
            path: KeyPath = ("clusters", name, "node_pools", pool, "subnets", number)
            segments.append(_segment(name, spec, pin, sum(each.nodes for each in segments), limits, used, path))
            found[pool] = NodePoolLock(segments=tuple(segments))
    return found


def _segment(
    vnet: str, spec: NodePool, pin: PinnedSubnets, first: int, limits: CloudLimits, used: int, path: KeyPath
) -> Segment:
    layouts = {each.pods.family: each for each in layouts_of(spec, pin, limits)}
    nodes = min(holds(found, limits) for found in layouts.values())
    one = Segment(first=first, nodes=1, vnet=vnet, v4=layouts[Family.V4], v6=layouts.get(Family.V6))
    if limits.limits.mappings_per_vnet is not None:
        left = limits.limits.mappings_per_vnet - NAT_MAPPINGS - used
        nodes = min(nodes, left // max(mappings_of(one), mappings_per_node(spec, tuple(layouts))))
    if nodes < 1:
        remedy = "pin subnets that hold what a node takes"
        raise PlanRefused([error(path, "no node fits into these subnets beside what their VNet has", remedy)])
    return one.model_copy(update={"nodes": nodes})


def layouts_of(spec: NodePool, pin: PinnedSubnets, limits: CloudLimits) -> list[Layout]:
    """Where the addresses of nodes in pinned subnets are, v4 first."""
    pairs = ((pin.of(family, pin.hosts), pin.of(family, pin.pods), family) for family in Family)
    return [layout(hosts, pods, blocks(spec, family), limits) for hosts, pods, family in pairs if hosts and pods]


def faults(plan: PlanDocument) -> Iterator[Finding]:
    """Pins that lie where their cluster has nothing, or on one another."""
    subnets = list(_subnets(plan))
    for prefix, path in subnets:
        if not any(own.covers(prefix) for own in plan.pinned.get(str(path[1]), ())):
            message = f"{prefix} lies in no prefix that is pinned to {path[1]}"
            yield error(path, message, f"add that of its VNet to pinned.{path[1]}")
    excluded: list[Entry] = [(each.prefix, ("exclude", number)) for number, each in enumerate(plan.exclude)]
    yield from _overlaps([*subnets, *excluded])
    ranges = list(services(plan))
    for prefix, path in ranges:
        if not any(pool.covers(prefix) for pool in plan.pools.services):
            yield error(path, f"{prefix} lies in no pool", "add it to pools.services")
    yield from _overlaps([*ranges, *excluded])
    yield from _overlaps([*ranges, *_pinned(plan)])


def _pinned(plan: PlanDocument) -> Iterator[Entry]:
    for owner, found in plan.pinned.items():
        yield from ((prefix, ("pinned", owner, number)) for number, prefix in enumerate(found))


def _subnets(plan: PlanDocument) -> Iterator[Entry]:
    for name, cluster in plan.clusters.items():
        for pool, spec in cluster.node_pools.items():
            for number, pin in enumerate(spec.subnets):
                path: KeyPath = ("clusters", name, "node_pools", pool, "subnets", number)
                yield from ((prefix, (*path, "hosts")) for prefix in pin.hosts)
                yield from ((prefix, (*path, "pods")) for prefix in pin.pods)


def services(plan: PlanDocument) -> Iterator[Entry]:
    """Every pinned Service range with its key."""
    for name, cluster in plan.clusters.items():
        for key, prefix in (("prefix", cluster.services.prefix), ("prefix_v6", cluster.services.prefix_v6)):
            if prefix:
                yield prefix, ("clusters", name, "services", key)


def _overlaps(entries: list[Entry]) -> Iterator[Finding]:
    """Pairs of which the later is a pin of a cluster's; others are compared where they are read."""
    open_blocks: list[Entry] = []
    for prefix, path in sorted(entries):
        while open_blocks and not open_blocks[-1][0].overlaps(prefix):
            open_blocks.pop()
        if open_blocks and "clusters" in {path[0], open_blocks[-1][1][0]}:
            other, beside = open_blocks[-1]
            yield error(path, f"{prefix} overlaps {other}", "a subnet has one owner: correct one", beside=beside)
        open_blocks.append((prefix, path))
