"""From the plan and the previous lock to the next lock.

A pure function: the same two documents give the same lock, and a lock that is up to date with its
plan comes back unchanged. What the previous lock holds never moves, unless the plan contradicts it
and renumbering is asked for. The order of keys in the plan decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from netmgr.documents.diagnostics import Diagnostic, error
from netmgr.plan.allocate.allocator import Allocator, declares_growth
from netmgr.plan.check.conflicts import REMEDY, Scope, conflicts, pin_faults, renamed
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.document import Cluster, PlanDocument, with_pool
from netmgr.plan.lock import OLDER_VERSION, ClusterLock, LockDocument, PlanRefused


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
    if not renumber:
        _refuse_moves(kept, lock)
    return lock


def _allocated(
    plan: PlanDocument, held: LockDocument | None, limits: CloudLimits, moving: Collection[Scope]
) -> LockDocument:
    try:
        return Allocator(plan, held, limits, moving, reserving=True).run()
    except PlanRefused as refused:
        # New reserves for declared growth must not take what somebody needs today.
        if any(map(declares_growth, plan.clusters.values())):
            with suppress(PlanRefused):
                return Allocator(plan, held, limits, moving, reserving=False).run()
        # Only whoever would fit tells how much less is enough.
        fits = partial(_fits, held=held, limits=limits, moving=moving)
        part = _lacking(plan, held)
        raise PlanRefused(_with_nodes(part, fault, fits) for fault in refused.diagnostics) from None


def _lacking(plan: PlanDocument, held: LockDocument | None) -> PlanDocument:
    """The plan without the clusters whose places the lock has: these take nothing more."""
    clusters = {
        name: cluster
        for name, cluster in plan.clusters.items()
        if held is None or name not in held.clusters or _lacks(cluster, held.clusters[name])
    }
    return plan.model_copy(update={"clusters": clusters})


def _lacks(cluster: Cluster, held: ClusterLock) -> bool:
    return any(
        name not in held.node_pools or spec.capacity > held.node_pools[name].capacity
        for name, spec in cluster.node_pools.items()
    )


def _fits(
    plan: PlanDocument,
    held: LockDocument | None,
    limits: CloudLimits,
    moving: Collection[Scope],
) -> bool:
    with suppress(PlanRefused):
        Allocator(plan, held, limits, moving, reserving=False).run()
        return True
    return False


def _with_nodes(
    plan: PlanDocument, fault: Diagnostic, fits: Callable[[PlanDocument], bool]
) -> Diagnostic:
    """The refusal of a node pool, and how many nodes the plan has room for there."""
    match fault.at.key:
        case ("clusters", str(name), "node_pools", str(pool), "nodes"):
            few, many = 0, plan.clusters[name].node_pools[pool].declared
        case _:
            return fault
    while many - few > 1:
        nodes = (few + many) // 2
        few, many = (nodes, many) if fits(_with_only(plan, name, pool, nodes)) else (few, nodes)
    room = f"{few:,} nodes of {name}/{pool} would fit" if few else f"no node of {name}/{pool} fits"
    return replace(fault, message=f"{fault.message}; {room}")


def _with_only(plan: PlanDocument, name: str, pool: str, nodes: int) -> PlanDocument:
    # What it declares is needed from the first day, and would not fit either.
    spec = plan.clusters[name].node_pools[pool]
    return with_pool(plan, name, pool, spec.model_copy(update={"nodes": nodes, "grow_to": None}))


def _refuse_moves(before: LockDocument | None, after: LockDocument) -> None:
    """The last check that nothing moves, whatever the reason."""
    faults = []
    for change in diff(before, after):
        if change.kind is ChangeKind.RENUMBER:
            message = f"would move from {change.before} to {change.after}"
            faults.append(error(message, tuple(change.key.split(".")), remedy=REMEDY))
    if faults:
        raise PlanRefused(faults)


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
    # Nothing of the older form can stay. Only commands that may renumber read such a lock.
    if lock is None or lock.version == OLDER_VERSION:
        return None
    clusters = {}
    for name, held in lock.clusters.items():
        if (name,) not in scopes:
            pools = held.node_pools.items()
            rest = {pool: spec for pool, spec in pools if (name, "node_pools", pool) not in scopes}
            clusters[name] = held.model_copy(update={"node_pools": rest})
    return lock.model_copy(update={"clusters": clusters})
