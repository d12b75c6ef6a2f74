"""From the plan and the previous lock to the next lock.

A pure function: the same two documents give the same lock, and a lock that is up to date with its
plan comes back unchanged. What the previous lock holds never moves, unless the plan contradicts it
and renumbering is asked for. The order of keys in the plan decides nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from netmgr.documents.diagnostics import Diagnostic, error
from netmgr.plan.allocate.allocator import Allocator, declares_growth
from netmgr.plan.allocate.subnetting import missing_nodes
from netmgr.plan.check.conflicts import REMEDY, Scope, conflicts, pin_faults, renamed
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.document import Cluster, PlanDocument, named_alike, with_pool
from netmgr.plan.lock import ClusterLock, LockDocument, PlanRefused


def make_lock(
    plan: PlanDocument,
    previous: LockDocument | None,
    limits: CloudLimits,
    *,
    released: Collection[str] = (),
    renumber: bool = False,
) -> LockDocument:
    """The lock of a plan, with `limits` that have its quotas in place.

    `released` are names of tombstones (`cluster` or `cluster/pool`) to forget. What the plan
    contradicts in the previous lock is refused, or may move with `renumber`.

    Raises:
        PlanRefused: something does not fit, or would have to move.
    """
    # A copied plan with another's lock would take over addresses in use elsewhere.
    if previous and previous.plan != plan.name:
        message = f"is {plan.name!r}, but the lock belongs to the plan {previous.plan!r}"
        raise PlanRefused([error(message, ("name",))])
    # Released first, so that the same run may give the addresses to another cluster.
    kept = _without(previous, _tombstones(previous, released))
    if faults := list(pin_faults(plan)):
        raise PlanRefused(faults)
    if previous and not renumber and (names := list(renamed(plan, previous, limits))):
        raise PlanRefused(names)
    lock_conflicts = list(conflicts(plan, kept, limits)) if kept else []
    if lock_conflicts and not renumber:
        raise PlanRefused(conflict.diagnostic for conflict in lock_conflicts)
    moving = {conflict.scope for conflict in lock_conflicts}
    lock = _allocated(plan, _without(kept, moving), limits, moving)
    _refuse_equal_names(lock)
    if not renumber:
        _refuse_moves(kept, lock)
    return lock


def _allocated(
    plan: PlanDocument, held: LockDocument | None, limits: CloudLimits, moving: Collection[Scope]
) -> LockDocument:
    def run(asked: PlanDocument, *, reserving: bool = False) -> LockDocument:
        return Allocator(asked, held, limits, moving, reserving=reserving).run()

    try:
        return run(plan, reserving=True)
    except PlanRefused as refused:
        # New reserves for declared growth must not take what somebody needs today.
        if any(map(declares_growth, plan.clusters.values())):
            with suppress(PlanRefused):
                without = run(plan)
                # What is left after that is reserved now, as the next run would.
                return Allocator(plan, without, limits, (), reserving=True).run()
        # Clusters whose places the lock has take nothing more.
        known = held.clusters if held else {}
        clusters = {n: new for n, new in plan.clusters.items() if _lacks(new, known.get(n))}
        part = plan.model_copy(update={"clusters": clusters})
        raise PlanRefused(_with_nodes(part, fault, run) for fault in refused.diagnostics) from None


def _lacks(cluster: Cluster, held: ClusterLock | None) -> bool:
    pools = cluster.node_pools.items()
    return not held or any(missing_nodes(spec, held.node_pools.get(pool)) for pool, spec in pools)


def _with_nodes(
    plan: PlanDocument, fault: Diagnostic, run: Callable[[PlanDocument], object]
) -> Diagnostic:
    """The refusal of a node pool, and how many nodes the plan has room for there."""
    match fault.at.key:
        case ("clusters", str(name), "node_pools", str(pool), "nodes"):
            spec = plan.clusters[name].node_pools[pool]
        case _:
            return fault

    def is_refused(nodes: int) -> bool:
        # What it declares is needed from the first day, and would not fit either.
        fewer = spec.model_copy(update={"nodes": nodes, "grow_to": None})
        try:
            run(with_pool(plan, name, pool, fewer))
        except PlanRefused:
            return True
        return False

    few = bisect_right(range(1, spec.declared), False, key=is_refused)  # noqa: FBT003  what is sought
    room = f"{few:,} nodes of {name}/{pool} would fit" if few else f"no node of {name}/{pool} fits"
    return replace(fault, message=f"{fault.message}; {room}")


def _refuse_moves(before: LockDocument | None, after: LockDocument) -> None:
    """The last check that nothing moves, whatever the reason."""
    faults = []
    for change in diff(before, after):
        if change.kind is ChangeKind.RENUMBER:
            message = f"would move from {change.before} to {change.after}"
            faults.append(error(message, tuple(change.key.split(".")), remedy=REMEDY))
    if faults:
        raise PlanRefused(faults)


def _refuse_equal_names(lock: LockDocument) -> None:
    """Refuse node pools whose nodes a tombstone has names for; the plan's own were validated."""
    pools = [
        (held.tombstone or spec.tombstone, name, pool)
        for name, held in lock.clusters.items()
        for pool, spec in held.node_pools.items()
    ]
    # Tombstones last, so that each is held against the pool that the plan has.
    if alike := named_alike((name, pool) for _, name, pool in sorted(pools)):
        (cluster, own), other = alike
        message = f"nodes of {'/'.join(other)} and {cluster}/{own} would have the same names"
        remedy = "release the one that left the plan, or call this one otherwise"
        path = ("clusters", cluster, "node_pools", own)
        raise PlanRefused([error(message, path, remedy=remedy)])


def _tombstones(previous: LockDocument | None, released: Iterable[str]) -> set[Scope]:
    """The parts of the lock that names mean; PlanRefused if one is not a tombstone's."""
    clusters = previous.clusters if previous else {}
    scopes: set[Scope] = set()
    for name in released:
        cluster, _, pool = name.partition("/")
        held = clusters.get(cluster)
        entry = held.node_pools.get(pool) if held and pool else held
        if entry is None:
            raise PlanRefused([error(f"{name} is not in the lock; nothing to release")])
        if not entry.tombstone:
            path = ("clusters", *name.split("/"))
            raise PlanRefused([error("is in use", path, remedy="take it out of plan.yaml first")])
        scopes.add((cluster, "node_pools", pool) if pool else (cluster,))
    return scopes


def _without(lock: LockDocument | None, scopes: Collection[Scope]) -> LockDocument | None:
    """The lock without clusters and node pools. The allocator replaces the hub and Services."""
    if lock is None:
        return None
    clusters = {}
    for name, held in lock.clusters.items():
        if (name,) not in scopes:
            pools = held.node_pools.items()
            rest = {pool: spec for pool, spec in pools if (name, "node_pools", pool) not in scopes}
            clusters[name] = held.model_copy(update={"node_pools": rest})
    return lock.model_copy(update={"clusters": clusters})
