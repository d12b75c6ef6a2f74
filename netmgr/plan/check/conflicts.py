"""Where a plan and its lock cannot both be kept: changes that only renumbering can bring about.

Each conflict names the key of plan.yaml and the part of the lock that would have to move.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location
from netmgr.documents.sites import HUB
from netmgr.plan.allocate.demand import blocks, holds
from netmgr.plan.allocate.service_ranges import LENGTH_KEYS, length_of
from netmgr.plan.allocate.subnetting import taken_by
from netmgr.plan.check.overlaps import is_inside_pin, pinned_services
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, NodePool, PlanDocument, ServiceMode
from netmgr.plan.lock import (
    Allocation,
    ClusterLock,
    Layout,
    LockDocument,
    NodePoolLock,
    Segment,
    in_lock,
)
from netmgr.prefixes import Family, Prefix

Scope = tuple[str, ...]
"""What would move: ("hub",), (cluster,), (cluster, "services") or (cluster, "node_pools", pool)."""

REMEDY = "undo the change, or renumber on purpose with --renumber"


@dataclass(frozen=True, slots=True)
class Conflict:
    """One part of the lock that this plan would move."""

    scope: Scope
    diagnostic: Diagnostic


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A prefix that the plan gives to another owner: its key, and how it is given."""

    key: KeyPath
    prefix: Prefix
    given: str


def conflicts(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Conflict]:
    """Every conflict, none where the plan only adds."""
    yield from _misplaced(plan, HUB, lock.hub.prefixes)
    hub = (lock.hub.routers, *lock.hub.researchers)
    yield from _excluded(plan, HUB, [prefix for subnet in hub for prefix in subnet.prefixes])
    # Listed once: there may be as many as clusters.
    taken = [*_elsewhere(plan, ""), *_pinned_ranges(plan)]
    for name, held in lock.clusters.items():
        yield from _misplaced(plan, name, held.prefixes)
        yield from _excluded(plan, name, taken_by(held))
        cluster = plan.clusters.get(name)
        if cluster is None:
            yield from _services_of_tombstone(plan, name, held, taken)
            continue
        yield from _services(plan, name, held, taken)
        yield from _node_pools(name, cluster, held, limits)


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
        like = (former for former, held in leaving.items() if _is_like(cluster, held, limits))
        former = next(like, None)
        if former and name not in lock.clusters:
            message = (
                f"is new, and {former}, which left the plan, has the same node pools: "
                "addresses go by the name"
            )
            remedy = (
                f"call it {former} to keep them, or lock with --renumber if it is another cluster"
            )
            at, beside = Location(("clusters", name)), in_lock("clusters", former)
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
        where = (*_site_key(site), "prefixes", number)
        for other in elsewhere:
            # The reserve, too: growth would take it without asking again.
            if other.prefix.overlaps(held.reserve):
                message = f"{other.prefix} is {other.given}, but {site} holds {held.reserve}"
                yield _conflict((site,), other.key, message, where)
        if not any(pool.covers(held.prefix) for pool in plan.pools.nodes):
            message = f"{site} holds {held.prefix}, which no pool has any more"
            yield _conflict((site,), ("pools", "nodes"), message, where)


def _site_key(site: str) -> KeyPath:
    return (HUB,) if site == HUB else ("clusters", site)


def _excluded(plan: PlanDocument, site: str, subnets: Sequence[Prefix]) -> Iterator[Conflict]:
    """Subnets that overlap a live subnet, which is excluded inside the site's own pinned prefix."""
    for number, exclusion in enumerate(plan.exclude):
        prefix = exclusion.prefix
        hit = [subnet for subnet in subnets if subnet.overlaps(prefix)]
        for subnet in hit if is_inside_pin(plan, site, prefix) else []:
            message = f"{prefix} is excluded, but {site} has its subnet {subnet} there"
            yield _conflict((site,), ("exclude", number), message, _site_key(site))


def _elsewhere(plan: PlanDocument, site: str) -> Iterator[_Elsewhere]:
    """What the plan gives to others than this site."""
    for number, exclusion in enumerate(plan.exclude):
        if not is_inside_pin(plan, site, exclusion.prefix):
            yield _Elsewhere(("exclude", number), exclusion.prefix, "excluded")
    for owner, prefixes in plan.pinned.items():
        if owner != site:
            for number, pinned in enumerate(prefixes):
                yield _Elsewhere(("pinned", owner, number), pinned, f"pinned to {owner}")


def _services(
    plan: PlanDocument, name: str, held: ClusterLock, taken: Sequence[_Elsewhere]
) -> Iterator[Conflict]:
    wanted, current = plan.clusters[name].services, held.services
    scope: Scope = (name, "services")
    path: KeyPath = ("clusters", name, "services")
    if current.mode is not wanted.mode:
        message = f"is {current.mode} in the lock; a cluster's Services cannot move"
        yield _conflict(scope, (*path, "mode"), message, (*path, "mode"))
    for vip_range, service_cidr in current.pairs:
        if vip_range.length != length_of(wanted, vip_range.family):
            key = LENGTH_KEYS[vip_range.family]
            message = (
                f"is {service_cidr.length} in the lock ({service_cidr}); "
                "Kubernetes cannot resize a Service range"
            )
            yield _conflict(scope, (*path, key), message, path)
        if (pin := wanted.pinned(vip_range.family)) and pin != vip_range:
            key = "prefix" if vip_range.family is Family.V4 else "prefix_v6"
            message = f"is pinned to {pin}, but {name} has its Services at {vip_range}"
            yield _conflict(scope, (*path, key), message, path)
        yield from _misplaced_services(plan, name, held, (vip_range, service_cidr), taken)


def _services_of_tombstone(
    plan: PlanDocument, name: str, held: ClusterLock, taken: Sequence[_Elsewhere]
) -> Iterator[Conflict]:
    """A tombstone keeps its Service range, too, until it is released."""
    remedy = f"undo the change, or once none of its machines runs: netmgr plan release {name}"
    for vip_range, service_cidr in held.services.pairs:
        for conflict in _misplaced_services(plan, name, held, (vip_range, service_cidr), taken):
            yield Conflict((name,), replace(conflict.diagnostic, remedy=remedy))


def _misplaced_services(
    plan: PlanDocument,
    name: str,
    held: ClusterLock,
    pair: tuple[Prefix, Prefix],
    taken: Sequence[_Elsewhere],
) -> Iterator[Conflict]:
    vip_range, service_cidr = pair
    scope: Scope = (name, "services")
    locked: KeyPath = ("clusters", *scope)
    if not any(pool.covers(vip_range) for pool in plan.pools.services):
        message = f"{name} has its Services at {vip_range}, which no pool has any more"
        yield _conflict(scope, ("pools", "services"), message, locked)
    if held.services.mode is ServiceMode.SHARED:
        for shared in _other_ranges(plan, service_cidr):
            message = f"{name} uses {service_cidr} inside, not {shared}"
            yield _conflict(scope, ("shared_services",), message, locked)
    for other in taken:
        if other.prefix.overlaps(vip_range) and other.key[:2] != ("clusters", name):
            message = f"{other.prefix} is {other.given}, but {name} has its Services at {vip_range}"
            yield _conflict(scope, other.key, message, locked)


def _other_ranges(plan: PlanDocument, service_cidr: Prefix) -> list[Prefix]:
    """Ranges of the same family that shared clusters use, if `service_cidr` is not part of them."""
    same = [shared for shared in plan.shared_services if shared.family is service_cidr.family]
    return [shared for shared in same if not shared.covers(service_cidr)]


def _pinned_ranges(plan: PlanDocument) -> Iterator[_Elsewhere]:
    for prefix, path in pinned_services(plan):
        yield _Elsewhere(path[:-1], prefix, f"pinned to {path[1]}")


def _node_pools(
    name: str, cluster: Cluster, held: ClusterLock, limits: CloudLimits
) -> Iterator[Conflict]:
    for pool, spec in cluster.node_pools.items():
        if pool in held.node_pools:
            scope = (name, "node_pools", pool)
            yield from _node_pool(scope, spec, held.node_pools[pool], limits)


def _node_pool(
    scope: Scope, spec: NodePool, held: NodePoolLock, limits: CloudLimits
) -> Iterator[Conflict]:
    """The first conflict of a node pool, if any: it moves as a whole."""
    path: KeyPath = ("clusters", *scope)
    for number, (pin, segment) in enumerate(zip(spec.subnets, held.segments, strict=False)):
        if not set(segment.prefixes).issuperset(pin.prefixes):
            present = ", ".join(map(str, sorted(segment.prefixes)))
            message = f"is pinned, but nodes from {segment.first} on have {present}"
            yield _conflict(scope, (*path, "subnets", number), message, (*path, "segments", number))
            return
    for number, segment, layout in _layouts(held):
        if fault := _unfit(spec, segment, layout, limits):
            key, message = fault
            at = ("cloud",) if key == "cloud" else (*path, key)
            locked = (*path, "segments", number, f"v{layout.pods.family}")
            yield _conflict(scope, at, message, locked)
            return


def _layouts(held: NodePoolLock) -> Iterator[tuple[int, Segment, Layout]]:
    for number, segment in enumerate(held.segments):
        for layout in segment.layouts:
            yield number, segment, layout


def _unfit(
    spec: NodePool, segment: Segment, layout: Layout, limits: CloudLimits
) -> tuple[str, str] | None:
    """Key of the plan that this layout contradicts, and how; or None."""
    cut = blocks(spec, layout.pods.family)
    first = layout.host_base.value - layout.hosts.value
    # The cloud may keep other addresses of these subnets than the one they were made for.
    if first < limits.reserved_first or holds(layout, limits) < segment.nodes:
        return (
            "cloud",
            f"{limits.cloud} keeps addresses of {layout.hosts} that nodes have in the lock",
        )
    if layout.block_length != cut.length:
        key = "block_length" if cut.family is Family.V4 else "block_length_v6"
        return (
            key,
            f"gives blocks of /{cut.length}, but nodes have /{layout.block_length} in the lock",
        )
    if layout.blocks < cut.count:
        return (
            "pods_per_node",
            f"needs {cut.count} blocks a node, but nodes have {layout.blocks} in the lock",
        )
    return None


def _conflict(scope: Scope, key: KeyPath, message: str, locked: KeyPath) -> Conflict:
    return Conflict(scope, Diagnostic(message, Location(key), in_lock(*locked), REMEDY))
