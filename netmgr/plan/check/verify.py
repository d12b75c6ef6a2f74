"""Whether a lock agrees with itself; one that was edited or merged by hand may not, and is refused.

What one part of a lock says follows largely from the others: it is derived again here and compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error
from netmgr.documents.sites import HUB
from netmgr.plan.allocate.demand import NAT_HOSTS, Blocks, holds, hosts_length, layout
from netmgr.plan.allocate.subnetting import host_addresses, taken_by
from netmgr.plan.check.overlaps import Entry, overlaps
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import V6_SUBNET, ServiceMode
from netmgr.plan.lock import (
    CURE,
    Allocation,
    Layout,
    LockDocument,
    NodePoolLock,
    Segment,
    ServiceRange,
    Subnet,
)
from netmgr.prefixes import Family, Prefix


def verify(lock: LockDocument) -> Iterator[Diagnostic]:
    """Everything in the lock that contradicts something else in it. Keys are those of the lock."""
    yield from _disjoint(_reserves_and_services(lock))
    yield from _disjoint(subnets_of(lock))
    hub = (subnet for subnet, _ in _hub_subnets(lock))
    yield from _inside((HUB,), lock.hub.prefixes, hub)
    yield from _fixed((HUB, "routers"), lock.hub.routers)
    for name, cluster in lock.clusters.items():
        path: KeyPath = ("clusters", name)
        yield from _inside(path, cluster.prefixes, taken_by(cluster))
        yield from _fixed((*path, "nat"), cluster.nat)
        yield from _pairs((*path, "services"), cluster.services)
        for pool, spec in cluster.node_pools.items():
            yield from _segments((*path, "node_pools", pool), spec)
    yield from _networks(lock)


def derive(lock: LockDocument, clouds: Collection[CloudLimits]) -> Iterator[Diagnostic]:
    """Addresses that do not follow from the lock's subnets, for any of the `clouds` it may be for.

    Segments keep what they were made with when a plan changes its cloud.
    """
    # The digest of an edited lock can be renewed, so what an edit breaks is looked for as well.
    for path, subnet in _fixed_subnets(lock):
        yield from _hosts_follow(path, subnet, clouds)
        lengths = {hosts_length(NAT_HOSTS, Family.V4, cloud) for cloud in clouds}
        if path[:2] != (HUB, "researchers") and subnet.prefix.length not in lengths:
            message = f"is {subnet.prefix}, but a subnet for {NAT_HOSTS} hosts is a /{min(lengths)}"
            yield _fault((*path, "prefix"), message)
    for path, segment in _all_segments(lock):
        for found in segment.layouts:
            yield from _laid_out(path, segment, found, clouds)


def _fault(path: KeyPath, message: str, beside: KeyPath | None = None) -> Diagnostic:
    return error(message, path, beside, CURE)


def _hosts_follow(
    path: KeyPath, subnet: Subnet, clouds: Collection[CloudLimits]
) -> Iterator[Diagnostic]:
    for family, key in ((Family.V4, "addresses"), (Family.V6, "addresses_v6")):
        found, prefix = subnet.of_family(family), subnet.of(family)
        wanted = [host_addresses(prefix, len(found), cloud) for cloud in clouds] if prefix else [()]
        if found not in wanted:
            must = ", ".join(map(str, wanted[0])) or "empty"
            yield _fault((*path, key), f"must be {must}, as they follow from {prefix}")


def _laid_out(
    path: KeyPath, segment: Segment, found: Layout, clouds: Collection[CloudLimits]
) -> Iterator[Diagnostic]:
    cut = Blocks(found.pods.family, found.block_length, found.blocks)
    here = (*path, f"v{found.pods.family}")
    if found.pods.family is Family.V6 and found.blocks != 1:
        message = f"is {found.blocks}, but a node has one IPv6 block"
        yield _fault((*here, "blocks"), message)
    derived = [layout(found.hosts, found.pods, cut, cloud) for cloud in clouds]
    fitting = [cloud for each, cloud in zip(derived, clouds, strict=True) if each == found]
    if not fitting:
        bases = f"host_base {derived[0].host_base} and pod_base {derived[0].pod_base}"
        message = f"must have {bases}, as they follow from {found.hosts} and {found.pods}"
        yield _fault(here, message)
    elif segment.nodes > max(holds(found, cloud) for cloud in fitting):
        yield _too_many(path, segment, found)


def _too_many(path: KeyPath, segment: Segment, found: Layout) -> Diagnostic:
    message = f"{segment.nodes} nodes do not fit into {found.hosts}, {found.pods}"
    return _fault((*path, "nodes"), message)


def subnets_of(lock: LockDocument) -> list[Entry]:
    """Every subnet, with the key of its owner."""
    entries = list(_hub_subnets(lock))
    for name, cluster in lock.clusters.items():
        entries += [(subnet, ("clusters", name)) for subnet in taken_by(cluster)]
    return entries


def _reserves_and_services(lock: LockDocument) -> list[Entry]:
    entries: list[Entry] = []
    sites: list[tuple[KeyPath, tuple[Allocation, ...]]] = [((HUB,), lock.hub.prefixes)]
    sites += [(("clusters", name), held.prefixes) for name, held in lock.clusters.items()]
    for path, allocations in sites:
        for number, held in enumerate(allocations):
            entries.append((held.reserve, (*path, "prefixes", number)))
    for name, cluster in lock.clusters.items():
        for vip_range in cluster.services.vip_ranges:
            key = "hub_prefix" if vip_range.family is Family.V4 else "hub_prefix_v6"
            entries.append((vip_range, ("clusters", name, "services", key)))
    return entries


def _hub_subnets(lock: LockDocument) -> Iterator[Entry]:
    for path, subnet in _fixed_subnets(lock):
        if path[0] == HUB:
            yield from ((prefix, path) for prefix in subnet.prefixes)


def _disjoint(entries: Iterable[Entry]) -> Iterator[Diagnostic]:
    for (prefix, path), (other, owner) in overlaps(entries):
        yield _fault(path, f"{prefix} overlaps {other} of {'.'.join(map(str, owner))}", owner)


def _inside(
    path: KeyPath, allocations: tuple[Allocation, ...], subnets: Iterable[Prefix]
) -> Iterator[Diagnostic]:
    for number, held in enumerate(allocations):
        if not held.reserve.covers(held.prefix):
            message = f"{held.prefix} does not lie in its reserve {held.reserve}"
            yield _fault((*path, "prefixes", number), message)
    for subnet in subnets:
        if not any(held.prefix.covers(subnet) for held in allocations):
            yield _fault(path, f"subnet {subnet} lies in none of its prefixes")


def _fixed_subnets(lock: LockDocument) -> Iterator[tuple[KeyPath, Subnet]]:
    yield (HUB, "routers"), lock.hub.routers
    for number, subnet in enumerate(lock.hub.researchers):
        yield (HUB, "researchers", number), subnet
    for name, cluster in lock.clusters.items():
        yield ("clusters", name, "nat"), cluster.nat


def _all_segments(lock: LockDocument) -> Iterator[tuple[KeyPath, Segment]]:
    for name, cluster in lock.clusters.items():
        for pool, spec in cluster.node_pools.items():
            for number, segment in enumerate(spec.segments):
                yield ("clusters", name, "node_pools", pool, "segments", number), segment


def _networks(lock: LockDocument) -> Iterator[Diagnostic]:
    """Subnets in a network of another site, and IPv6 subnets that are too small."""
    for prefix, path in subnets_of(lock):
        if prefix.family is Family.V6 and prefix.length > V6_SUBNET:
            message = f"has {prefix}, but no IPv6 subnet is smaller than a /{V6_SUBNET}"
            yield _fault(path, message)
    for path, subnet in _fixed_subnets(lock):
        site = HUB if path[0] == HUB else str(path[1])
        if subnet.network != site:
            yield _of_another_site(path, subnet.network, site)
    for path, segment in _all_segments(lock):
        site = str(path[1])
        if not _is_network_of(segment.network, site):
            yield _of_another_site(path, segment.network, site)


def _is_network_of(network: str, site: str) -> bool:
    """A site's first network is called as the site is, and further ones have a number."""
    # Names of sites have no underscore, so that `a_2` belongs to `a` and to no other.
    further = network.removeprefix(f"{site}_")
    return network == site or (further != network and further.isdigit())


def _of_another_site(path: KeyPath, network: str, site: str) -> Diagnostic:
    return _fault((*path, "vnet"), f"{network} is no network of {site}")


def _pairs(path: KeyPath, services: ServiceRange) -> Iterator[Diagnostic]:
    """Services whose VIP range is elsewhere than their range allows."""
    for vip_range, service_cidr in services.pairs:
        key = (*path, "prefix" if service_cidr.family is Family.V4 else "prefix_v6")
        if services.mode is ServiceMode.UNIQUE and vip_range != service_cidr:
            yield _fault(key, f"is {service_cidr}, but the hub sees these Services at {vip_range}")
        elif vip_range.length != service_cidr.length or vip_range.family is not service_cidr.family:
            message = (
                f"is {service_cidr}, which is not as large as {vip_range}, where the hub sees it"
            )
            yield _fault(key, message)


def _fixed(path: KeyPath, subnet: Subnet) -> Iterator[Diagnostic]:
    for address in (*subnet.addresses, *subnet.addresses_v6):
        if not any(prefix.holds(address) for prefix in subnet.prefixes):
            prefixes = ", ".join(map(str, subnet.prefixes))
            yield _fault(path, f"{address} does not lie in {prefixes}")
    if subnet.addresses_v6 and len(subnet.addresses_v6) != len(subnet.addresses):
        yield _fault(path, "addresses and addresses_v6 are not of the same hosts")


def _segments(path: KeyPath, pool: NodePoolLock) -> Iterator[Diagnostic]:
    first = 0
    for number, segment in enumerate(pool.segments):
        here = (*path, "segments", number)
        if segment.first != first:
            message = f"is {segment.first}, but the nodes before it end at {first}"
            yield _fault((*here, "first"), message)
        # Without gaps: a node's number finds its segment by counting.
        first = segment.first + segment.nodes
        for held in segment.layouts:
            if not _has_room(held, segment.nodes):
                yield _too_many(here, segment, held)


def _has_room(held: Layout, nodes: int) -> bool:
    """Whether so many nodes lie within the subnets, wherever their addresses begin."""
    last_host = held.host_base.value + nodes - 1
    last_pod = held.pod_base.value + nodes * held.stride - 1
    hosts_fit = held.hosts.value <= held.host_base.value and last_host <= held.hosts.last
    pods_fit = held.pods.value <= held.pod_base.value and last_pod <= held.pods.last
    return hosts_fit and pods_fit
