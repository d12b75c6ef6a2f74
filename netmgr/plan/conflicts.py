"""Where a plan and its lock cannot both be kept: changes that only renumbering can bring about.

Each conflict names the key of plan.yaml and the part of the lock that would have to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from netmgr.plan import pins
from netmgr.plan.carve import taken_by
from netmgr.plan.demand import blocks, holds
from netmgr.plan.document import Cluster, NodePool, PlanDocument, ServiceMode, Services
from netmgr.plan.findings import Finding, KeyPath, error
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import Allocation, ClusterLock, Layout, LockDocument, NodePoolLock, Segment, ServiceRange
from netmgr.plan.service_ranges import LENGTH_KEYS, length_of
from netmgr.prefixes import Family, Prefix
from netmgr.sites import HUB

Scope = tuple[str, ...]
"""What would move: ("hub",), (cluster,), (cluster, "services") or (cluster, "node_pools", pool)."""

GivenAway = tuple[KeyPath, Prefix, str]
"""A key of the plan, the prefix it gives away, and how."""

REMEDY = "undo the change, or renumber on purpose with --renumber"


@dataclass(frozen=True, slots=True)
class Conflict:
    """One part of the lock that this plan would move."""

    scope: Scope
    finding: Finding


def conflicts(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Conflict]:
    """Every conflict, none where the plan only adds."""
    yield from _misplaced(plan, HUB, lock.hub.prefixes)
    hub = [prefix for subnet in (lock.hub.routers, *lock.hub.researchers) for prefix in subnet.prefixes]
    yield from _kept_out(plan, HUB, hub)
    pinned = [(path[:-1], prefix, f"pinned to {path[1]}") for prefix, path in pins.services(plan)]
    for name, held in lock.clusters.items():
        yield from _misplaced(plan, name, held.prefixes)
        yield from _kept_out(plan, name, taken_by(held))
        cluster = plan.clusters.get(name)
        if cluster is None:
            yield from _services_of_tombstone(plan, name, held.services, pinned)
        else:
            yield from _services(plan, name, held, cluster.services, pinned)
            for pool, spec in cluster.node_pools.items():
                if pool in held.node_pools:
                    yield from _pool((name, "node_pools", pool), spec, held.node_pools[pool], limits)


def renamed(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Finding]:
    """Clusters that look like another's new name: addresses are kept by name, so they would get other ones."""
    leaving = {name: held for name, held in lock.clusters.items() if not held.tombstone and name not in plan.clusters}
    for name, cluster in plan.clusters.items():
        former = next((each for each, held in leaving.items() if _is_like(cluster, held, limits)), None)
        if former and name not in lock.clusters:
            message = f"is new, and {former}, which left the plan, has the same node pools: addresses go by the name"
            remedy = f"call it {former} to keep them, or lock with --renumber if it is another cluster"
            yield error(("clusters", name), message, remedy, locked=("clusters", former))


def _is_like(cluster: Cluster, held: ClusterLock, limits: CloudLimits) -> bool:
    """Whether a cluster would have found everything it asks for in another's entry."""
    pools = {name: pool for name, pool in held.node_pools.items() if not pool.tombstone}
    return pools.keys() == cluster.node_pools.keys() and all(
        spec.needed <= pools[name].capacity and not list(_pool((), spec, pools[name], limits))
        for name, spec in cluster.node_pools.items()
    )


def without(lock: LockDocument, scopes: Iterable[Scope]) -> LockDocument:
    """The lock without the parts that are to move. The hub and services are replaced, not removed: see `moved`."""
    clusters = dict(lock.clusters)
    for scope in sorted(set(scopes)):
        if len(scope) == 1:
            clusters.pop(scope[0], None)
        elif scope[0] in clusters and scope[1] == "node_pools":
            held = clusters[scope[0]]
            rest = {name: spec for name, spec in held.node_pools.items() if name != scope[2]}
            clusters[scope[0]] = held.model_copy(update={"node_pools": rest})
    return lock.model_copy(update={"clusters": clusters})


def _misplaced(plan: PlanDocument, site: str, allocations: Iterable[Allocation]) -> Iterator[Conflict]:
    """Prefixes that the plan has since given away, withdrawn, or never had."""
    above = (HUB,) if site == HUB else ("clusters", site)
    for place, held in enumerate(allocations):
        where = (*above, "prefixes", place)
        for path, prefix, what in _claims(plan, site):
            if prefix.overlaps(held.reserve):
                yield _conflict((site,), path, f"{prefix} is {what}, but {site} holds {held.reserve}", where)
        if not any(pool.covers(held.prefix) for pool in plan.pools.nodes):
            message = f"{site} holds {held.prefix}, which no pool has any more"
            yield _conflict((site,), ("pools", "nodes"), message, where)


def _kept_out(plan: PlanDocument, site: str, subnets: Iterable[Prefix]) -> Iterator[Conflict]:
    """Subnets on what is excluded inside a site's own pinned prefix: a live subnet that is not netmgr's."""
    found = list(subnets)
    for place, exclusion in enumerate(plan.exclude):
        for subnet in found if is_inside_pin(plan, site, exclusion.prefix) else ():
            if subnet.overlaps(exclusion.prefix):
                message = f"{exclusion.prefix} is excluded, but {site} has its subnet {subnet} there"
                yield _conflict((site,), ("exclude", place), message, (HUB,) if site == HUB else ("clusters", site))


def is_inside_pin(plan: PlanDocument, site: str, prefix: Prefix) -> bool:
    """Whether a prefix is part of what is pinned to the hub or a cluster of the plan."""
    is_site = site == HUB or site in plan.clusters
    return is_site and any(pinned.covers(prefix) for pinned in plan.pinned.get(site, ()))


def _claims(plan: PlanDocument, site: str) -> Iterator[GivenAway]:
    """What the plan gives to others than this site."""
    for place, exclusion in enumerate(plan.exclude):
        if not is_inside_pin(plan, site, exclusion.prefix):
            yield ("exclude", place), exclusion.prefix, "excluded"
    for owner, prefixes in plan.pinned.items():
        for place, pinned in enumerate(prefixes):
            if owner != site:
                yield ("pinned", owner, place), pinned, f"pinned to {owner}"


def _services(
    plan: PlanDocument, name: str, held: ClusterLock, wanted: Services, pinned: Sequence[GivenAway]
) -> Iterator[Conflict]:
    scope: Scope = (name, "services")
    path: KeyPath = ("clusters", name, "services")
    found = held.services
    if found.mode is not wanted.mode:
        message = f"is {found.mode} in the lock; a cluster's Services cannot move"
        yield _conflict(scope, (*path, "mode"), message, (*path, "mode"))
    for seen, real in found.pairs:
        key = LENGTH_KEYS[seen.family]
        if seen.length != length_of(wanted, seen.family):
            message = f"is {real.length} in the lock ({real}); Kubernetes cannot resize a Service range"
            yield _conflict(scope, (*path, key), message, path)
        if (pin := wanted.pinned(seen.family)) and pin != seen:
            message = f"is pinned to {pin}, but {name} has its Services at {seen}"
            yield _conflict(scope, (*path, "prefix" if seen.family is Family.V4 else "prefix_v6"), message, path)
        yield from _misplaced_services(plan, scope, found, (seen, real), pinned)


def _services_of_tombstone(
    plan: PlanDocument, name: str, found: ServiceRange, pinned: Sequence[GivenAway]
) -> Iterator[Conflict]:
    """Its range stays its own, too, until it is released."""
    for pair in found.pairs:
        for conflict in _misplaced_services(plan, (name, "services"), found, pair, pinned):
            remedy = f"undo the change, or give its addresses up: netmgr plan release {name}"
            yield Conflict((name,), replace(conflict.finding, remedy=remedy))


def _misplaced_services(
    plan: PlanDocument, scope: Scope, found: ServiceRange, pair: tuple[Prefix, Prefix], pinned: Sequence[GivenAway]
) -> Iterator[Conflict]:
    (seen, real), locked = pair, ("clusters", *scope)
    if not any(pool.covers(seen) for pool in plan.pools.services):
        message = f"{scope[0]} has its Services at {seen}, which no pool has any more"
        yield _conflict(scope, ("pools", "services"), message, locked)
    for shared in plan.shared_services if found.mode is ServiceMode.SHARED else ():
        if shared.family is real.family and not shared.covers(real):
            yield _conflict(scope, ("shared_services",), f"{scope[0]} uses {real} inside, not {shared}", locked)
    for path, prefix, what in (*_claims(plan, ""), *pinned):
        if prefix.overlaps(seen) and path[:2] != ("clusters", scope[0]):
            yield _conflict(scope, path, f"{prefix} is {what}, but {scope[0]} has its Services at {seen}", locked)


def _pool(scope: Scope, spec: NodePool, held: NodePoolLock, limits: CloudLimits) -> Iterator[Conflict]:
    path: KeyPath = ("clusters", *scope)
    for number, (pin, segment) in enumerate(zip(spec.subnets, held.segments, strict=False)):
        present = {prefix for layout in segment.layouts for prefix in (layout.hosts, layout.pods)}
        if not present.issuperset((*pin.hosts, *pin.pods)):
            message = f"is pinned, but nodes from {segment.first} on have {', '.join(map(str, sorted(present)))}"
            yield _conflict(scope, (*path, "subnets", number), message, (*path, "segments", number))
            return
    for number, segment in enumerate(held.segments):
        for layout in segment.layouts:
            if fault := _unfit(spec, segment, layout, limits):
                key, message = fault
                at = ("cloud",) if key == "cloud" else (*path, key)
                yield _conflict(scope, at, message, (*path, "segments", number, f"v{layout.pods.family}"))
                return


def _unfit(spec: NodePool, segment: Segment, layout: Layout, limits: CloudLimits) -> tuple[str, str] | None:
    """Key of the plan that this layout contradicts, and how; or None."""
    cut = blocks(spec, layout.pods.family)
    if _is_kept_back(layout, segment, limits):
        return "cloud", f"{limits.cloud} keeps addresses of {layout.hosts} that nodes have in the lock"
    if layout.block_length != cut.length:
        key = "block_length" if cut.family is Family.V4 else "block_length_v6"
        return key, f"gives blocks of /{cut.length}, but nodes have /{layout.block_length} in the lock"
    if layout.blocks < cut.count:
        return "pods_per_node", f"needs {cut.count} blocks a node, but nodes have {layout.blocks} in the lock"
    return None


def _is_kept_back(layout: Layout, segment: Segment, limits: CloudLimits) -> bool:
    """Whether the cloud has other addresses of these subnets for itself than when they were carved."""
    first = layout.host_base.value - layout.hosts.value
    return first < limits.reserved_first or holds(layout, limits) < segment.nodes


def _conflict(scope: Scope, path: KeyPath, message: str, locked: KeyPath) -> Conflict:
    return Conflict(scope, error(path, message, REMEDY, locked=locked))


def moved(scopes: Iterable[Scope]) -> tuple[bool, frozenset[str]]:
    """Whether the hub moves, and the clusters whose Services do."""
    found = set(scopes)
    return (HUB,) in found, frozenset(scope[0] for scope in found if scope[1:] == ("services",))


def pinned_faults(plan: PlanDocument) -> Iterator[Finding]:
    """Pinned prefixes that overlap one another or an exclusion, or that belong to a site and to no pool.

    What isolates clusters and what counts as internal is told by the pools.
    """
    for owner, prefixes in plan.pinned.items():
        for place, prefix in enumerate(prefixes):
            if (owner == HUB or owner in plan.clusters) and not any(pool.covers(prefix) for pool in plan.pools.nodes):
                yield error(("pinned", owner, place), f"{prefix} lies in no pool", "add it to pools.nodes")
    yield from _pinned_overlaps(plan)
    yield from pins.faults(plan)


def _pinned_overlaps(plan: PlanDocument) -> Iterator[Finding]:
    entries: list[tuple[Prefix, KeyPath]] = [(e.prefix, ("exclude", i)) for i, e in enumerate(plan.exclude)]
    entries += [(p, ("pinned", owner, i)) for owner, prefixes in plan.pinned.items() for i, p in enumerate(prefixes)]
    open_blocks: list[tuple[Prefix, KeyPath]] = []
    for prefix, path in sorted(entries):
        while open_blocks and not open_blocks[-1][0].overlaps(prefix):
            open_blocks.pop()
        other, beside = open_blocks[-1] if open_blocks else (prefix, path)
        # What is excluded inside a site's own prefix is a subnet of it that is not netmgr's.
        is_live = path[0] == "exclude" and beside[0] == "pinned" and is_inside_pin(plan, str(beside[1]), prefix)
        if open_blocks and not is_live and {path[0], beside[0]} != {"exclude"}:
            yield error(
                path, f"{prefix} overlaps {other}", "an address has one owner: correct one of them", beside=beside
            )
        open_blocks.append((prefix, path))
