"""The lock of two merged branches, from theirs and the one that both began with.

An entry, the hub's or a cluster's, is taken whole: what one side alone added, changed or released
is kept. What both changed is nobody's to decide here, and addresses have one owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

from netmgr.documents.sites import HUB
from netmgr.errors import ConfigError
from netmgr.plan.diff import Change, ChangeKind, diff
from netmgr.plan.lock import ClusterLock, HubLock, LockDocument, merged_digest
from netmgr.prefixes import Prefix, overlaps

Sites = Mapping[str, HubLock | ClusterLock]


@dataclass(frozen=True, slots=True)
class MergedLock:
    """The merged lock; where there are `collisions`, it is the unchanged one of our side."""

    lock: LockDocument
    collisions: tuple[Change, ...]
    """What would have to move: `before` is ours, `after` theirs."""


def merge_locks(base: LockDocument | None, ours: LockDocument, theirs: LockDocument) -> MergedLock:
    """Merge two locks of one plan; without `base` every entry is new on both sides.

    ConfigError if they are of different plans.
    """
    if ours.plan != theirs.plan:
        raise ConfigError(
            f"the locks belong to different plans, {ours.plan!r} and {theirs.plan!r}; "
            "give the plan one name on both branches, lock both, and merge again"
        )
    former, own, other = (_sites(lock) for lock in (base, ours, theirs))
    merged, changed_twice = _chosen(former, own, other)
    collisions = [*_differences(ours, theirs, changed_twice), *_given_twice(merged, own)]
    if collisions:
        return MergedLock(ours, tuple(collisions))
    update: dict[str, object] = {HUB: merged.pop(HUB), "clusters": merged}
    if base is not None and ours.plan_digest != theirs.plan_digest:
        digests = (lock.plan_digest for lock in (base, ours, theirs))
        update["plan_digest"] = merged_digest(*digests)
    return MergedLock(ours.model_copy(update=update), ())


def _sites(lock: LockDocument | None) -> Sites:
    return {HUB: lock.hub, **lock.clusters} if lock else {}


def _chosen(
    former: Sites, own: Sites, other: Sites
) -> tuple[dict[str, HubLock | ClusterLock], set[str]]:
    """What each side alone changed, or neither, and the names of what both did."""
    chosen, changed_twice = dict[str, HubLock | ClusterLock](), set[str]()
    for name in sorted(own.keys() | other.keys()):
        before, mine, new = former.get(name), own.get(name), other.get(name)
        # The same change on both sides is one.
        if before not in (mine, new) and mine != new:
            changed_twice.add(name)
        if site := mine if new == before else new:
            chosen[name] = site
    return chosen, changed_twice


def _differences(ours: LockDocument, theirs: LockDocument, names: set[str]) -> Iterator[Change]:
    for change in diff(ours, theirs):
        first, _, rest = change.key.partition(".")
        if (first if first == HUB else rest.partition(".")[0]) in names:
            note = "both sides changed this entry"
            yield replace(change, kind=ChangeKind.RENUMBER, note=note)


def _given_twice(merged: Sites, own: Sites) -> Iterator[Change]:
    held = [(prefix, name) for name, site in merged.items() for prefix in _held(site)]
    for outer, inner in overlaps(held, itemgetter(0)):
        if outer[1] == inner[1]:
            continue
        # Each side is sound by itself, so that one of the two is as the other side has it.
        is_ours = merged[outer[1]] == own.get(outer[1])
        (mine, owner), (new, name) = (outer, inner) if is_ours else (inner, outer)
        key = HUB if name == HUB else f"clusters.{name}"
        note = "both sides gave out these addresses"
        yield Change(ChangeKind.RENUMBER, key, f"{mine} of {owner}", f"{new} of {name}", note)


def _held(site: HubLock | ClusterLock) -> Iterator[Prefix]:
    """All that nobody else may have: prefixes with their reserves, and ranges of VIPs."""
    for allocation in site.prefixes:
        yield allocation.reserve
    if isinstance(site, ClusterLock):
        yield from site.services.vip_ranges
