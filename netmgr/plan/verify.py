"""Whether a lock agrees with itself; one that does not was edited by hand or merged badly, and is refused.

What one part of a lock says follows largely from the others: it is derived again here and compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from netmgr.plan.carve import taken_by
from netmgr.plan.demand import NAT_HOSTS, Blocks, holds, hosts_length, layout
from netmgr.plan.document import V6_SUBNET, ServiceMode
from netmgr.plan.findings import Finding, KeyPath, error
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import CURE, Allocation, Layout, LockDocument, NodePoolLock, Segment, ServiceRange, Subnet
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import HUB

Entry = tuple[Prefix, KeyPath]


def verify(lock: LockDocument) -> Iterator[Finding]:
    """Everything in the lock that contradicts something else in it. Paths are keys of the lock."""
    yield from _overlaps(_services(lock))
    yield from _overlaps(subnets_of(lock))
    yield from _inside(("hub",), lock.hub.prefixes, (subnet for _, subnet in _hub_subnets(lock)))
    yield from _fixed(("hub", "routers"), lock.hub.routers)
    for name, cluster in lock.clusters.items():
        path: KeyPath = ("clusters", name)
        yield from _inside(path, cluster.prefixes, taken_by(cluster))
        yield from _fixed((*path, "nat"), cluster.nat)
        yield from _pairs((*path, "services"), cluster.services)
        for pool, spec in cluster.node_pools.items():
            yield from _segments((*path, "node_pools", pool), spec)
    yield from _networks(lock)


def derive(lock: LockDocument, clouds: Collection[CloudLimits]) -> Iterator[Finding]:
    """What is not where a lock's own subnets put it. `clouds` are those that it may have been written for.

    Segments keep what they were made with when a plan changes its cloud.
    """
    for path, subnet in _fixed_subnets(lock):
        for family in Family:
            found, prefix = subnet.of_family(family), subnet.of(family)
            wanted = [_hosts(prefix, len(found), cloud) for cloud in clouds] if prefix else [()]
            if found not in wanted:
                key = "addresses" if family is Family.V4 else "addresses_v6"
                must = ", ".join(map(str, wanted[0])) or "empty"
                yield error((*path, key), f"must be {must}, as they follow from {prefix}", CURE)
        lengths = {hosts_length(NAT_HOSTS, Family.V4, cloud) for cloud in clouds}
        if path[:2] != (HUB, "researchers") and subnet.prefix.length not in lengths:
            message = f"is {subnet.prefix}, but a subnet for {NAT_HOSTS} hosts is a /{min(lengths)}"
            yield error((*path, "prefix"), message, CURE)
    for name, cluster in lock.clusters.items():
        for pool, spec in cluster.node_pools.items():
            for number, segment in enumerate(spec.segments):
                yield from _laid_out(("clusters", name, "node_pools", pool, "segments", number), segment, clouds)


def _hosts(prefix: Prefix, count: int, cloud: CloudLimits) -> tuple[Address, ...]:
    first = prefix.value + cloud.reserved_first
    return tuple(Address(prefix.family, first + number) for number in range(count))


def _laid_out(path: KeyPath, segment: Segment, clouds: Collection[CloudLimits]) -> Iterator[Finding]:
    for found in segment.layouts:
        cut = Blocks(found.pods.family, found.block_length, found.blocks)
        derived = [(layout(found.hosts, found.pods, cut, cloud), cloud) for cloud in clouds]
        fitting = [cloud for each, cloud in derived if each == found]
        here = (*path, f"v{found.pods.family}")
        if found.pods.family is Family.V6 and found.blocks != 1:
            yield error((*here, "blocks"), f"is {found.blocks}, but a node has one IPv6 block", CURE)
        if not fitting:
            must: Layout = derived[0][0]
            bases = f"host_base {must.host_base} and pod_base {must.pod_base}"
            yield error(here, f"must have {bases}, as they follow from {found.hosts} and {found.pods}", CURE)
        elif segment.nodes > max(holds(found, cloud) for cloud in fitting):
            yield error((*path, "nodes"), f"{segment.nodes} nodes do not fit into {found.hosts}, {found.pods}", CURE)


def subnets_of(lock: LockDocument) -> list[Entry]:
    """Every subnet, with the key of its owner."""
    entries = [(subnet, path) for path, subnet in _hub_subnets(lock)]
    for name, cluster in lock.clusters.items():
        entries += [(subnet, ("clusters", name)) for subnet in taken_by(cluster)]
    return entries


def _reserves(lock: LockDocument) -> list[Entry]:
    entries: list[Entry] = [(held.reserve, (HUB, "prefixes", i)) for i, held in enumerate(lock.hub.prefixes)]
    for name, cluster in lock.clusters.items():
        entries += [(held.reserve, ("clusters", name, "prefixes", i)) for i, held in enumerate(cluster.prefixes)]
    return entries


def _services(lock: LockDocument) -> list[Entry]:
    return _reserves(lock) + [
        (seen, ("clusters", name, "services", "hub_prefix" if seen.family is Family.V4 else "hub_prefix_v6"))
        for name, cluster in lock.clusters.items()
        for seen in cluster.services.seen
    ]


def _hub_subnets(lock: LockDocument) -> Iterator[tuple[KeyPath, Prefix]]:
    yield from (((HUB, "routers"), prefix) for prefix in lock.hub.routers.prefixes)
    for place, subnet in enumerate(lock.hub.researchers):
        yield from (((HUB, "researchers", place), prefix) for prefix in subnet.prefixes)


def _overlaps(entries: Iterable[Entry]) -> Iterator[Finding]:
    open_blocks: list[Entry] = []
    for prefix, path in sorted(entries, key=lambda entry: entry[0]):
        while open_blocks and not open_blocks[-1][0].overlaps(prefix):
            open_blocks.pop()
        if open_blocks:
            other, owner = open_blocks[-1]
            yield error(path, f"{prefix} overlaps {other} of {'.'.join(map(str, owner))}", CURE, beside=owner)
        open_blocks.append((prefix, path))


def _inside(path: KeyPath, allocations: Iterable[Allocation], subnets: Iterable[Prefix]) -> Iterator[Finding]:
    held = list(allocations)
    for place, allocation in enumerate(held):
        if not allocation.reserve.covers(allocation.prefix):
            message = f"{allocation.prefix} does not lie in its reserve {allocation.reserve}"
            yield error((*path, "prefixes", place), message, CURE)
    for subnet in subnets:
        if not any(allocation.prefix.covers(subnet) for allocation in held):
            yield error(path, f"subnet {subnet} lies in none of its prefixes", CURE)


def _fixed_subnets(lock: LockDocument) -> Iterator[tuple[KeyPath, Subnet]]:
    yield (HUB, "routers"), lock.hub.routers
    yield from (((HUB, "researchers", number), subnet) for number, subnet in enumerate(lock.hub.researchers))
    yield from ((("clusters", name, "nat"), cluster.nat) for name, cluster in lock.clusters.items())


def _networks(lock: LockDocument) -> Iterator[Finding]:
    """Subnets in a VNet of somebody else (a site's are called as it is, further ones with a number), or too small."""
    entries = [(path, str(path[1]) if path[0] != HUB else HUB, subnet.vnet) for path, subnet in _fixed_subnets(lock)]
    for name, cluster in lock.clusters.items():
        for pool, spec in cluster.node_pools.items():
            for number, segment in enumerate(spec.segments):
                entries.append((("clusters", name, "node_pools", pool, "segments", number), name, segment.vnet))
    for path, prefix in ((path, prefix) for prefix, path in subnets_of(lock) if prefix.family is Family.V6):
        if prefix.length > V6_SUBNET:
            yield error(path, f"has {prefix}, but no IPv6 subnet is smaller than a /{V6_SUBNET}", CURE)
    for path, site, vnet in entries:
        suffix = vnet.removeprefix(f"{site}_")
        is_further = suffix != vnet and suffix.isdigit() and path[2:3] == ("node_pools",)
        if vnet != site and not is_further:
            yield error((*path, "vnet"), f"{vnet} is no VNet of {site}", CURE)


def _pairs(path: KeyPath, services: ServiceRange) -> Iterator[Finding]:
    """Services that are seen at another place than their range allows."""
    for seen, real in services.pairs:
        key = "prefix" if real.family is Family.V4 else "prefix_v6"
        if services.mode is ServiceMode.UNIQUE and seen != real:
            yield error((*path, key), f"is {real}, but the hub sees these Services at {seen}", CURE)
        elif seen.length != real.length or seen.family is not real.family:
            yield error((*path, key), f"is {real}, which is not as large as {seen}, where the hub sees it", CURE)


def _fixed(path: KeyPath, subnet: Subnet) -> Iterator[Finding]:
    for address in (*subnet.addresses, *subnet.addresses_v6):
        if not any(prefix.holds(address) for prefix in subnet.prefixes):
            yield error(path, f"{address} does not lie in {', '.join(map(str, subnet.prefixes))}", CURE)
    if subnet.addresses_v6 and len(subnet.addresses_v6) != len(subnet.addresses):
        yield error(path, "addresses and addresses_v6 are not of the same hosts", CURE)


def _segments(path: KeyPath, pool: NodePoolLock) -> Iterator[Finding]:
    first = 0
    for place, segment in enumerate(pool.segments):
        here = (*path, "segments", place)
        if segment.first != first:
            yield error((*here, "first"), f"is {segment.first}, but the nodes before it end at {first}", CURE)
        first = segment.first + segment.nodes
        for held in segment.layouts:
            width = held.pods.family.width
            last = held.pod_base.value + segment.nodes * held.stride - 1 if held.block_length <= width else -1
            fits = held.pods.value <= held.pod_base.value and last <= held.pods.last
            own = held.host_base.value + segment.nodes - 1
            if not (last > 0 and fits and held.hosts.value <= held.host_base.value and own <= held.hosts.last):
                yield error((*here, "nodes"), f"{segment.nodes} nodes do not fit into {held.hosts}, {held.pods}", CURE)
