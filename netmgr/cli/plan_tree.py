"""A lock as a tree for people."""

from __future__ import annotations

from rich.tree import Tree

from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, ClusterLock, LockDocument, NodePoolLock, Segment


def tree(plan: PlanDocument, lock: LockDocument) -> Tree:
    """Hub and clusters, their prefixes, and what is carved from them."""
    root = Tree(f"[bold]{plan.name}[/] {', '.join(map(str, plan.pools.nodes))}")
    hub = root.add(f"[bold]hub[/] {_prefixes(lock.hub.prefixes)}")
    hub.add(f"routers {lock.hub.routers.prefix}: {', '.join(map(str, lock.hub.routers.addresses))}")
    for subnet in lock.hub.researchers:
        hub.add(f"researchers {subnet.prefix}")
    for name, held in lock.clusters.items():
        _cluster(root.add(f"[bold]{name}[/] {_prefixes(held.prefixes)}{_grave(held.tombstone)}"), plan, name, held)
    return root


def _cluster(branch: Tree, plan: PlanDocument, name: str, held: ClusterLock) -> None:
    services = held.services
    shared = f", which the hub sees at {services.hub_prefix}" if services.prefix != services.hub_prefix else ""
    branch.add(f"Services {services.prefix}{shared}")
    branch.add(f"NAT hosts {held.nat.prefix}: {', '.join(map(str, held.nat.addresses))}")
    cluster = plan.clusters.get(name)
    for pool, spec in held.node_pools.items():
        asked = cluster.node_pools.get(pool) if cluster else None
        nodes = f"{asked.nodes:,} nodes, " if asked else ""
        _pool(branch.add(f"{pool}: {nodes}places for {spec.capacity:,}{_grave(spec.tombstone)}"), spec)


def _pool(branch: Tree, spec: NodePoolLock) -> None:
    for segment in spec.segments:
        branch.add(f"nodes {segment.first:,} to {segment.first + segment.nodes - 1:,}: {_segment(segment)}")


def _segment(segment: Segment) -> str:
    return "; ".join(
        f"hosts {part.hosts}, pods {part.pods} ({part.blocks} x /{part.block_length} a node)"
        for part in segment.layouts
    )


def _prefixes(allocations: tuple[Allocation, ...]) -> str:
    return ", ".join(
        str(held.prefix) if held.prefix == held.reserve else f"{held.prefix} [dim](reserved: {held.reserve})[/]"
        for held in allocations
    )


def _grave(tombstone: bool) -> str:  # noqa: FBT001  a flag is all there is
    return " [yellow](tombstone)[/]" if tombstone else ""
