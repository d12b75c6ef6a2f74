"""Locks of plans, and whether a lock is sound: an oracle for the allocator that shares none of its
decisions.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from netmgr.documents.diagnostics import Diagnostic, Severity
from netmgr.documents.sites import HUB
from netmgr.plan.allocate.demand import NAT_HOSTS, Blocks, hosts_length, layout
from netmgr.plan.allocate.subnetting import host_addresses
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.derive import network
from netmgr.plan.document import V6_SUBNET, PlanDocument, ServiceMode
from netmgr.plan.files import load_limits, load_lock, load_plan, lock_path
from netmgr.plan.lock import Allocation, Layout, LockDocument, NodePoolLock, SubnetLock
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix, overlaps

NETWORKS = (
    "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/netmgr"
    "/providers/Microsoft.Network/virtualNetworks"
)


published = functools.cache(load_limits)


def agreed_limits(plan: PlanDocument) -> CloudLimits:
    """The cloud's limits with those of the plan."""
    return published(plan.cloud).agreed(plan.limits)


def lock_for(plan: PlanDocument, before: LockDocument | None = None, **keys: Any) -> LockDocument:
    return make_lock(plan, before, agreed_limits(plan), **keys)


def errors(plan: PlanDocument, lock: LockDocument) -> list[Diagnostic]:
    """What `netmgr plan check` would fail for."""
    limits = agreed_limits(plan)
    found = [*check_plan(plan, lock, limits), *check_limits(plan, lock, limits)[1]]
    return [finding for finding in found if finding.severity is Severity.ERROR]


def faults(lock: LockDocument, clouds: Collection[CloudLimits] = ()) -> list[str]:
    """What contradicts something else in the lock, and what no cloud of `clouds` would derive."""
    found = [
        f"{inner} overlaps {outer}"
        for prefixes in (_reserves_and_vips(lock), all_subnets(lock))
        for outer, inner in overlaps(prefixes, lambda prefix: prefix)
    ]
    for site, allocations, subnets in _sites(lock):
        found += _outside(site, allocations, subnets)
    for site, held in _subnets(lock):
        found += _misplaced(site, held)
        found += _underived(held, clouds, is_router_or_nat=held not in lock.hub.researchers)
    for name, cluster in lock.clusters.items():
        for vips, cidr in cluster.services.pairs:
            is_unique = cluster.services.mode is ServiceMode.UNIQUE
            if (vips != cidr) if is_unique else (vips.length != cidr.length):
                found.append(f"{name}: {cidr} is seen as {vips}")
        for pool in cluster.node_pools.values():
            found += _segments(name, pool, clouds)
    return found


def _reserves_and_vips(lock: LockDocument) -> Iterator[Prefix]:
    yield from (held.reserve for held in lock.hub.prefixes)
    for cluster in lock.clusters.values():
        yield from (held.reserve for held in cluster.prefixes)
        yield from cluster.services.vip_ranges


def _subnets(lock: LockDocument) -> Iterator[tuple[str, SubnetLock]]:
    yield from ((HUB, held) for held in (lock.hub.routers, *lock.hub.researchers))
    yield from ((name, cluster.nat) for name, cluster in lock.clusters.items())


def lock_of(plan: Path) -> LockDocument:
    lock = load_lock(lock_path(plan))
    assert lock
    return lock


def listed_networks(plan: Path) -> list[dict[str, Any]]:
    """The networks of a plan and its lock as the cloud's own tool lists them once it is applied."""
    document, lock = load_plan(plan), lock_of(plan)
    return [
        {
            "id": f"{NETWORKS}/{held.name}",
            "name": held.name,
            "addressSpace": {"addressPrefixes": [*map(str, held.address_space)]},
            "subnets": [
                {"name": subnet.name, "addressPrefixes": [*map(str, subnet.prefixes)]}
                for subnet in held.subnets
            ],
        }
        for held in network(document, lock, agreed_limits(document)).networks
    ]


def all_subnets(lock: LockDocument) -> Iterator[Prefix]:
    for _, _, prefixes in _sites(lock):
        yield from prefixes


def _sites(lock: LockDocument) -> Iterator[tuple[str, tuple[Allocation, ...], list[Prefix]]]:
    hub = [lock.hub.routers, *lock.hub.researchers]
    yield HUB, lock.hub.prefixes, [prefix for held in hub for prefix in held.prefixes]
    for name, cluster in lock.clusters.items():
        segments = [each for pool in cluster.node_pools.values() for each in pool.segments]
        prefixes = [*cluster.nat.prefixes, *(p for each in segments for p in each.prefixes)]
        yield name, cluster.prefixes, prefixes


def _outside(
    site: str, allocations: tuple[Allocation, ...], subnets: Iterable[Prefix]
) -> Iterator[str]:
    for held in allocations:
        if not held.reserve.covers(held.prefix):
            yield f"{site}: {held.prefix} is not in its reserve {held.reserve}"
    for subnet in subnets:
        if not any(held.prefix.covers(subnet) for held in allocations):
            yield f"{site}: {subnet} is in none of its prefixes"
        if subnet.family is Family.V6 and subnet.length > V6_SUBNET:
            yield f"{site}: {subnet} is smaller than a /{V6_SUBNET}"


def _misplaced(site: str, held: SubnetLock) -> Iterator[str]:
    if held.network != site:
        yield f"{site}: {held.network} is another site's network"
    if held.addresses_v6 and len(held.addresses_v6) != len(held.addresses):
        yield f"{site}: {held.prefix} has hosts of one family"
    for address in (*held.addresses, *held.addresses_v6):
        if not any(prefix.holds(address) for prefix in held.prefixes):
            yield f"{site}: {address} is not in {held.prefix}"


def _underived(
    held: SubnetLock, clouds: Collection[CloudLimits], *, is_router_or_nat: bool
) -> Iterator[str]:
    for prefix in held.prefixes if clouds else ():
        addresses = held.of_family(prefix.family)
        if addresses not in [host_addresses(prefix, len(addresses), each) for each in clouds]:
            yield f"{addresses} do not follow from {prefix}"
    lengths = {hosts_length(NAT_HOSTS, Family.V4, cloud) for cloud in clouds}
    if clouds and is_router_or_nat and held.prefix.length not in lengths:
        yield f"{held.prefix} is not of {NAT_HOSTS} hosts"


def _segments(site: str, pool: NodePoolLock, clouds: Collection[CloudLimits]) -> Iterator[str]:
    first = 0
    for segment in pool.segments:
        if segment.first != first:
            yield f"{site}: nodes begin at {segment.first}, not {first}"
        first = segment.first + segment.nodes
        number = segment.network.removeprefix(f"{site}_")
        if segment.network != site and not (number != segment.network and number.isdigit()):
            yield f"{site}: {segment.network} is another site's network"
        for held in segment.layouts:
            if not _has_room(held, segment.nodes):
                yield f"{site}: {segment.nodes} nodes do not fit into {held.subnet}"
            if clouds and not any(_is_laid_out(held, segment.nodes, each) for each in clouds):
                yield f"{site}: {held} does not follow from its subnets"


def _is_laid_out(held: Layout, nodes: int, cloud: CloudLimits) -> bool:
    cut = Blocks(held.family, held.block_length, held.blocks)
    last_pod = held.pod_base.value + nodes * held.stride - 1
    is_clear = last_pod <= held.subnet.last - cloud.reserved_last
    return is_clear and layout(held.subnet, nodes, cut, cloud) == held


def _has_room(held: Layout, nodes: int) -> bool:
    last_host = held.host_base.value + nodes - 1
    last_pod = held.pod_base.value + nodes * held.stride - 1
    return (
        held.subnet.value <= held.host_base.value
        and last_host < held.pod_base.value
        and last_pod <= held.subnet.last
        and (held.family is Family.V4 or held.block_length == 128 or held.blocks == 1)
    )
