"""Where a plan contradicts itself or its lock: what only a correction or renumbering resolves.

Each conflict names the key of plan.yaml and the part of the lock that would have to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location, error, listed
from netmgr.documents.sites import HUB, KeyedPrefix
from netmgr.plan.allocate.demand import blocks
from netmgr.plan.allocate.subnetting import taken_by, taken_by_pools
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, NodePool, PlanDocument, ServiceMode, key_of
from netmgr.plan.lock import (
    LOCK_FILE,
    Allocation,
    ClusterLock,
    Layout,
    LockDocument,
    NodePoolLock,
    Segment,
    ServiceMapping,
)
from netmgr.prefixes import Prefix, overlaps

Scope = tuple[str, ...]
"""What would move: ("hub",), (cluster,), (cluster, "services") or (cluster, "node_pools", pool)."""

REMEDY = "undo the change, or renumber on purpose with --renumber"


@dataclass(frozen=True, slots=True)
class Conflict:
    """One part of the lock that this plan would move."""

    scope: Scope
    diagnostic: Diagnostic


def pin_faults(plan: PlanDocument) -> Iterator[Diagnostic]:
    """Pinned prefixes, subnets and Service ranges that overlap, or that no pool or owner has."""
    excluded, pinned = list(plan.exclusions()), list(plan.pins())
    subnets, ranges = list(plan.subnet_pins()), list(plan.service_pins())
    # Pools say what isolates clusters and what is internal, so whatever a site has is in one.
    own = [entry for entry in pinned if plan.is_site(entry.owner)]
    yield from _outside(own, "nodes", plan.pools.nodes)
    yield from _outside(ranges, "services", plan.pools.services)
    # Sorted, so that of two equal ones the later entry is the one that overlaps.
    for outer, inner in overlaps(sorted([*excluded, *pinned]), attrgetter("prefix")):
        if not _may_lie_in(plan, inner, outer):
            remedy = "an address has one owner: correct one of them"
            yield error(f"{inner.prefix} overlaps {outer.prefix}", inner.key, outer.key, remedy)
    yield from _unpinned(plan, subnets)
    # In three passes: a pinned subnet lies in a pinned prefix on purpose, so these two are never
    # compared.
    of_services = [*ranges, *plan.service_exclusions()]
    for entries in ([*subnets, *excluded], of_services, [*ranges, *pinned]):
        for outer, inner in overlaps(sorted(entries), attrgetter("prefix")):
            # Overlaps of others were reported above.
            if "clusters" in (inner.key[0], outer.key[0]):
                remedy = "a subnet has one owner: correct one"
                yield error(f"{inner.prefix} overlaps {outer.prefix}", inner.key, outer.key, remedy)


def _outside(
    entries: Iterable[KeyedPrefix], name: str, pools: Sequence[Prefix]
) -> Iterator[Diagnostic]:
    for prefix, key, _ in entries:
        if not _is_in(prefix, pools):
            yield error(f"{prefix} lies in no pool", key, remedy=f"add it to pools.{name}")


def _unpinned(plan: PlanDocument, subnets: Iterable[KeyedPrefix]) -> Iterator[Diagnostic]:
    for prefix, key, owner in subnets:
        if not _is_in(prefix, plan.pinned.get(owner, ())):
            message = f"{prefix} lies in no prefix that is pinned to {owner}"
            yield error(message, key, remedy=f"add that of its network to pinned.{owner}")


def _may_lie_in(plan: PlanDocument, inner: KeyedPrefix, outer: KeyedPrefix) -> bool:
    kinds = inner.key[0], outer.key[0]
    # What is excluded inside a site's own prefix is a live subnet that is not netmgr's.
    is_live = kinds == ("exclude", "pinned") and _is_own(plan, outer.owner, inner.prefix)
    return is_live or kinds == ("exclude", "exclude")


def _is_in(prefix: Prefix, holders: Iterable[Prefix]) -> bool:
    return any(holder.covers(prefix) for holder in holders)


def _is_own(plan: PlanDocument, site: str, prefix: Prefix) -> bool:
    """Whether a prefix is part of what is pinned to the hub or a cluster of the plan."""
    return plan.is_site(site) and _is_in(prefix, plan.pinned.get(site, ()))


def conflicts(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Conflict]:
    """Every conflict with the lock, none where the plan only adds."""
    yield from _misplaced(plan, HUB, lock.hub.prefixes)
    hub = (lock.hub.routers, *lock.hub.researchers)
    yield from _excluded(plan, HUB, [prefix for subnet in hub for prefix in subnet.prefixes])
    # Listed once: there may be as many as clusters.
    ranges = (pin._replace(key=pin.key[:-1]) for pin in plan.service_pins())
    taken = [*plan.service_exclusions(), *map(_pinned, plan.pins()), *map(_pinned, ranges)]
    for name, held in lock.clusters.items():
        yield from _misplaced(plan, name, held.prefixes)
        yield from _excluded(plan, name, taken_by(held))
        cluster = plan.clusters.get(name)
        if cluster is None:
            yield from _services_of_tombstone(plan, name, held, taken)
            continue
        yield from _services(plan, name, held, taken)
        for pool, spec in cluster.node_pools.items():
            if pool in held.node_pools:
                scope = (name, "node_pools", pool)
                yield from _node_pool(scope, spec, held.node_pools[pool], limits)
        yield from _pinned_twice(name, cluster, held)


def renamed(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Diagnostic]:
    """Clusters that look renamed: addresses are kept by name, so they would get other ones."""
    leaving = {
        name: held
        for name, held in lock.clusters.items()
        if not held.tombstone and name not in plan.clusters
    }
    for name, cluster in plan.clusters.items():
        # A guess, which is why it only refuses: renaming by mistake would give a running cluster
        # new addresses.
        alike = (former for former, held in leaving.items() if _is_like(cluster, held, limits))
        former = next(alike, None)
        if former and name not in lock.clusters:
            like = f"{former}, which left the plan, has the same node pools"
            message = f"is new, and {like}: addresses go by the name"
            keep = f"call it {former} to keep them"
            remedy = f"{keep}, or lock with --renumber if it is another cluster"
            at, beside = Location(("clusters", name)), Location(("clusters", former), LOCK_FILE)
            yield Diagnostic(message, at, beside, remedy)


def _is_like(cluster: Cluster, held: ClusterLock, limits: CloudLimits) -> bool:
    """Whether another cluster's entry has everything that a cluster asks for."""
    pools = {name: pool for name, pool in held.node_pools.items() if not pool.tombstone}
    if pools.keys() != cluster.node_pools.keys():
        return False
    for name, spec in cluster.node_pools.items():
        moved = any(_node_pool((), spec, pools[name], limits))
        if moved or spec.needed > pools[name].capacity:
            return False
    return True


def _misplaced(
    plan: PlanDocument, site: str, allocations: Iterable[Allocation]
) -> Iterator[Conflict]:
    """Prefixes that the plan has since given away, withdrawn, or never had."""
    elsewhere = list(_elsewhere(plan, site))
    for number, held in enumerate(allocations):
        where = (*site_key(site), "prefixes", number)
        for other in elsewhere:
            # The reserve, too: growth would take it without asking again.
            if other.prefix.overlaps(held.reserve):
                message = f"{other.prefix} is {other.owner}, but {site} holds {held.reserve}"
                yield _conflict((site,), other.key, message, where)
        if not _is_in(held.prefix, plan.pools.nodes):
            message = f"{site} holds {held.prefix}, which no pool has any more"
            yield _conflict((site,), ("pools", "nodes"), message, where)


def site_key(site: str) -> KeyPath:
    return (HUB,) if site == HUB else ("clusters", site)


def _excluded(plan: PlanDocument, site: str, subnets: Sequence[Prefix]) -> Iterator[Conflict]:
    """Subnets that overlap a live subnet, which is excluded inside the site's own pinned prefix."""
    for prefix, key, _ in plan.exclusions():
        hit = [subnet for subnet in subnets if subnet.overlaps(prefix)]
        for subnet in hit if _is_own(plan, site, prefix) else []:
            message = f"{prefix} is excluded, but {site} has its subnet {subnet} there"
            yield _conflict((site,), key, message, site_key(site))


def _pinned_twice(name: str, cluster: Cluster, held: ClusterLock) -> Iterator[Conflict]:
    """Subnets that overlap a pin of another node pool, or one that their own is yet to get."""
    owners: dict[str, Sequence[Prefix]] = {"": held.nat.prefixes}
    owners |= {pool: taken_by_pools({pool: spec}) for pool, spec in held.node_pools.items()}
    for pool, subnets in owners.items():
        # The NAT hosts' subnet moves with its cluster alone.
        scope: Scope = (name, "node_pools", pool) if pool else (name,)
        holder = f"{name}/{pool}" if pool else name
        for (key, pin), subnet in product(_pins_beside(name, cluster, held, pool), subnets):
            if pin.overlaps(subnet):
                message = f"{pin} is pinned, but {holder} has its subnet {subnet} there"
                yield _conflict(scope, key, message, ("clusters", *scope))


def _pins_beside(
    name: str, cluster: Cluster, held: ClusterLock, pool: str
) -> Iterator[tuple[KeyPath, Prefix]]:
    """Every pinned subnet but those of segments that `pool` has: `_node_pool` compares these."""
    for other, spec in cluster.node_pools.items():
        known = len(held.node_pools[pool].segments) if other == pool else 0
        for number, pins in enumerate(spec.subnets[known:], known):
            for pin in pins:
                yield ("clusters", name, "node_pools", other, "subnets", number), pin


def _elsewhere(plan: PlanDocument, site: str) -> Iterator[KeyedPrefix]:
    """What the plan gives to others than this site; `owner` says how it is given."""
    yield from (held for held in plan.exclusions() if not _is_own(plan, site, held.prefix))
    yield from (_pinned(pin) for pin in plan.pins() if pin.owner != site)


def _pinned(pin: KeyedPrefix) -> KeyedPrefix:
    return pin._replace(owner=f"pinned to {pin.owner}")


def _services(
    plan: PlanDocument, name: str, held: ClusterLock, taken: Sequence[KeyedPrefix]
) -> Iterator[Conflict]:
    wanted, current = plan.clusters[name].services, held.services
    scope: Scope = (name, "services")
    path: KeyPath = ("clusters", name, "services")
    if current.mode is not wanted.mode:
        message = f"is {current.mode} in the lock; a cluster's Services cannot move"
        yield _conflict(scope, (*path, "mode"), message, (*path, "mode"))
    for pair in current.pairs:
        vip_range, service_cidr = pair
        family = vip_range.family
        if vip_range.length != wanted.length_of(family):
            now = f"is {service_cidr.length} in the lock ({service_cidr})"
            message = f"{now}; Kubernetes cannot resize a Service range"
            yield _conflict(scope, (*path, key_of("length", family)), message, path)
        if (pin := wanted.pinned(family)) and pin != vip_range:
            message = f"is pinned to {pin}, but {name} has its Services at {vip_range}"
            yield _conflict(scope, (*path, key_of("prefix", family)), message, path)
        yield from _misplaced_services(plan, name, held, pair, taken)


def _services_of_tombstone(
    plan: PlanDocument, name: str, held: ClusterLock, taken: Sequence[KeyedPrefix]
) -> Iterator[Conflict]:
    # A tombstone keeps its Service range, too, until it is released: its machines may still run.
    remedy = f"undo the change, or once none of its machines runs: netmgr plan release {name}"
    for pair in held.services.pairs:
        for conflict in _misplaced_services(plan, name, held, pair, taken):
            yield Conflict((name,), replace(conflict.diagnostic, remedy=remedy))


def _misplaced_services(
    plan: PlanDocument,
    name: str,
    held: ClusterLock,
    pair: ServiceMapping,
    taken: Sequence[KeyedPrefix],
) -> Iterator[Conflict]:
    vip_range, service_cidr = pair
    scope: Scope = (name, "services")
    locked: KeyPath = ("clusters", *scope)
    if not _is_in(vip_range, plan.pools.services):
        message = f"{name} has its Services at {vip_range}, which no pool has any more"
        yield _conflict(scope, ("pools", "services"), message, locked)
    if held.services.mode is ServiceMode.SHARED:
        for shared in plan.shared_services:
            if shared.family is service_cidr.family and not shared.covers(service_cidr):
                message = f"{name} uses {service_cidr} inside, not {shared}"
                yield _conflict(scope, ("shared_services",), message, locked)
    for other in taken:
        # The cluster's own pin is held against its range by `_services`.
        if other.prefix.overlaps(vip_range) and other.key[:2] != ("clusters", name):
            message = f"{other.prefix} is {other.owner}, but {name} has its Services at {vip_range}"
            yield _conflict(scope, other.key, message, locked)


def _node_pool(
    scope: Scope, spec: NodePool, held: NodePoolLock, limits: CloudLimits
) -> Iterator[Conflict]:
    """The first conflict of a node pool, if any: it moves as a whole."""
    path: KeyPath = ("clusters", *scope)
    # Pinned subnets are a pool's first segments, in their order. Pins beyond those are to be added.
    for number, (pin, segment) in enumerate(zip(spec.subnets, held.segments, strict=False)):
        if not set(segment.prefixes).issuperset(pin):
            present = listed(sorted(segment.prefixes))
            message = f"is pinned, but nodes from {segment.first} on have {present}"
            yield _conflict(scope, (*path, "subnets", number), message, (*path, "segments", number))
            return
    for number, segment in enumerate(held.segments):
        for layout in segment.layouts:
            if fault := _unfit(path, spec, segment, layout, limits):
                locked = (*path, "segments", number, f"v{layout.family}")
                yield _conflict(scope, *fault, locked)
                return


def _unfit(
    path: KeyPath, spec: NodePool, segment: Segment, layout: Layout, limits: CloudLimits
) -> tuple[KeyPath, str] | None:
    """Key of the plan that this layout contradicts, and how; or None."""
    cut, subnet = blocks(spec, layout.family), layout.subnet
    first = layout.host_base.value - subnet.value
    last = layout.pod_base.value + segment.nodes * layout.stride - 1
    # The cloud may keep other addresses of this subnet than the one it was made for.
    if first < limits.reserved_first or last > subnet.last - limits.reserved_last:
        message = f"{limits.cloud} keeps addresses of {subnet} that nodes have in the lock"
        return ("cloud",), message
    if layout.block_length != cut.length:
        message = f"gives blocks of /{cut.length}, but nodes have /{layout.block_length}"
        return (*path, key_of("block_length", cut.family)), f"{message} in the lock"
    if layout.blocks < cut.count:
        message = f"needs {cut.count} blocks a node, but nodes have {layout.blocks} in the lock"
        return (*path, "pods_per_node"), message
    return None


def _conflict(scope: Scope, key: KeyPath, message: str, locked: KeyPath) -> Conflict:
    return Conflict(scope, Diagnostic(message, Location(key), Location(locked, LOCK_FILE), REMEDY))
