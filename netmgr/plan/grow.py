"""What it takes to let a cluster grow: the changed plan, and everything outside the lock that must follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.errors import ConfigError
from netmgr.plan.derive import network
from netmgr.plan.document import Cluster, PlanDocument
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network, Vnet
from netmgr.plan.vnets import narrowed


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do beside applying the lock. `what` is the kind, for example `sync peering`."""

    what: str
    subject: str
    detail: str


def cluster_of(plan: PlanDocument, name: str) -> Cluster:
    """A cluster of the plan.

    Raises:
        ConfigError: it has none of that name.
    """
    if name not in plan.clusters:
        raise ConfigError(f"the plan has no cluster {name!r}; it has {', '.join(sorted(plan.clusters)) or 'none'}")
    return plan.clusters[name]


def grown_plan(plan: PlanDocument, name: str, nodes: int, pool: str | None = None) -> PlanDocument:
    """The plan with `nodes` nodes in the cluster; one node pool takes the difference, the largest by default.

    Raises:
        ConfigError: there is no such cluster or node pool, or the cluster would shrink.
    """
    cluster = cluster_of(plan, name)
    if nodes < cluster.nodes:
        raise ConfigError(f"{name} has {cluster.nodes:,} nodes in the plan; to grow, ask for more than that")
    pool = pool or max(sorted(cluster.node_pools), key=lambda each: cluster.node_pools[each].nodes)
    if pool not in cluster.node_pools:
        raise ConfigError(f"{name} has no node pool {pool!r}; it has {', '.join(cluster.node_pools)}")
    spec = cluster.node_pools[pool]
    larger = spec.model_copy(update={"nodes": spec.nodes + nodes - cluster.nodes})
    return with_pool(plan, name, pool, larger)


def with_pool(plan: PlanDocument, name: str, pool: str, spec: object) -> PlanDocument:
    """The plan with another specification of one node pool."""
    cluster = plan.clusters[name]
    changed = cluster.model_copy(update={"node_pools": {**cluster.node_pools, pool: spec}})
    return plan.model_copy(update={"clusters": {**plan.clusters, name: changed}})


def kept_nodes(before: LockDocument, after: LockDocument) -> tuple[int, int]:
    """Node places of `before` that have every address they had in `after`, and how many there were."""
    kept = total = 0
    for name, held in before.clusters.items():
        for pool, spec in held.node_pools.items():
            now = after.clusters[name].node_pools[pool].segments if name in after.clusters else ()
            for place, segment in enumerate(spec.segments):
                total += segment.nodes
                kept += segment.nodes if place < len(now) and now[place] == segment else 0
    return kept, total


def effects(
    before: tuple[PlanDocument, LockDocument], after: tuple[PlanDocument, LockDocument], limits: CloudLimits
) -> tuple[Effect, ...]:
    """Everything of the cloud that changes from one to the other, in the order it is best done."""
    old, new = network(*before, limits), network(*after, limits)
    return tuple(
        effect
        for step in (_narrowings, _networks, _subnets, _peerings, _routes, _groups, _machines)
        for effect in step(old, new)
    )


def _by_name(net: Network) -> dict[str, Vnet]:
    return {vnet.name: vnet for vnet in net.networks}


def _narrowings(old: Network, new: Network) -> Iterator[Effect]:
    """What must be done, peers included, before a VNet is made of the space: the cloud refuses overlapping peers."""
    lost, known = narrowed(old.networks, new.networks), {peering.name for peering in old.peerings}
    for vnet in new.networks:
        if vnet.name in lost:
            was, space = (", ".join(map(str, each)) for each in (lost[vnet.name], vnet.address_space))
            detail = f"{was} to {space}; no subnet is touched; first of all, or peering what comes next is refused"
            yield Effect("narrow address space", vnet.name, detail)
    for peering in new.peerings:
        if peering.remote in lost and peering.name in known:
            detail = f"{peering.network} must learn what {peering.remote} has now, before anything else is made"
            yield Effect("sync peering", peering.name, detail)


def _networks(old: Network, new: Network) -> Iterator[Effect]:
    former, lost = _by_name(old), narrowed(old.networks, new.networks)
    for vnet in new.networks:
        space = ", ".join(map(str, vnet.address_space))
        if vnet.name not in former:
            yield Effect("make VNet", vnet.name, space)
        elif vnet.name not in lost and vnet.address_space != former[vnet.name].address_space:
            was = ", ".join(map(str, former[vnet.name].address_space))
            yield Effect("widen address space", vnet.name, f"{was} to {space}; machines in it notice nothing")


def _subnets(old: Network, new: Network) -> Iterator[Effect]:
    former = {subnet.name: subnet for vnet in old.networks for subnet in vnet.subnets}
    for vnet in new.networks:
        added = [subnet for subnet in vnet.subnets if subnet.name not in former]
        for subnet in added:
            yield Effect("make subnet", f"{vnet.name}/{subnet.name}", ", ".join(map(str, subnet.prefixes)))
        for subnet in vnet.subnets if added else ():
            if subnet.role == "nodes" and subnet.name in former:
                prefixes = ", ".join(map(str, subnet.prefixes))
                yield Effect("stays", f"{vnet.name}/{subnet.name}", f"{prefixes}; a subnet in use cannot be resized")


def _peerings(old: Network, new: Network) -> Iterator[Effect]:
    before, after, lost = _by_name(old), _by_name(new), narrowed(old.networks, new.networks)
    known = {peering.name for peering in old.peerings}
    for peering in new.peerings:
        if peering.name not in known:
            yield Effect("make peering", peering.name, f"{peering.network} to {peering.remote}")
        elif peering.remote not in lost and before[peering.remote].address_space != after[peering.remote].address_space:
            yield Effect("sync peering", peering.name, f"{peering.network} must learn what {peering.remote} has now")


def _routes(old: Network, new: Network) -> Iterator[Effect]:
    former = {table.name: set(table.routes) for table in old.tables}
    for table in new.tables:
        changed = [route for route in table.routes if route not in former.get(table.name, set())]
        for route in changed:
            yield Effect("add route", f"{table.name}/{route.name}", f"{route.prefix} to {route.via or route.hop}")


def _groups(old: Network, new: Network) -> Iterator[Effect]:
    former = {group.name: group for group in old.groups}
    for group in new.groups:
        if group.name in former and group.rules != former[group.name].rules:
            yield Effect("change security group", group.name, "it lists the cluster's own prefixes")
    drops = {machine.name: machine.drops for machine in old.appliances}
    for machine in new.appliances:
        if machine.name in drops and machine.drops != drops[machine.name]:
            yield Effect("change what a router drops", machine.name, "packets between clusters, by their prefixes")


def _machines(old: Network, new: Network) -> Iterator[Effect]:
    former = {scale_set.name: scale_set.instances for scale_set in old.scale_sets}
    for scale_set in new.scale_sets:
        if scale_set.name not in former:
            yield Effect("make scale set", scale_set.name, f"{scale_set.instances:,} nodes")
        elif scale_set.instances != former[scale_set.name]:
            yield Effect("scale", scale_set.name, f"{former[scale_set.name]:,} to {scale_set.instances:,} nodes")
