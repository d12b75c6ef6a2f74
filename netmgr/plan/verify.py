"""Whether a lock agrees with itself; one that does not was edited by hand or merged badly, and is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.plan.carve import taken_by
from netmgr.plan.findings import Finding, KeyPath, error
from netmgr.plan.lock import Allocation, LockDocument, NodePoolLock, Subnet
from netmgr.prefixes import Family, Prefix
from netmgr.sites import HUB

REMEDY = "restore the file from version control; only `netmgr plan lock` may write it"

Entry = tuple[Prefix, KeyPath]


def verify(lock: LockDocument) -> Iterator[Finding]:
    """Everything in the lock that contradicts something else in it. Paths are keys of the lock."""
    yield from _overlaps(_services(lock))
    yield from _overlaps(
        [(subnet, path) for path, subnet in _hub_subnets(lock)]
        + [(subnet, ("clusters", name)) for name, cluster in lock.clusters.items() for subnet in taken_by(cluster)]
    )
    yield from _inside(("hub",), lock.hub.prefixes, (subnet for _, subnet in _hub_subnets(lock)))
    yield from _fixed(("hub", "routers"), lock.hub.routers)
    for name, cluster in lock.clusters.items():
        path: KeyPath = ("clusters", name)
        yield from _inside(path, cluster.prefixes, taken_by(cluster))
        yield from _fixed((*path, "nat"), cluster.nat)
        for pool, spec in cluster.node_pools.items():
            yield from _segments((*path, "node_pools", pool), spec)


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
            yield error(path, f"{prefix} overlaps {other} of {'.'.join(map(str, owner))}", REMEDY, beside=owner)
        open_blocks.append((prefix, path))


def _inside(path: KeyPath, allocations: Iterable[Allocation], subnets: Iterable[Prefix]) -> Iterator[Finding]:
    held = list(allocations)
    for place, allocation in enumerate(held):
        if not allocation.reserve.covers(allocation.prefix):
            message = f"{allocation.prefix} does not lie in its reserve {allocation.reserve}"
            yield error((*path, "prefixes", place), message, REMEDY)
    for subnet in subnets:
        if not any(allocation.prefix.covers(subnet) for allocation in held):
            yield error(path, f"subnet {subnet} lies in none of its prefixes", REMEDY)


def _fixed(path: KeyPath, subnet: Subnet) -> Iterator[Finding]:
    for address in (*subnet.addresses, *subnet.addresses_v6):
        if not any(prefix.holds(address) for prefix in subnet.prefixes):
            yield error(path, f"{address} does not lie in {', '.join(map(str, subnet.prefixes))}", REMEDY)
    if subnet.addresses_v6 and len(subnet.addresses_v6) != len(subnet.addresses):
        yield error(path, "addresses and addresses_v6 are not of the same hosts", REMEDY)


def _segments(path: KeyPath, pool: NodePoolLock) -> Iterator[Finding]:
    first = 0
    for place, segment in enumerate(pool.segments):
        here = (*path, "segments", place)
        if segment.first != first:
            yield error((*here, "first"), f"is {segment.first}, but the nodes before it end at {first}", REMEDY)
        first = segment.first + segment.nodes
        for layout in segment.layouts:
            width = layout.pods.family.width
            last = layout.pod_base.value + segment.nodes * layout.stride - 1 if layout.block_length <= width else -1
            fits = layout.pods.value <= layout.pod_base.value and last <= layout.pods.last
            own = layout.host_base.value + segment.nodes - 1
            if not (last > 0 and fits and layout.hosts.value <= layout.host_base.value and own <= layout.hosts.last):
                yield error(
                    (*here, "nodes"), f"{segment.nodes} nodes do not fit into {layout.hosts}, {layout.pods}", REMEDY
                )
