"""Everything that can be wrong with a plan and its lock, found before anything is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from netmgr.plan import nodes
from netmgr.plan.bill import Line, bill
from netmgr.plan.conflicts import conflicts, pinned_faults
from netmgr.plan.demand import mappings_of
from netmgr.plan.document import Cloud, PlanDocument
from netmgr.plan.findings import Finding, KeyPath, PlanRefused, Severity, error
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Family, Prefix

FEW_LEFT = 0.02
"""Below this share of free node places, a cluster is worth a warning."""


def check_plan(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[Finding, ...]:
    """Faults of the plan and of what was locked for it, errors first. The lock must agree with itself."""
    found = [*pinned_faults(plan), *(conflict.finding for conflict in conflicts(plan, lock, limits))]
    found += _forbidden(plan, lock, limits)
    found += _pinned_sizes(plan, limits)
    found += _headroom(plan, lock)
    found += _places_beyond(lock, limits)
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def check_limits(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> tuple[tuple[Line, ...], list[Finding]]:
    """The bill, and its lines that are over or near. The lock must answer the plan."""
    lines = bill(plan, lock, limits)
    findings = [finding for line in lines if (finding := _judged(line, limits))]
    return lines, [*findings, *_untested(lines)]


def refuse_errors(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> None:
    """Stop a lock that its own check would not accept.

    Raises:
        PlanRefused: the errors that `check` would show.
    """
    found = [*check_plan(plan, lock, limits), *check_limits(plan, lock, limits)[1]]
    if errors := [finding for finding in found if finding.severity is Severity.ERROR]:
        raise PlanRefused(errors)


def _untested(lines: tuple[Line, ...]) -> Iterator[Finding]:
    """What no quota forbids and nobody has tried: one note for all clusters together."""
    over = [line for line in lines if line.is_advice and line.status == "over"]
    for what in dict.fromkeys(line.what for line in over):
        those = [line for line in over if line.what == what]
        more = f", and {len(those) - 1} more" if len(those) > 1 else ""
        message = f"{what}: {those[0].used:,} of {those[0].limit:,} ({those[0].subject}{more})"
        yield Finding(Severity.NOTE, those[0].path, message)


def _judged(line: Line, limits: CloudLimits) -> Finding | None:
    if line.is_advice or line.status not in {"over", "near"}:
        return None
    message = f"{line.what}, {line.subject}: {line.used:,} of {line.limit:,} ({limits.cloud}, {limits.as_of})"
    if line.status == "over":
        return error(line.path, message, "use larger blocks, fewer nodes, or raise the quota and say so under limits")
    return Finding(Severity.WARNING, line.path, message, "plan the next step before it is needed")


def _forbidden(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Finding]:
    for path, prefix in _planned(plan, lock):
        for forbidden in limits.forbidden:
            if prefix.overlaps(forbidden):
                yield error(path, f"{prefix} overlaps {forbidden}, which {_whose(plan)} forbids", "take another prefix")


def _whose(plan: PlanDocument) -> str:
    return "Azure" if plan.cloud is Cloud.AZURE else "IP"


def _planned(plan: PlanDocument, lock: LockDocument) -> Iterator[tuple[KeyPath, Prefix]]:
    """Prefixes that are, or will be, somebody's address space."""
    for owner, prefixes in plan.pinned.items():
        if owner in plan.clusters:
            yield from ((("pinned", owner, place), prefix) for place, prefix in enumerate(prefixes))
    yield from ((("shared_services",), prefix) for prefix in plan.shared_services)
    for name, held in lock.clusters.items():
        yield from ((("clusters", name, "services"), prefix) for prefix in held.services.seen)
        yield from ((("clusters", name), allocation.prefix) for allocation in held.prefixes)


def _pinned_sizes(plan: PlanDocument, limits: CloudLimits) -> Iterator[Finding]:
    for owner, prefixes in plan.pinned.items():
        for place, prefix in enumerate(prefixes):
            small = prefix.family is Family.V4 and prefix.length > limits.smallest_subnet
            if small and (owner in plan.clusters or owner == "hub"):
                message = f"{prefix} is smaller than the smallest subnet, a /{limits.smallest_subnet}"
                yield Finding(Severity.WARNING, ("pinned", owner, place), message, "nothing can be carved from it")


def _headroom(plan: PlanDocument, lock: LockDocument) -> Iterator[Finding]:
    for name, cluster in plan.clusters.items():
        held = lock.clusters.get(name)
        for pool, spec in cluster.node_pools.items() if held else ():
            capacity = held.node_pools[pool].capacity if held and pool in held.node_pools else 0
            path: KeyPath = ("clusters", name, "node_pools", pool, "nodes")
            if spec.needed > capacity:
                message = f"{spec.needed:,} nodes with surge, but places for {capacity:,} in the lock"
                yield Finding(Severity.WARNING, path, message, "run: netmgr plan lock")
            elif capacity - spec.needed < FEW_LEFT * capacity and not (spec.grow_to or cluster.grow_to):
                message = f"{spec.needed:,} nodes with surge, of {capacity:,} that fit"
                yield Finding(Severity.WARNING, path, message, "declare grow_to, or see: netmgr plan grow")
        if held and cluster.grow_to:
            yield from _declared(name, cluster.grow_to, cluster.nodes, lock)


def _places_beyond(lock: LockDocument, limits: CloudLimits) -> Iterator[Finding]:
    """VNets with more places than mappings: growth into them would be refused by the cloud."""
    limit = limits.limits.mappings_per_vnet
    owners: dict[str, str] = {}
    used: Counter[str] = Counter()
    for name, _, segment in nodes.segments(lock):
        owners[segment.vnet] = name
        used[segment.vnet] += segment.nodes * mappings_of(segment)
    for vnet, mappings in used.items():
        if limit is not None and mappings > limit:
            message = f"the places that the lock has in VNet {vnet} take {mappings:,} mappings, it has {limit:,}"
            yield Finding(Severity.WARNING, ("clusters", owners[vnet]), message, "let growth go to another node pool")


def _declared(name: str, grow_to: int, now: int, lock: LockDocument) -> Iterator[Finding]:
    own = [held for held in lock.clusters[name].prefixes if held.prefix.family is Family.V4]
    reserved = sum(held.reserve.size for held in own)
    used = sum(held.prefix.size for held in own)
    if now and reserved == used and grow_to >= 2 * now and len(own) == 1:
        message = f"{grow_to:,} nodes are declared, but nothing beside {own[0].prefix} could be reserved"
        yield Finding(Severity.WARNING, ("clusters", name, "grow_to"), message, "it will grow by another prefix")
