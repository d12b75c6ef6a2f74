"""What growth involves: a changed plan, its lock, and all that must follow in the cloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.documents.diagnostics import listed
from netmgr.errors import ConfigError
from netmgr.plan.clouds.cloud import CloudLimits, Words
from netmgr.plan.derive import narrowed, network
from netmgr.plan.document import PlanDocument, with_pool
from netmgr.plan.lock import LockDocument
from netmgr.plan.network import Network, VirtualNetwork


@dataclass(frozen=True, slots=True)
class Effect:
    """Something to do beside applying the lock. `what` is the kind, for example `sync peering`."""

    what: str
    where: str
    detail: str


def grown_plan(plan: PlanDocument, name: str, nodes: int, pool: str | None = None) -> PlanDocument:
    """The plan with `nodes` nodes in a cluster; `pool`, or its largest node pool, gets the new.

    ConfigError if there is no such cluster or node pool, or the cluster would shrink.
    """
    cluster = plan.clusters.get(name)
    if cluster is None:
        known = ", ".join(sorted(plan.clusters)) or "none"
        raise ConfigError(f"the plan has no cluster {name!r}; it has {known}")
    if nodes < cluster.nodes:
        raise ConfigError(
            f"{name} has {cluster.nodes:,} nodes in the plan; to grow, ask for more than that"
        )
    # Sorted, so that among equally large ones the name decides, and not the order in plan.yaml.
    pool = pool or max(
        sorted(cluster.node_pools), key=lambda pool_name: cluster.node_pools[pool_name].nodes
    )
    if pool not in cluster.node_pools:
        raise ConfigError(
            f"{name} has no node pool {pool!r}; it has {', '.join(cluster.node_pools)}"
        )
    spec = cluster.node_pools[pool]
    larger = spec.model_copy(update={"nodes": spec.nodes + nodes - cluster.nodes})
    return with_pool(plan, name, pool, larger)


def kept_nodes(before: LockDocument, after: LockDocument) -> tuple[int, int]:
    """How many nodes of `before` keep every address in `after`, and how many nodes it has."""
    kept = total = 0
    for name, held in before.clusters.items():
        pools = after.clusters[name].node_pools if name in after.clusters else {}
        for pool, spec in held.node_pools.items():
            now = pools[pool].segments if pool in pools else ()
            total += spec.capacity
            # Segments are only appended, so the same number is the same segment.
            pairs = zip(spec.segments, now, strict=False)
            kept += sum(segment.nodes for segment, later in pairs if segment == later)
    return kept, total


def effects(
    before: tuple[PlanDocument, LockDocument],
    after: tuple[PlanDocument, LockDocument],
    limits: CloudLimits,
) -> tuple[Effect, ...]:
    """Everything that changes in the cloud, in the order in which it is best done."""
    change = _Change(network(*before, limits), network(*after, limits), limits.words)
    return (
        # Narrowing comes first: the cloud refuses to peer a network with the space of another peer.
        *change.narrowings(),
        *change.networks(),
        *change.subnets(),
        *change.peerings(),
        *change.routes(),
        *change.filters(),
        *change.node_groups(),
    )


class _Change:
    def __init__(self, old: Network, new: Network, words: Words) -> None:
        self.old, self.new, self.words = old, new, words
        self.former, self.spaces = (
            {virtual_network.name: virtual_network.address_space for virtual_network in networks}
            for networks in (old.networks, new.networks)
        )
        self.lost = narrowed(self.former, self.spaces)
        self.known_peerings = {peering.name for peering in old.peerings}

    def narrowings(self) -> Iterator[Effect]:
        for name in self.lost:
            detail = (
                f"{listed(self.former[name])} to {listed(self.spaces[name])}; "
                "no subnet is touched; first of all, or peering what comes next is refused"
            )
            yield Effect("narrow address space", name, detail)
        for peering in self.new.peerings:
            # The peers still route the lost space to it, and the cloud checks new peerings against
            # that.
            if peering.remote in self.lost and peering.name in self.known_peerings:
                detail = (
                    f"{peering.network} must learn what {peering.remote} has now, "
                    "before anything else is made"
                )
                yield Effect("sync peering", peering.name, detail)

    def networks(self) -> Iterator[Effect]:
        for name, space in self.spaces.items():
            if name not in self.former:
                yield Effect(f"make {self.words.network}", name, listed(space))
            elif name not in self.lost and space != self.former[name]:
                change = f"{listed(self.former[name])} to {listed(space)}"
                detail = f"{change}; machines in it notice nothing"
                yield Effect("widen address space", name, detail)

    def subnets(self) -> Iterator[Effect]:
        former = {subnet.name for side in self.old.networks for subnet in side.subnets}
        for virtual_network in self.new.networks:
            added = [subnet for subnet in virtual_network.subnets if subnet.name not in former]
            for subnet in added:
                where = f"{virtual_network.name}/{subnet.name}"
                yield Effect("make subnet", where, listed(subnet.prefixes))
            if added:
                yield from self._kept_subnets(virtual_network, former)

    def _kept_subnets(self, virtual_network: VirtualNetwork, former: set[str]) -> Iterator[Effect]:
        # Shown beside the new ones: these are why a node pool gets a second subnet.
        for subnet in virtual_network.subnets:
            if subnet.name in former and subnet.role == "nodes":
                detail = f"{listed(subnet.prefixes)}; a subnet in use cannot be resized"
                yield Effect("stays", f"{virtual_network.name}/{subnet.name}", detail)

    def peerings(self) -> Iterator[Effect]:
        for peering in self.new.peerings:
            remote = peering.remote
            if peering.name not in self.known_peerings:
                yield Effect("make peering", peering.name, f"{peering.network} to {remote}")
            elif remote not in self.lost and self.former[remote] != self.spaces[remote]:
                detail = f"{peering.network} must learn what {remote} has now"
                yield Effect("sync peering", peering.name, detail)

    def routes(self) -> Iterator[Effect]:
        # By content and not by name: a route that points elsewhere must be changed, too.
        former = {table.name: set(table.routes) for table in self.old.tables}
        for table in self.new.tables:
            for route in table.routes:
                if route not in former.get(table.name, set()):
                    detail = f"{route.prefix} to {route.via or route.hop}"
                    yield Effect("add route", f"{table.name}/{route.name}", detail)

    def filters(self) -> Iterator[Effect]:
        rules = {group.name: group.rules for group in self.old.groups}
        for group in self.new.groups:
            if group.rules != rules.get(group.name, group.rules):
                detail = "it lists the cluster's own prefixes"
                yield Effect("change security group", group.name, detail)
        drops = {machine.name: machine.drops for machine in self.old.appliances}
        for machine in self.new.appliances:
            if machine.drops != drops.get(machine.name, machine.drops):
                detail = "packets between clusters, by their prefixes"
                yield Effect("change what a router drops", machine.name, detail)

    def node_groups(self) -> Iterator[Effect]:
        former = {group.name: group.instances for group in self.old.node_groups}
        for group in self.new.node_groups:
            if group.name not in former:
                # Machines with blocks are in no such group.
                kind = f"make {self.words.node_group}" if group.pods else "make machines"
                yield Effect(kind, group.name, f"{group.instances:,} nodes")
            elif group.instances != former[group.name]:
                detail = f"{former[group.name]:,} to {group.instances:,} nodes"
                yield Effect("scale", group.name, detail)
