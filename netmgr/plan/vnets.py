"""The virtual networks of a lock: their address spaces and subnets, the hub's first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from netmgr.plan.lock import Allocation, ClusterLock, HubLock, LockDocument
from netmgr.prefixes import Prefix, merge
from netmgr.sites import HUB


@dataclass(frozen=True, slots=True)
class PlannedSubnet:
    """A subnet. `role` is routers, researchers, nat, hosts or pods; `pool` the node pool, or empty.

    `prefixes` has one prefix a family, v4 first.
    """

    name: str
    role: str
    pool: str
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class VirtualNetwork:
    """One VNet of a site: the hub or a cluster. Only a cluster past the cloud's limits has several."""

    name: str
    site: str
    address_space: tuple[Prefix, ...]
    subnets: tuple[PlannedSubnet, ...]


class HasSpace(Protocol):
    """A VNet, as the lock or as the cloud has it."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def address_space(self) -> tuple[Prefix, ...]:
        """Its prefixes, merged."""


def narrowed(before: Iterable[HasSpace], after: Iterable[HasSpace]) -> dict[str, tuple[Prefix, ...]]:
    """VNets that lose address space, with what they had: a further VNet of their site takes over what is unused."""
    former = {vnet.name: vnet.address_space for vnet in before}
    return {
        vnet.name: former[vnet.name]
        for vnet in after
        if not all(any(held.covers(prefix) for held in vnet.address_space) for prefix in former.get(vnet.name, ()))
    }


def virtual_networks(lock: LockDocument) -> tuple[VirtualNetwork, ...]:
    """Every VNet, the hub's first, then by cluster; tombstones hold addresses but have none."""
    found = list(_of_site(HUB, lock.hub.prefixes, _hub_subnets(lock.hub)))
    for name, cluster in lock.clusters.items():
        if not cluster.tombstone:
            found += _of_site(name, cluster.prefixes, _cluster_subnets(cluster))
    return tuple(found)


def _of_site(
    site: str, prefixes: Iterable[Allocation], subnets: Iterable[tuple[str, PlannedSubnet]]
) -> Iterator[VirtualNetwork]:
    """A lone VNet has the site's whole prefixes as address space; several share them out by subnet."""
    by_vnet: dict[str, list[PlannedSubnet]] = {}
    for vnet, subnet in subnets:
        by_vnet.setdefault(vnet, []).append(subnet)
    for vnet, members in by_vnet.items():
        held = [prefix for subnet in members for prefix in subnet.prefixes]
        space = [allocation.prefix for allocation in prefixes] if len(by_vnet) == 1 else held
        yield VirtualNetwork(vnet, site, tuple(merge(space)), tuple(members))


def _hub_subnets(hub: HubLock) -> Iterator[tuple[str, PlannedSubnet]]:
    yield hub.routers.vnet, PlannedSubnet("routers", "routers", "", hub.routers.prefixes)
    for number, subnet in enumerate(hub.researchers):
        yield subnet.vnet, PlannedSubnet(f"researchers-{number}", "researchers", "", subnet.prefixes)


def _cluster_subnets(cluster: ClusterLock) -> Iterator[tuple[str, PlannedSubnet]]:
    yield cluster.nat.vnet, PlannedSubnet("nat", "nat", "", cluster.nat.prefixes)
    for pool, spec in cluster.node_pools.items():
        for number, segment in enumerate(spec.segments if not spec.tombstone else ()):
            hosts = tuple(layout.hosts for layout in segment.layouts)
            pods = tuple(layout.pods for layout in segment.layouts)
            yield segment.vnet, PlannedSubnet(f"{pool}-hosts-{number}", "hosts", pool, hosts)
            yield segment.vnet, PlannedSubnet(f"{pool}-pods-{number}", "pods", pool, pods)
