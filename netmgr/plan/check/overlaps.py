"""Prefixes that a plan gives away twice, and pins that lie where their owner has nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error
from netmgr.documents.sites import HUB
from netmgr.plan.document import PlanDocument
from netmgr.prefixes import Prefix

Entry = tuple[Prefix, KeyPath]
"""A prefix and the key that holds it."""


def overlaps(entries: Iterable[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Every prefix that lies in another one, with the smallest that holds it; by sort and sweep.

    Of two equal ones the later entry is the one that overlaps.
    """
    # Sorted, a prefix comes right before those it holds, so a stack of open prefixes is enough.
    holders: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: entry[0]):
        while holders and not holders[-1][0].overlaps(entry[0]):
            holders.pop()
        if holders:
            yield entry, holders[-1]
        holders.append(entry)


def pin_faults(plan: PlanDocument) -> Iterator[Diagnostic]:
    """Pinned prefixes, subnets and Service ranges that overlap, or that no pool or owner has."""
    yield from _outside_pools(plan)
    pinned = list(_pinned(plan))
    excluded: list[Entry] = [
        (exclusion.prefix, ("exclude", number)) for number, exclusion in enumerate(plan.exclude)
    ]
    for (prefix, path), (other, beside) in overlaps(sorted([*excluded, *pinned])):
        kinds = path[0], beside[0]
        # What is excluded inside a site's own prefix is a live subnet that is not netmgr's.
        is_live = kinds == ("exclude", "pinned") and is_inside_pin(plan, str(beside[1]), prefix)
        if not is_live and kinds != ("exclude", "exclude"):
            remedy = "an address has one owner: correct one of them"
            yield error(f"{prefix} overlaps {other}", path, beside, remedy)
    subnets = list(_pinned_subnets(plan))
    for prefix, path in subnets:
        owner = str(path[1])
        if not _is_in(prefix, plan.pinned.get(owner, ())):
            message = f"{prefix} lies in no prefix that is pinned to {owner}"
            yield error(message, path, remedy=f"add that of its network to pinned.{owner}")
    ranges = list(pinned_services(plan))
    # In three passes: a pinned subnet lies in a pinned prefix on purpose, so these two are never
    # compared.
    yield from _of_one_owner([*subnets, *excluded])
    yield from _of_one_owner([*ranges, *excluded])
    yield from _of_one_owner([*ranges, *pinned])


def _outside_pools(plan: PlanDocument) -> Iterator[Diagnostic]:
    """Pools say what isolates clusters and what is internal, so whatever a site has is in one."""
    for prefix, path in _pinned(plan):
        is_site = path[1] == HUB or path[1] in plan.clusters
        if is_site and not _is_in(prefix, plan.pools.nodes):
            yield error(f"{prefix} lies in no pool", path, remedy="add it to pools.nodes")
    for prefix, path in pinned_services(plan):
        if not _is_in(prefix, plan.pools.services):
            yield error(f"{prefix} lies in no pool", path, remedy="add it to pools.services")


def _is_in(prefix: Prefix, holders: Iterable[Prefix]) -> bool:
    return any(holder.covers(prefix) for holder in holders)


def _of_one_owner(entries: Iterable[Entry]) -> Iterator[Diagnostic]:
    """Overlaps with a cluster's own pins; others are reported where they are read."""
    for (prefix, path), (other, beside) in overlaps(sorted(entries)):
        if "clusters" in (path[0], beside[0]):
            remedy = "a subnet has one owner: correct one"
            yield error(f"{prefix} overlaps {other}", path, beside, remedy)


def _pinned(plan: PlanDocument) -> Iterator[Entry]:
    for owner, prefixes in plan.pinned.items():
        for number, prefix in enumerate(prefixes):
            yield prefix, ("pinned", owner, number)


def _pinned_subnets(plan: PlanDocument) -> Iterator[Entry]:
    for path, spec in plan.node_pools():
        for number, pin in enumerate(spec.subnets):
            for role, prefixes in (("hosts", pin.hosts), ("pods", pin.pods)):
                for prefix in prefixes:
                    yield prefix, (*path, "subnets", number, role)


def pinned_services(plan: PlanDocument) -> Iterator[Entry]:
    """Every pinned Service range with its key."""
    for name, cluster in plan.clusters.items():
        services = cluster.services
        for key, prefix in (("prefix", services.prefix), ("prefix_v6", services.prefix_v6)):
            if prefix:
                yield prefix, ("clusters", name, "services", key)


def is_inside_pin(plan: PlanDocument, site: str, prefix: Prefix) -> bool:
    """Whether a prefix is part of what is pinned to the hub or a cluster of the plan."""
    is_site = site == HUB or site in plan.clusters
    return is_site and _is_in(prefix, plan.pinned.get(site, ()))
