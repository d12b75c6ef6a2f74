"""Everything that can be wrong with a plan and its lock, found before anything is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from operator import itemgetter

from netmgr.documents.diagnostics import Diagnostic, KeyPath, Location, Severity, error
from netmgr.plan import machines
from netmgr.plan.allocate.demand import mappings_of
from netmgr.plan.check.conflicts import conflicts, pin_faults, site_key
from netmgr.plan.check.usage import Usage, limit_usage
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.derive import locked_subnets
from netmgr.plan.document import Addressing, NodePool, PlanDocument, key_of
from netmgr.plan.lock import ClusterLock, LockDocument, PlanRefused
from netmgr.prefixes import Family, overlaps

FEW_LEFT = 0.02
"""Below this share of free node places, a cluster is worth a warning."""


def check_plan(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits
) -> tuple[Diagnostic, ...]:
    """Faults of the plan and its lock, errors first. The lock must agree with itself."""
    diagnostics = list(pin_faults(plan))
    diagnostics += [conflict.diagnostic for conflict in conflicts(plan, lock, limits)]
    diagnostics += _given_twice(lock)
    diagnostics += _forbidden(plan, lock, limits)
    diagnostics += _pinned_sizes(plan, limits)
    diagnostics += _block_lengths(plan, limits)
    diagnostics += _headroom(plan, lock)
    diagnostics += _unusable_room(lock, limits)
    order = list(Severity)
    return tuple(sorted(diagnostics, key=lambda diagnostic: order.index(diagnostic.severity)))


def check_limits(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits
) -> tuple[tuple[Usage, ...], list[Diagnostic]]:
    """The usage of every limit, and what is over or near one. The lock must be up to date."""
    lines = limit_usage(plan, lock, limits)
    # Advice is given below, once for all clusters together.
    diagnostics = [
        _exceeded(line, limits)
        for line in lines
        if not line.is_advice and line.status in {"over", "near"}
    ]
    return lines, [*diagnostics, *_untested(lines)]


def refuse_errors(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> None:
    """PlanRefused with the errors that `check` would show, before such a lock is written."""
    diagnostics = [*check_plan(plan, lock, limits), *check_limits(plan, lock, limits)[1]]
    if errors := [fault for fault in diagnostics if fault.severity is Severity.ERROR]:
        raise PlanRefused(errors)


def _warning(key: KeyPath, message: str, remedy: str) -> Diagnostic:
    return Diagnostic(message, Location(key), remedy=remedy, severity=Severity.WARNING)


def _untested(lines: tuple[Usage, ...]) -> Iterator[Diagnostic]:
    """Sizes beyond what Kubernetes is tested with: one note for all clusters together."""
    over: dict[str, list[Usage]] = {}
    for line in lines:
        if line.is_advice and line.status == "over":
            over.setdefault(line.what, []).append(line)
    for quantity, (first, *others) in over.items():
        more = f", and {len(others)} more" if others else ""
        message = f"{quantity}: {first.used:,} of {first.limit:,} ({first.subject}{more})"
        yield Diagnostic(message, Location(first.path), severity=Severity.NOTE)


def _exceeded(line: Usage, limits: CloudLimits) -> Diagnostic:
    message = (
        f"{line.what}, {line.subject}: {line.used:,} of {line.limit:,} "
        f"({limits.cloud}, {limits.as_of})"
    )
    if line.status == "over":
        remedy = "use larger blocks, fewer nodes or another region, or raise the quota under limits"
        return error(message, line.path, remedy=remedy)
    return _warning(line.path, message, "plan the next step before it is needed")


def _given_twice(lock: LockDocument) -> Iterator[Diagnostic]:
    subnets = [(prefix, held) for held in locked_subnets(lock) for prefix in held.prefixes]
    for (outer, other), (inner, held) in overlaps(subnets, itemgetter(0)):
        message = f"{inner} of {held.name} overlaps {outer} of {other.name}"
        remedy = "take one of the two out of the plan; once none of its machines runs, release it"
        yield error(message, site_key(held.owner), remedy=remedy)


def _forbidden(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Diagnostic]:
    # Prefixes that are, or will be, somebody's address space.
    spaces = [(prefix, key) for prefix, key, owner in plan.pins() if owner in plan.clusters]
    spaces += [(prefix, ("shared_services",)) for prefix in plan.shared_services]
    for name, held in lock.clusters.items():
        key: KeyPath = ("clusters", name)
        spaces += [(prefix, (*key, "services")) for prefix in held.services.vip_ranges]
        spaces += [(allocation.prefix, key) for allocation in held.prefixes]
    for (prefix, key), forbidden in product(spaces, limits.forbidden):
        if prefix.overlaps(forbidden):
            message = f"{prefix} overlaps {forbidden}, which {limits.words.cloud} forbids"
            yield error(message, key, remedy="take another prefix")


def _pinned_sizes(plan: PlanDocument, limits: CloudLimits) -> Iterator[Diagnostic]:
    smallest = limits.smallest_subnet
    for prefix, key, owner in plan.pins():
        if plan.is_site(owner) and prefix.family is Family.V4 and prefix.length > smallest:
            message = f"{prefix} is smaller than the smallest subnet, a /{smallest}"
            yield _warning(key, message, "no subnet fits into it")


def _block_lengths(plan: PlanDocument, limits: CloudLimits) -> Iterator[Diagnostic]:
    for (path, spec), family in product(plan.node_pools(), plan.pools.families):
        key = key_of("block_length", family)
        only, asked = getattr(limits, key), getattr(spec, key)
        if spec.addressing is Addressing.BLOCKS and only not in {None, asked}:
            message = f"is {asked}, and a {limits.words.interface} takes blocks of /{only} alone"
            yield error(message, (*path, key), remedy=f"write {only}, or addressing: single")


def _headroom(plan: PlanDocument, lock: LockDocument) -> Iterator[Diagnostic]:
    for name, cluster in plan.clusters.items():
        held = lock.clusters.get(name)
        if held is None:
            continue
        for pool, spec in cluster.node_pools.items():
            path: KeyPath = ("clusters", name, "node_pools", pool, "nodes")
            capacity = held.node_pools[pool].capacity if pool in held.node_pools else 0
            yield from _room_left(path, spec, capacity, declares=bool(cluster.grow_to))
        if cluster.grow_to:
            yield from _unreserved(name, cluster.grow_to, cluster.nodes, held)


def _room_left(
    path: KeyPath, spec: NodePool, capacity: int, *, declares: bool
) -> Iterator[Diagnostic]:
    needed, left = spec.needed, capacity - spec.needed
    if left < 0:
        message = f"{needed:,} nodes with surge, but places for {capacity:,} in the lock"
        yield _warning(path, message, "run: netmgr plan lock")
    # Declared growth has its addresses kept already.
    elif left < FEW_LEFT * capacity and not (spec.grow_to or declares):
        message = f"{needed:,} nodes with surge, of {capacity:,} that fit"
        yield _warning(path, message, "declare grow_to, or see: netmgr plan grow")


def _unusable_room(lock: LockDocument, limits: CloudLimits) -> Iterator[Diagnostic]:
    """Networks with room for more nodes than mappings: the cloud would refuse to fill them."""
    limit = limits.limits.mappings_per_network
    used: Counter[tuple[str, str]] = Counter()
    for owner, _, segment in machines.segments(lock):
        used[owner, segment.network] += segment.nodes * mappings_of(segment)
    for (owner, name), mappings in used.items():
        if limit is not None and mappings > limit:
            places = f"the places that the lock has in {limits.words.network} {name}"
            message = f"{places} take {mappings:,} mappings, it has {limit:,}"
            remedy = "let growth go to another node pool"
            yield _warning(("clusters", owner), message, remedy)


def _unreserved(name: str, grow_to: int, now: int, held: ClusterLock) -> Iterator[Diagnostic]:
    own = [allocation for allocation in held.prefixes if allocation.prefix.family is Family.V4]
    is_reserved = any(allocation.reserve != allocation.prefix for allocation in own)
    if now and not is_reserved and grow_to >= 2 * now:
        largest = min((allocation.prefix for allocation in own), key=lambda prefix: prefix.length)
        reserved = f"nothing beside {largest} could be reserved"
        message = f"{grow_to:,} nodes are declared, but {reserved}"
        yield _warning(("clusters", name, "grow_to"), message, "it will grow by another prefix")
