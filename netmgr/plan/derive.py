"""Derives the cloud network that a plan and its lock describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle, product
from typing import NamedTuple

from netmgr.documents.sites import HUB, Role, SourceAddress
from netmgr.errors import ConfigError
from netmgr.plan import machines
from netmgr.plan.allocate.space import halves
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, NodePool, PlanDocument
from netmgr.plan.lock import ClusterLock, LockDocument, Segment
from netmgr.plan.machines import PlannedNode
from netmgr.plan.network import (
    Appliance,
    CloudRoute,
    Direction,
    NatGateway,
    Network,
    NextHop,
    NodeGroup,
    Peering,
    RouteTable,
    SecurityGroup,
    SecurityRule,
    Subnet,
    VirtualNetwork,
)
from netmgr.prefixes import Address, Family, Prefix, merge

# Names of a plan have no underscore, so a name joined by one equals no other.
DEFAULT_ROUTE = Prefix(Family.V4, 0, 0)
_RESEARCHERS = f"{HUB}_researchers"
# Priorities of security rules run from 100 to 4096, and the lowest is looked at first.
_OWN, _HUB, _APART = 100, 110, 200


class AddressSpace(NamedTuple):
    """That of one virtual network of the hub or a cluster."""

    owner: str
    prefixes: tuple[Prefix, ...]


class LockedSubnet(NamedTuple):
    """A subnet of the lock: whose it is, its virtual network, and the name it is rendered with."""

    owner: str
    network: str
    name: str
    role: str
    prefixes: tuple[Prefix, ...]
    is_live: bool = True
    """Whether it is no tombstone's."""
    pool: str = ""
    """Its node pool, whose segment it is, and that one's number there."""
    number: int = 0
    segment: Segment | None = None


class _Spoke(NamedTuple):
    """A cluster that is planned and has addresses."""

    name: str
    spec: Cluster
    held: ClusterLock

    @property
    def preserves(self) -> bool:
        """Whether its Services see the address of a client."""
        return self.spec.services.source is SourceAddress.PRESERVE


def network(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Network:
    """Everything the cloud is asked for; ConfigError if the lock is not the plan's."""
    spokes = _spokes(plan, lock)
    hub_tables = tuple(_hub_tables(spokes))
    networks = _networks(plan, lock, researchers=hub_tables[-1].name)
    return Network(
        plan=plan.name,
        networks=tuple(chain.from_iterable(networks.values())),
        peerings=tuple(_peerings(plan, networks)),
        tables=(*hub_tables, *_spoke_tables(plan, lock, spokes, networks)),
        groups=tuple(_security_group(plan, lock, spoke) for spoke in spokes),
        gateways=tuple(_gateways(plan)),
        node_groups=tuple(_node_groups(plan, lock, limits.limits.nodes_per_node_group)),
        appliances=tuple(_appliances(lock, spokes)),
        system_routes=limits.system_routes,
    )


def _spokes(plan: PlanDocument, lock: LockDocument) -> list[_Spoke]:
    live = {name: held for name, held in lock.clusters.items() if not held.tombstone}
    # Derived from both: a lock that lags behind the plan would render a network without some
    # cluster's rules.
    for name in live:
        if name not in plan.clusters:
            raise ConfigError(
                f"the lock has a cluster {name!r} that the plan has not; run: netmgr plan lock"
            )
    for name in plan.clusters:
        if name not in live:
            raise ConfigError(
                f"cluster {name!r} has no addresses in the lock yet; run: netmgr plan lock"
            )
    return [_Spoke(name, plan.clusters[name], held) for name, held in live.items()]


def location_of(plan: PlanDocument, owner: str) -> str:
    own = plan.hub.location if owner == HUB else plan.clusters[owner].location
    return own or plan.default_location


def segment_subnet(lock: LockDocument, node: PlannedNode) -> str:
    """Name of the subnet that a node's interface is in."""
    return next(subnet.name for subnet in locked_subnets(lock) if subnet.segment == node.segment)


def locked_subnets(lock: LockDocument) -> Iterator[LockedSubnet]:
    """Every subnet of the lock, the hub's first, tombstones included."""
    routers = lock.hub.routers
    yield LockedSubnet(HUB, routers.network, f"{HUB}_routers", "routers", routers.prefixes)
    for number, subnet in enumerate(lock.hub.researchers):
        name = f"{HUB}_researchers-{number}"
        yield LockedSubnet(HUB, subnet.network, name, "researchers", subnet.prefixes)
    for owner, held in lock.clusters.items():
        nat, is_live = held.nat, not held.tombstone
        yield LockedSubnet(owner, nat.network, f"{owner}_nat", "nat", nat.prefixes, is_live)
        for pool, spec in held.node_pools.items():
            is_used = is_live and not spec.tombstone
            for number, segment in enumerate(spec.segments):
                name = f"{owner}-{pool}_{number}" if number else f"{owner}-{pool}"
                own = (owner, segment.network, name, "nodes", segment.prefixes)
                yield LockedSubnet(*own, is_used, pool, number, segment)


def _live_subnets(lock: LockDocument) -> Iterator[LockedSubnet]:
    return (subnet for subnet in locked_subnets(lock) if subnet.is_live)


def address_spaces(lock: LockDocument) -> dict[str, AddressSpace]:
    """The address space of every virtual network, the hub's first."""
    # Of live subnets alone: tombstones hold addresses but have no network.
    members: dict[tuple[str, str], list[Prefix]] = {}
    for subnet in _live_subnets(lock):
        members.setdefault((subnet.owner, subnet.network), []).extend(subnet.prefixes)
    networks = Counter(owner for owner, _ in members)
    spaces = {}
    for (owner, name), own in members.items():
        # The only network of a site has all of its prefixes, unmerged: what exists keeps its own.
        # Several, which only a cluster past the cloud's limits has, divide them by subnet.
        whole = tuple(allocation.prefix for allocation in lock.sites[owner])
        spaces[name] = AddressSpace(owner, whole if networks[owner] == 1 else tuple(merge(own)))
    return spaces


def narrowed(
    before: Mapping[str, Sequence[Prefix]], after: Mapping[str, Sequence[Prefix]]
) -> list[str]:
    """Networks that lose address space because another network of their site takes some over."""
    lost = []
    for name, space in after.items():
        former = before.get(name, ())
        if not all(any(held.covers(prefix) for held in space) for prefix in former):
            lost.append(name)
    return lost


def _networks(
    plan: PlanDocument, lock: LockDocument, researchers: str
) -> dict[str, list[VirtualNetwork]]:
    tables = {"routers": HUB, "researchers": researchers}
    gateways = {gateway.owner: gateway.name for gateway in _gateways(plan)}
    subnets: dict[str, list[Subnet]] = {}
    for held in _live_subnets(lock):
        group = "" if held.owner == HUB else held.owner
        table = tables.get(held.role, f"{group}_{held.role}")
        gateway = gateways.get(held.owner, "")
        subnet = Subnet(held.name, held.role, held.prefixes, table, group, gateway)
        subnets.setdefault(held.network, []).append(subnet)
    # By owner: comparing each network with every other is quadratic. A thousand clusters took 3.6 s
    # to render instead of 2.2.
    networks: dict[str, list[VirtualNetwork]] = {}
    for name, (owner, space) in address_spaces(lock).items():
        location = location_of(plan, owner)
        virtual_network = VirtualNetwork(name, owner, location, space, tuple(subnets[name]))
        networks.setdefault(owner, []).append(virtual_network)
    return networks


def _peerings(
    plan: PlanDocument, networks: Mapping[str, list[VirtualNetwork]]
) -> Iterator[Peering]:
    """The hub with every spoke, and an owner's networks with each other."""
    # Each in both directions, since a peering works only once both ends have theirs, and an owner's
    # networks with each other, since peering is not transitive.
    every = list(chain.from_iterable(networks.values()))
    for local in every:
        for remote in every if local.owner == HUB else networks[HUB] + networks[local.owner]:
            # The hub takes answers of Services, which have no address of their network. A spoke
            # takes from the hub only the hub's own, unless its way to the internet leads there.
            owner, name = local.owner, f"{local.name}_to_{remote.name}"
            forwarded = owner in (HUB, remote.owner) or not plan.clusters[owner].nat_gateway_ips
            if remote is not local:
                yield Peering(name, local.name, remote.name, forwarded)


def _hub_tables(spokes: Iterable[_Spoke]) -> Iterator[RouteTable]:
    """The hub's table, and one for researchers where a cluster's Services see their addresses."""
    services: list[CloudRoute] = []
    both_ways: list[CloudRoute] = []
    for spoke in spokes:
        for vip_range in spoke.held.services.vip_ranges:
            name = f"services-{spoke.name}{_suffix(vip_range.family)}"
            for number, (share, host) in enumerate(_shares(spoke, vip_range)):
                services.append(CloudRoute(f"{name}-{number}", share, NextHop.APPLIANCE, host))
        # Answers to researchers come back by the first NAT host. If it saw only the answers of
        # native connections, connection tracking would hold them half open.
        for number, allocation in enumerate(spoke.held.prefixes if spoke.preserves else ()):
            name = f"nodes-{spoke.name}-{number}"
            both_ways += _by_first_host(name, allocation.prefix, spoke.held)
    yield RouteTable(HUB, HUB, tuple(services))
    if both_ways:
        yield RouteTable(_RESEARCHERS, HUB, (*services, *both_ways))


def _by_first_host(name: str, prefix: Prefix, held: ClusterLock) -> Iterator[CloudRoute]:
    # Always the first: both directions of a connection must pass the same host.
    for host in held.nat.of_family(prefix.family)[:1]:
        yield CloudRoute(name, prefix, NextHop.APPLIANCE, host)


def _suffix(family: Family) -> str:
    return "" if family is Family.V4 else "-v6"


def _shares(spoke: _Spoke, vip_range: Prefix) -> Iterator[tuple[Prefix, Address]]:
    """Parts of a Service range and the NAT host of each."""
    hosts = spoke.held.nat.of_family(vip_range.family)
    parts = [vip_range]
    # Where the client's address is preserved, answers come back by that address alone, which cannot
    # tell one host from another: then the first host has it all.
    while len(parts) < len(hosts) and not spoke.preserves:
        # A power of two of parts, so that each is one route; hosts take them in turn.
        parts = [half for part in parts for half in halves(part)]
    yield from zip(parts, cycle(hosts), strict=False)


def _spoke_tables(
    plan: PlanDocument,
    lock: LockDocument,
    spokes: Iterable[_Spoke],
    networks: Mapping[str, Sequence[VirtualNetwork]],
) -> Iterator[RouteTable]:
    for spoke in spokes:
        name = spoke.name
        near = (*networks[HUB], *networks[name])
        apart = list(_apart(plan, [prefix for peer in near for prefix in peer.address_space]))
        if not spoke.spec.nat_gateway_ips and lock.hub.routers.addresses:
            # Without a gateway of its own a spoke reaches the internet through the hub.
            router = lock.hub.routers.addresses[0]
            apart.append(CloudRoute("internet", DEFAULT_ROUTE, NextHop.APPLIANCE, router))
        yield RouteTable(f"{name}_nodes", name, (*apart, *_to_researchers(spoke, lock)))
        # Without the routes to researchers: those lead to these very hosts, and packets would loop.
        yield RouteTable(f"{name}_nat", name, tuple(apart))


def _to_researchers(spoke: _Spoke, lock: LockDocument) -> Iterator[CloudRoute]:
    """The way back to researchers whose address Services see: by the host that translated."""
    for number, subnet in enumerate(lock.hub.researchers if spoke.preserves else ()):
        for prefix in subnet.prefixes:
            name = f"researchers-{number}{_suffix(prefix.family)}"
            yield from _by_first_host(name, prefix, spoke.held)


def _apart(plan: PlanDocument, near: Sequence[Prefix]) -> Iterator[CloudRoute]:
    """Routes to None for every pool; longer prefixes of the spoke and its peers (`near`) win."""
    # Services, too: a spoke must not reach another's by the range that the hub sees.
    pools = [*plan.pools.nodes, *plan.pools.services, *plan.shared_services]
    # Numbered by pool: a route keeps its name when another pool is skipped.
    for number, pool in enumerate(pools):
        # A route of the same prefix would override the cloud's own to the spoke itself or the hub.
        if not any(prefix.covers(pool) for prefix in near):
            yield CloudRoute(f"apart-{number}", pool, NextHop.NONE)


def _security_group(plan: PlanDocument, lock: LockDocument, spoke: _Spoke) -> SecurityGroup:
    peers = (
        ("own", _OWN, True, _sources(spoke.held)),
        ("hub", _HUB, True, merge(allocation.prefix for allocation in lock.hub.prefixes)),
        ("apart", _APART, False, merge((*plan.pools.nodes, *plan.pools.services))),
    )
    rules = []
    for direction, (peer, priority, allow, prefixes), family in product(Direction, peers, Family):
        name = f"{peer}-{direction}-v{family}"
        group = tuple(prefix for prefix in prefixes if prefix.family is family)
        if group:
            # Azure takes no two rules of one direction and priority: the family's number is added.
            rules.append(SecurityRule(name, priority + family, direction, allow, group))
    return SecurityGroup(spoke.name, spoke.name, tuple(rules))


def _sources(held: ClusterLock) -> list[Prefix]:
    """Of a cluster's packets: its prefixes, and its Services as the hub sees them."""
    return merge((*(allocation.prefix for allocation in held.prefixes), *held.services.vip_ranges))


def _node_groups(plan: PlanDocument, lock: LockDocument, limit: int | None) -> Iterator[NodeGroup]:
    for subnet in _live_subnets(lock):
        owner, segment = subnet.owner, subnet.segment
        if segment is None:
            continue
        spec = plan.clusters[owner].node_pools.get(subnet.pool)
        if spec is None:  # left the plan
            continue
        families = tuple(layout.family for layout in segment.layouts)
        for nth, instances in enumerate(_group_sizes(spec, segment, limit)):
            yield NodeGroup(
                name=f"{owner}-{subnet.pool}_{subnet.number}_{nth}" if nth else subnet.name,
                owner=owner,
                location=location_of(plan, owner),
                network=segment.network,
                subnet=subnet.name,
                instances=instances,
                pods=spec.single_addresses,
                families=families,
            )


def _group_sizes(spec: NodePool, segment: Segment, limit: int | None) -> Iterator[int]:
    """Nodes of a segment's node groups: one group, or as many as the cloud's limit requires."""
    # Machines with blocks are in no such group.
    most = limit if limit and spec.single_addresses else segment.nodes
    # Groups are made for the surge, too: an upgrade must find one that is not full.
    # In the order of node indexes: a segment has nodes only once those before it are full.
    present = max(0, min(spec.needed - segment.first, segment.nodes))
    # So do groups: growth changes the last one alone, and adds others.
    for first in range(0, max(present, 1), most):
        yield max(0, min(spec.nodes - segment.first - first, segment.nodes - first, most))


def _gateways(plan: PlanDocument) -> Iterator[NatGateway]:
    spokes = {name: cluster.nat_gateway_ips for name, cluster in plan.clusters.items()}
    for owner, addresses in {HUB: plan.hub.nat_gateway_ips, **spokes}.items():
        # A spoke without one reaches the internet through the hub.
        if addresses:
            yield NatGateway(owner, owner, location_of(plan, owner), addresses)


def _appliances(lock: LockDocument, spokes: Sequence[_Spoke]) -> Iterator[Appliance]:
    every = tuple(merge(prefix for spoke in spokes for prefix in _sources(spoke.held)))
    for host in machines.hosts(lock):
        is_router = host.role is Role.HUB_ROUTER
        yield Appliance(
            name=f"{host.site}_{'router' if is_router else 'nat'}_{host.number}",
            machine=host.name,
            owner=host.site,
            addresses=host.addresses,
            drops=((every, every),) if is_router else (),
            translations=() if is_router else lock.clusters[host.site].services.pairs,
        )
