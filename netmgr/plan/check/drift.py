"""Compares the lock with what a cloud lists: what changed there without the plan.

Networks are known by the plan's names for them, everything else by its addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error, listed
from netmgr.plan.adopt import Existing, to_name
from netmgr.plan.check.conflicts import site_key
from netmgr.plan.derive import address_spaces, locked_subnets
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Prefix, merge


def cloud_drift(plan: PlanDocument, lock: LockDocument, existing: Existing) -> Iterator[Diagnostic]:
    """What has grown or shrunk, is foreign or gone, an error each."""
    known = [exclusion.prefix for exclusion in plan.exclude]
    spaces = {to_name(name): space for name, space in address_spaces(lock).items()}
    # By network. A tombstone's subnets may still be there.
    live, former, present = (defaultdict[str, list[Prefix]](list) for _ in range(3))
    for subnet in locked_subnets(lock):
        (live if subnet.is_live else former)[to_name(subnet.network)] += subnet.prefixes
    for network, _, prefix in existing.subnets:
        present[network].append(prefix)
    for name, (owner, space) in spaces.items():
        key = site_key(owner)
        now = existing.prefixes.get(name, [])
        # The prefixes of a network are one address space, however it is divided.
        yield from _compared(key, f"network {name}", merge(space), merge(now), "grown")
        if now and existing.subnets:  # a list of prefixes has none
            parts, ignored = (live[name], present[name]), [*known, *former[name]]
            yield from _compared(key, f"subnet of {name}", *parts, "foreign", ignored)
    yield from _foreign(plan, existing, known, {*spaces, *map(to_name, lock.clusters)})


def _foreign(
    plan: PlanDocument, existing: Existing, known: list[Prefix], sites: set[str]
) -> Iterator[Diagnostic]:
    pools = [pool.prefix for pool in plan.pools.keyed()]
    known = [*known, *(pin.prefix for pin in plan.pins() if not plan.is_site(pin.owner))]
    for owner in sorted(existing.prefixes.keys() - sites):
        others = [part for part in existing.prefixes[owner] if any(map(part.overlaps, pools))]
        subject = f"network {owner}, neither pinned nor excluded,"
        yield from _compared(("pools",), subject, [], others, "foreign", known)


def _compared(
    key: KeyPath,
    subject: str,
    locked: list[Prefix],
    present: list[Prefix],
    more: str,
    known: Iterable[Prefix] = (),
) -> Iterator[Diagnostic]:
    """Differences by prefix; `more` is the word for what is present alone, and not `known`."""
    for prefix in locked:
        if prefix not in present:
            yield error(_change(subject, prefix, present), key)
    for prefix in present:
        is_known = any(other.covers(prefix) for other in known)
        if not is_known and not any(map(prefix.overlaps, locked)):
            yield error(f"{more}: {subject} {prefix}", key)


def _change(subject: str, prefix: Prefix, present: Iterable[Prefix]) -> str:
    near = [other for other in present if other.overlaps(prefix)]
    if not near:
        return f"gone: {subject} {prefix}"
    change = "grown" if near[0].covers(prefix) else "shrunk"
    return f"{change}: {subject} {prefix} is {listed(near)}"
