"""From a plan and its lock to the network they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations

from netmgr.errors import ConfigError
from netmgr.plan.document import Addressing, Cluster, PlanDocument
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import ClusterLock, LockDocument, Segment
from netmgr.plan.network import (
    Appliance,
    Direction,
    NatGateway,
    Network,
    NextHop,
    Peering,
    Route,
    RouteTable,
    ScaleSet,
    SecurityGroup,
    SecurityRule,
    Subnet,
    Translation,
    Vnet,
)
from netmgr.plan.nodes import PlannedNode
from netmgr.plan.space import halves
from netmgr.plan.vnets import VirtualNetwork, virtual_networks
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.sites import HUB, SourceAddress

# Names of the plan have no underscores, so that what is joined by one is never the name of something else.
DEFAULT_ROUTE = Prefix(Family.V4, 0, 0)
_RESEARCHERS = f"{HUB}_researchers"
_OWN, _HUB, _APART = 100, 110, 200  # priorities: from 100 to 4096, the lowest first


def network(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Network:
    """Everything the cloud is asked for.

    Raises:
        ConfigError: the lock is not that of the plan; says what to run.
    """
    spokes = dict(_spokes(plan, lock))
    planned = virtual_networks(lock)
    spaces: dict[str, list[Prefix]] = {}
    for vnet in planned:
        spaces.setdefault(vnet.site, []).extend(vnet.address_space)
    both_ways = any(_to_preserving(spokes))
    vnets = tuple(_vnet(plan, lock, vnet, _RESEARCHERS if both_ways else HUB) for vnet in planned)
    return Network(
        plan=plan.name,
        networks=vnets,
        peerings=tuple(_peerings(vnets, spokes)),
        tables=(
            *_hub_tables(spokes),
            *(table for name in spokes for table in _spoke_tables(plan, lock, name, (*spaces[HUB], *spaces[name]))),
        ),
        groups=tuple(_group(plan, lock, name) for name in spokes),
        gateways=tuple(
            NatGateway(name, name, _location(plan, name), spec.nat_gateway_ips)
            for name, (spec, _) in spokes.items()
            if spec.nat_gateway_ips
        ),
        scale_sets=tuple(_scale_sets(plan, spokes, limits.limits.nodes_per_vmss)),
        appliances=(*_routers(lock, spokes), *_nat_hosts(spokes)),
    )


def _spokes(plan: PlanDocument, lock: LockDocument) -> Iterator[tuple[str, tuple[Cluster, ClusterLock]]]:
    """Clusters that are planned and have addresses."""
    for name, held in lock.clusters.items():
        if held.tombstone:
            continue
        if name not in plan.clusters:
            raise ConfigError(f"the lock has a cluster {name!r} that the plan has not; run: netmgr plan lock")
        yield name, (plan.clusters[name], held)
    for name in plan.clusters:
        if name not in lock.clusters or lock.clusters[name].tombstone:
            raise ConfigError(f"cluster {name!r} has no addresses in the lock yet; run: netmgr plan lock")


def _location(plan: PlanDocument, owner: str) -> str:
    own = plan.hub.location if owner == HUB else plan.clusters[owner].location
    return own or plan.azure.location


def segment_name(pool: str, number: int) -> str:
    """Name of the subnet of a node pool's segment, and of its scale set within the cluster."""
    return pool if number == 0 else f"{pool}_{number}"


def segment_subnet(lock: LockDocument, node: PlannedNode) -> str:
    """Name of the subnet that a node's interface is in."""
    segments = lock.clusters[node.cluster].node_pools[node.pool].segments
    return f"{node.cluster}-{segment_name(node.pool, segments.index(node.segment))}"


def _vnet(plan: PlanDocument, lock: LockDocument, vnet: VirtualNetwork, researchers: str) -> Vnet:
    if vnet.site == HUB:
        tables = {"researchers": researchers}
        subnets = tuple(
            Subnet(f"{HUB}_{net.name}", net.role, net.prefixes, table=tables.get(net.role, HUB)) for net in vnet.subnets
        )
    else:
        subnets = tuple(_spoke_subnets(plan.clusters[vnet.site], vnet.site, lock.clusters[vnet.site], vnet.name))
    return Vnet(vnet.name, vnet.site, _location(plan, vnet.site), vnet.address_space, subnets)


def _spoke_subnets(spec: Cluster, name: str, held: ClusterLock, vnet: str) -> Iterator[Subnet]:
    gateway = name if spec.nat_gateway_ips else ""
    if held.nat.vnet == vnet:
        yield Subnet(f"{name}_nat", "nat", held.nat.prefixes, f"{name}_nat", name, gateway)
    for pool, segments in held.node_pools.items():
        for number, segment in enumerate(segments.segments):
            if segment.vnet == vnet and not segments.tombstone:
                yield Subnet(
                    f"{name}-{segment_name(pool, number)}", "nodes", _prefixes(segment), f"{name}_nodes", name, gateway
                )


def _prefixes(segment: Segment) -> tuple[Prefix, ...]:
    """One subnet for hosts and pods: a network interface may not have addresses of two."""
    return tuple(prefix for layout in segment.layouts for prefix in (layout.hosts, layout.pods))


def _peerings(vnets: Iterable[Vnet], spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[Peering]:
    """Hub with everybody, and networks of one owner with each other; both directions."""
    for one, other in permutations(vnets, 2):
        if HUB in (one.owner, other.owner) or one.owner == other.owner:
            # The hub takes answers of Services, which have no address of their network. A spoke takes
            # from the hub only what is the hub's own, unless its way to the internet leads there.
            forwarded = one.owner in (HUB, other.owner) or not spokes[one.owner][0].nat_gateway_ips
            yield Peering(f"{one.name}_to_{other.name}", one.name, other.name, forwarded)


def _hub_tables(spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[RouteTable]:
    """The hub's; researchers have one of their own where a cluster sends them all answers by its NAT host."""
    services = tuple(_to_services(spokes))
    yield RouteTable(HUB, HUB, services)
    if both_ways := tuple(_to_preserving(spokes)):
        yield RouteTable(_RESEARCHERS, HUB, (*services, *both_ways))


def _to_preserving(spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[Route]:
    """The researchers' way to clusters that see their addresses: all of it by the host that answers come back by.

    A NAT host that saw nothing but the answers of native connections would track half-open ones.
    """
    for name, (spec, held) in spokes.items():
        if spec.services.source is SourceAddress.PRESERVE:
            for number, prefix in enumerate(allocation.prefix for allocation in held.prefixes):
                for host in held.nat.of_family(prefix.family)[:1]:
                    yield Route(f"nodes-{name}-{number}", prefix, NextHop.APPLIANCE, host)


def _to_services(spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[Route]:
    """The hub's way to each cluster's Services: through its NAT hosts, each of which gets a share."""
    for name, (spec, held) in spokes.items():
        for seen in held.services.seen:
            family = "" if seen.family is Family.V4 else "-v6"
            for number, (share, host) in enumerate(_shares(spec, held, seen)):
                yield Route(f"services-{name}{family}-{number}", share, NextHop.APPLIANCE, host)


def _shares(spec: Cluster, held: ClusterLock, seen: Prefix) -> Iterator[tuple[Prefix, Address]]:
    """Parts of a Service range and the NAT host of each.

    Where the client's address is preserved, answers come back by the client's address alone,
    which cannot tell one host from another: then the first host has it all.
    """
    hosts = held.nat.of_family(seen.family)
    if not hosts:
        return
    parts = [seen]
    while spec.services.source is SourceAddress.SNAT and len(parts) < len(hosts):
        parts = [half for part in parts for half in halves(part)]
    for number, part in enumerate(parts):
        yield part, hosts[number % len(hosts)]


def _spoke_tables(plan: PlanDocument, lock: LockDocument, name: str, near: tuple[Prefix, ...]) -> Iterator[RouteTable]:
    spec, held = plan.clusters[name], lock.clusters[name]
    apart = (*_apart(plan, near), *_default(spec, lock))
    yield RouteTable(f"{name}_nodes", name, (*apart, *_back(spec, held, lock)))
    yield RouteTable(f"{name}_nat", name, apart)


def _back(spec: Cluster, held: ClusterLock, lock: LockDocument) -> Iterator[Route]:
    """The way to researchers whose address Services see: through the host that translated their requests."""
    if spec.services.source is not SourceAddress.PRESERVE:
        return
    for number, subnet in enumerate(lock.hub.researchers):
        for prefix in subnet.prefixes:
            family = "" if prefix.family is Family.V4 else "-v6"
            for host in held.nat.of_family(prefix.family)[:1]:
                yield Route(f"researchers-{number}{family}", prefix, NextHop.APPLIANCE, host)


def _apart(plan: PlanDocument, near: tuple[Prefix, ...]) -> Iterator[Route]:
    """Every pool leads nowhere, but for the longer prefixes of the spoke and its peers, which are `near`."""
    pools = [*plan.pools.nodes, *plan.pools.services, *plan.shared_services]
    for number, pool in enumerate(pools):
        # A route of the same prefix would override the cloud's own to the spoke itself or the hub.
        if not any(prefix.covers(pool) for prefix in near):
            yield Route(f"apart-{number}", pool, NextHop.NONE)


def _default(spec: Cluster, lock: LockDocument) -> Iterator[Route]:
    """A spoke without a NAT gateway reaches the internet through the hub."""
    if not spec.nat_gateway_ips and lock.hub.routers.addresses:
        yield Route("internet", DEFAULT_ROUTE, NextHop.APPLIANCE, lock.hub.routers.addresses[0])


def _group(plan: PlanDocument, lock: LockDocument, name: str) -> SecurityGroup:
    peers = (
        ("own", _OWN, True, held_prefixes(lock.clusters[name])),
        ("hub", _HUB, True, tuple(merge(allocation.prefix for allocation in lock.hub.prefixes))),
        ("apart", _APART, False, tuple(merge((*plan.pools.nodes, *plan.pools.services)))),
    )
    rules = (
        SecurityRule(f"{what}-{direction.lower()}-v{family}", priority + family, direction, allow, group)
        for direction in Direction
        for what, priority, allow, prefixes in peers
        for family in Family
        if (group := tuple(prefix for prefix in prefixes if prefix.family is family))
    )
    return SecurityGroup(name, name, tuple(rules))


def held_prefixes(held: ClusterLock) -> tuple[Prefix, ...]:
    """What a cluster's own packets carry, toward anybody: its prefixes and its Services as the hub sees them."""
    return tuple(merge((*(allocation.prefix for allocation in held.prefixes), *held.services.seen)))


def _scale_sets(
    plan: PlanDocument, spokes: dict[str, tuple[Cluster, ClusterLock]], limit: int | None
) -> Iterator[ScaleSet]:
    """One for each segment of a node pool, or as many as the cloud's limit of instances makes necessary.

    Node numbers fill them in order, so that growth changes the last one alone. There is one for every node
    that an upgrade adds, too: the surge has to have a set that is not full.
    """
    for name, (spec, held) in spokes.items():
        for pool, segments in held.node_pools.items():
            if segments.tombstone or pool not in spec.node_pools:
                continue
            asked = spec.node_pools[pool]
            for number, segment in enumerate(segments.segments):
                subnet = f"{name}-{segment_name(pool, number)}"
                most = limit or segment.nodes
                present = max(0, min(asked.needed - segment.first, segment.nodes))
                for place, first in enumerate(range(0, max(present, 1), most)):
                    yield ScaleSet(
                        name=f"{name}-{pool}_{number}_{place}" if place else subnet,
                        owner=name,
                        location=_location(plan, name),
                        network=segment.vnet,
                        subnet=subnet,
                        instances=max(0, min(asked.nodes - segment.first - first, segment.nodes - first, most)),
                        configurations=segment.v4.blocks,
                        block_length=32 if asked.addressing is Addressing.SINGLE else segment.v4.block_length,
                        families=tuple(layout.pods.family for layout in segment.layouts),
                    )


def _routers(lock: LockDocument, spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[Appliance]:
    every = tuple(merge(prefix for _, held in spokes.values() for prefix in held_prefixes(held)))
    for number, addresses in enumerate(lock.hub.routers.hosts):
        yield Appliance(f"{HUB}_router_{number}", HUB, addresses, drops=((every, every),), internet=True)


def _nat_hosts(spokes: dict[str, tuple[Cluster, ClusterLock]]) -> Iterator[Appliance]:
    for name, (_, held) in spokes.items():
        translations = tuple(Translation(seen, real) for seen, real in held.services.pairs)
        for number, addresses in enumerate(held.nat.hosts):
            yield Appliance(f"{name}_nat_{number}", name, addresses, translations=translations)
