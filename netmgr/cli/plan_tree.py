"""A lock as a tree for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.tree import Tree

from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, ClusterLock, LockDocument, NodePoolLock, Segment, Subnet
from netmgr.prefixes import Address, Prefix


def tree(plan: PlanDocument, lock: LockDocument) -> Tree:
    """Hub and clusters, their prefixes, and what is carved from them."""
    root = Tree(f"[bold]{plan.name}[/] {', '.join(map(str, plan.pools.nodes))}")
    hub = root.add(f"[bold]hub[/] {_prefixes(lock.hub.prefixes)}")
    hub.add(f"routers {_hosts(lock.hub.routers)}")
    for subnet in lock.hub.researchers:
        hub.add(f"researchers {_texts(subnet.prefixes)}")
    for name, held in lock.clusters.items():
        _cluster(root.add(f"[bold]{name}[/] {_prefixes(held.prefixes)}{_grave(held.tombstone)}"), plan, name, held)
    return root


def _cluster(branch: Tree, plan: PlanDocument, name: str, held: ClusterLock) -> None:
    for seen, real in held.services.pairs:
        branch.add(f"Services {real}{f', which the hub sees at {seen}' if seen != real else ''}")
    branch.add(f"NAT hosts {_hosts(held.nat)}")
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


def _hosts(subnet: Subnet) -> str:
    return f"{_texts(subnet.prefixes)}: {_texts((*subnet.addresses, *subnet.addresses_v6))}"


def _texts(items: Iterable[Address | Prefix]) -> str:
    return ", ".join(map(str, items))


def _prefixes(allocations: tuple[Allocation, ...]) -> str:
    return ", ".join(
        str(held.prefix) if held.prefix == held.reserve else f"{held.prefix} [dim](reserved: {held.reserve})[/]"
        for held in allocations
    )


def _grave(tombstone: bool) -> str:  # noqa: FBT001  a flag is all there is
    return " [yellow](tombstone)[/]" if tombstone else ""
