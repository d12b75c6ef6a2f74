"""What differs between two locks, for people to review before it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

from netmgr.documents.diagnostics import listed
from netmgr.documents.sites import HUB
from netmgr.plan import lock
from netmgr.prefixes import Family


class ChangeKind(StrEnum):
    """The sign in front of a change."""

    ADD = "+"
    """Something new; all that was there is unchanged."""
    CHANGE = "~"
    """No address in use moves: there is more, or the name left the plan or came back."""
    REMOVE = "-"
    """A tombstone's addresses become free."""
    RENUMBER = "-/+"
    """Addresses in use would move."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the lock that differs. `before` or `after` is empty where there is none."""

    kind: ChangeKind
    key: str
    before: str
    after: str
    note: str = ""


def diff(before: lock.LockDocument | None, after: lock.LockDocument) -> tuple[Change, ...]:
    """Every change, the hub's first, then by cluster."""
    old = before.clusters if before else {}
    changes = list(_hub(before.hub if before else None, after.hub))
    for name in sorted(old.keys() | after.clusters.keys()):
        changes += _cluster(f"clusters.{name}", old.get(name), after.clusters.get(name))
    return tuple(changes)


def _hub(old: lock.HubLock | None, new: lock.HubLock) -> Iterator[Change]:
    yield from _allocations(f"{HUB}.prefixes", old.prefixes if old else (), new.prefixes)
    yield from _entry(f"{HUB}.routers", old.routers if old else None, new.routers)
    pairs = zip_longest(old.researchers if old else (), new.researchers)
    for number, (former, subnet) in enumerate(pairs):
        yield from _entry(f"{HUB}.researchers[{number}]", former, subnet)


def _cluster(
    key: str, old: lock.ClusterLock | None, new: lock.ClusterLock | None
) -> Iterator[Change]:
    prefixes = (held.prefixes if held else () for held in (old, new))
    yield from _allocations(f"{key}.prefixes", *prefixes)
    yield from _tombstone(key, old, new)
    services = (held.services if held else None for held in (old, new))
    yield from _entry(f"{key}.services", *services)
    yield from _entry(f"{key}.nat", old.nat if old else None, new.nat if new else None)
    before, after = (held.node_pools if held else {} for held in (old, new))
    for pool in sorted(before.keys() | after.keys()):
        yield from _node_pool(f"{key}.node_pools.{pool}", before.get(pool), after.get(pool))


def _node_pool(
    key: str, old: lock.NodePoolLock | None, new: lock.NodePoolLock | None
) -> Iterator[Change]:
    yield from _tombstone(key, old, new)
    pairs = zip_longest(old.segments if old else (), new.segments if new else ())
    for number, (before, after) in enumerate(pairs):
        yield from _entry(f"{key}[{number}]", before, after)


def _allocations(
    key: str, before: Sequence[lock.Allocation], after: Sequence[lock.Allocation]
) -> Iterator[Change]:
    gone, new = list(before), list(after)
    for held in after:
        # By what it covers: entries are sorted by address, so that a new one shifts the numbers of
        # others.
        former = next((old for old in gone if held.reserve.covers(old.reserve)), None)
        if former is None:
            continue
        new.remove(held)
        gone.remove(former)
        if former != held:
            texts = _allocation(former), _allocation(held)
            yield Change(ChangeKind.CHANGE, key, *texts, "grows in place")
    # A removal together with an addition is a move: subnets in the former get other addresses.
    kind = ChangeKind.RENUMBER if gone and new else ChangeKind.ADD
    for replaced, replacing in zip_longest(gone[: len(new)], new):
        yield Change(kind, key, _allocation(replaced), _allocation(replacing))
    for former in gone[len(new) :]:
        yield Change(ChangeKind.REMOVE, key, _allocation(former), "")


def _allocation(held: lock.Allocation | None) -> str:
    if held is None:
        return ""
    if held.prefix == held.reserve:
        return str(held.prefix)
    return f"{held.prefix} (reserved: {held.reserve})"


def _tombstone(
    key: str,
    old: lock.ClusterLock | lock.NodePoolLock | None,
    new: lock.ClusterLock | lock.NodePoolLock | None,
) -> Iterator[Change]:
    # What is new or gone has entries of its own that say so.
    if old is None or new is None or old.tombstone == new.tombstone:
        return
    states = ["in use", "tombstone"]
    note = "back in the plan, with the addresses it had"
    if new.tombstone:
        note = "its addresses stay its own until they are released"
    yield Change(ChangeKind.CHANGE, key, states[old.tombstone], states[new.tombstone], note)


Entry = lock.ServiceRangeLock | lock.SubnetLock | lock.Segment


def _entry(key: str, old: Entry | None, new: Entry | None) -> Iterator[Change]:
    if old == new:
        return
    before, after = _text(old) if old else "", _text(new) if new else ""
    if old is None or new is None:
        kind = ChangeKind.ADD if new else ChangeKind.REMOVE
    else:
        kind = ChangeKind.CHANGE if _has_only_more(old, new) else ChangeKind.RENUMBER
    yield Change(kind, key, before, after)


def _has_only_more(old: Entry, new: Entry) -> bool:
    """Whether every prefix stays, and hosts are only added or taken away at the end."""
    match old, new:
        case lock.ServiceRangeLock(), lock.ServiceRangeLock():
            # Only another family may come behind what there is.
            return new.pairs[: len(old.pairs)] == old.pairs
        case lock.SubnetLock(), lock.SubnetLock():
            pairs = ((old.of_family(family), new.of_family(family)) for family in Family)
            is_kept = new.prefixes[: len(old.prefixes)] == old.prefixes
            return is_kept and all(
                mine[: len(later)] == later[: len(mine)] for mine, later in pairs
            )
        case lock.Segment(), lock.Segment():
            # IPv6 may come beside it; all the rest decides addresses that nodes have.
            return old == new.model_copy(update={"v6": None})
        case _:
            return False


def _text(held: Entry) -> str:
    match held:
        case lock.ServiceRangeLock():
            return listed(
                service_cidr
                if vip_range == service_cidr
                else f"{service_cidr} (shared), from the hub {vip_range}"
                for vip_range, service_cidr in held.pairs
            )
        case lock.SubnetLock():
            hosts = (*held.addresses, *held.addresses_v6)
            return listed(held.prefixes) + (f": {listed(hosts)}" if hosts else "")
        case lock.Segment():
            parts = "; ".join(
                f"{part.subnet}, hosts from {part.host_base}, "
                f"pods from {part.pod_base} ({part.blocks} x /{part.block_length})"
                for part in held.layouts
            )
            return f"nodes {held.first:,} to {held.last:,}: {parts}"
