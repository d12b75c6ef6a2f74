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
    changes = list(_hub(before, after))
    for name in sorted(old.keys() | after.clusters.keys()):
        changes += _cluster(f"clusters.{name}", old.get(name), after.clusters.get(name))
    return tuple(changes)


def _hub(before: lock.LockDocument | None, after: lock.LockDocument) -> Iterator[Change]:
    old = before.hub if before else None
    yield from _allocations(f"{HUB}.prefixes", old.prefixes if old else (), after.hub.prefixes)
    yield from _subnet(f"{HUB}.routers", old.routers if old else None, after.hub.routers)
    pairs = zip_longest(old.researchers if old else (), after.hub.researchers)
    for number, (former, subnet) in enumerate(pairs):
        yield from _subnet(f"{HUB}.researchers[{number}]", former, subnet)


def _cluster(
    key: str, old: lock.ClusterLock | None, new: lock.ClusterLock | None
) -> Iterator[Change]:
    prefixes = (held.prefixes if held else () for held in (old, new))
    yield from _allocations(f"{key}.prefixes", *prefixes)
    yield from _tombstone(key, old, new)
    services = (held.services if held else None for held in (old, new))
    yield from _services(f"{key}.services", *services)
    yield from _subnet(f"{key}.nat", old.nat if old else None, new.nat if new else None)
    before, after = (held.node_pools if held else {} for held in (old, new))
    for pool in sorted(before.keys() | after.keys()):
        yield from _node_pool(f"{key}.node_pools.{pool}", before.get(pool), after.get(pool))


def _node_pool(
    key: str, old: lock.NodePoolLock | None, new: lock.NodePoolLock | None
) -> Iterator[Change]:
    yield from _tombstone(key, old, new)
    pairs = zip_longest(old.segments if old else (), new.segments if new else ())
    for number, (before, after) in enumerate(pairs):
        yield from _segment(f"{key}[{number}]", before, after)


def _allocations(
    key: str, before: Sequence[lock.Allocation], after: Sequence[lock.Allocation]
) -> Iterator[Change]:
    gone, new = list(before), list(after)
    for held in after:
        # By what it covers: entries are sorted by address, so that a new one shifts the numbers of
        # others.
        inside = [old for old in gone if held.reserve.covers(old.reserve)]
        if not inside:
            continue
        former = inside[0]
        new.remove(held)
        gone.remove(former)
        if former != held:
            texts = _allocation(former), _allocation(held)
            yield Change(ChangeKind.CHANGE, key, *texts, "grows in place")
    # A removal together with an addition is a move: subnets in the former get other addresses.
    kind = ChangeKind.RENUMBER if gone and new else ChangeKind.ADD
    replaced, removed = gone[: len(new)], gone[len(new) :]
    for former, held in zip_longest(replaced, new):
        yield Change(kind, key, _allocation(former), _allocation(held))
    for former in removed:
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
    if old is None or new is None or old.tombstone == new.tombstone:
        return
    states = ["in use", "tombstone"]
    note = "back in the plan, with the addresses it had"
    if new.tombstone:
        note = "its addresses stay its own until they are released"
    yield Change(ChangeKind.CHANGE, key, states[old.tombstone], states[new.tombstone], note)


def _change(key: str, old: str, new: str, *, only_added: object) -> Change:
    """A change from one text to another; `only_added` if nothing of the first moves."""
    kind = ChangeKind.CHANGE if only_added else ChangeKind.RENUMBER
    if not (old and new):
        kind = ChangeKind.ADD if new else ChangeKind.REMOVE
    return Change(kind, key, old, new)


def _services(
    key: str, old: lock.ServiceRangeLock | None, new: lock.ServiceRangeLock | None
) -> Iterator[Change]:
    before, after = _service_text(old), _service_text(new)
    if before != after:
        # Only another family may be appended.
        more = old and new and new.pairs[: len(old.pairs)] == old.pairs
        yield _change(key, before, after, only_added=more)


def _service_text(held: lock.ServiceRangeLock | None) -> str:
    texts = []
    for vip_range, service_cidr in held.pairs if held else ():
        outside = "" if vip_range == service_cidr else f" (shared), from the hub {vip_range}"
        texts.append(f"{service_cidr}{outside}")
    return ", ".join(texts)


def _subnet(key: str, old: lock.SubnetLock | None, new: lock.SubnetLock | None) -> Iterator[Change]:
    before, after = _subnet_text(old), _subnet_text(new)
    if before != after:
        yield _change(key, before, after, only_added=old and new and _has_only_more(old, new))


def _has_only_more(old: lock.SubnetLock, new: lock.SubnetLock) -> bool:
    """Whether every prefix stays and hosts are only added or taken away at the end."""
    if new.prefixes[: len(old.prefixes)] != old.prefixes:
        return False
    pairs = ((old.of_family(family), new.of_family(family)) for family in Family)
    return all(mine[: len(later)] == later[: len(mine)] for mine, later in pairs)


def _subnet_text(held: lock.SubnetLock | None) -> str:
    if held is None:
        return ""
    hosts = (*held.addresses, *held.addresses_v6)
    return listed(held.prefixes) + (f": {listed(hosts)}" if hosts else "")


def _segment(key: str, old: lock.Segment | None, new: lock.Segment | None) -> Iterator[Change]:
    # Compared as a whole: the text leaves out where the addresses in the subnets begin.
    if old != new:
        more = old and new and old == new.model_copy(update={"v6": None})
        yield _change(key, _segment_text(old), _segment_text(new), only_added=more)


def _segment_text(held: lock.Segment | None) -> str:
    if held is None:
        return ""
    parts = "; ".join(
        f"hosts {part.hosts}, pods {part.pods} ({part.blocks} x /{part.block_length})"
        for part in held.layouts
    )
    return f"nodes {held.first:,} to {held.last:,}: {parts}"
