"""What differs between two locks, for people to judge before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from netmgr.plan.lock import Allocation, ClusterLock, LockDocument, NodePoolLock, Segment, ServiceRange, Subnet
from netmgr.prefixes import Family
from netmgr.sites import HUB


class Kind(StrEnum):
    """The sign that stands before a change."""

    ADD = "+"
    """Something new; nothing that was there is touched."""
    CHANGE = "~"
    """What was there is still where it was, and there is more, or its name left the plan or came back."""
    REMOVE = "-"
    """A tombstone's addresses become free."""
    RENUMBER = "-/+"
    """Addresses in use would move."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the lock that differs. `before` or `after` is empty where there is none."""

    kind: Kind
    key: str
    before: str
    after: str
    note: str = ""


def diff(before: LockDocument | None, after: LockDocument) -> tuple[Change, ...]:
    """Every change, the hub's first, then by cluster."""
    old = before.clusters if before else {}
    changes = list(_hub(before, after))
    for name in sorted(old.keys() | after.clusters.keys()):
        changes += _cluster(f"clusters.{name}", old.get(name), after.clusters.get(name))
    return tuple(changes)


def renumbered(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Those by which addresses in use would move."""
    return tuple(change for change in changes if change.kind is Kind.RENUMBER)


def _hub(before: LockDocument | None, after: LockDocument) -> Iterator[Change]:
    old = before.hub if before else None
    yield from _allocations(f"{HUB}.prefixes", old.prefixes if old else (), after.hub.prefixes)
    yield from _subnet(f"{HUB}.routers", old.routers if old else None, after.hub.routers)
    known = old.researchers if old else ()
    for place, subnet in enumerate(after.hub.researchers):
        yield from _subnet(f"{HUB}.researchers[{place}]", known[place] if place < len(known) else None, subnet)


def _cluster(key: str, before: ClusterLock | None, after: ClusterLock | None) -> Iterator[Change]:
    yield from _allocations(f"{key}.prefixes", before.prefixes if before else (), after.prefixes if after else ())
    if before and after:
        yield from _tombstone(key, before.tombstone, after.tombstone)
    yield from _services(f"{key}.services", before.services if before else None, after.services if after else None)
    yield from _subnet(f"{key}.nat", before.nat if before else None, after.nat if after else None)
    old, new = (before.node_pools if before else {}), (after.node_pools if after else {})
    for pool in sorted(old.keys() | new.keys()):
        yield from _pool(f"{key}.node_pools.{pool}", old.get(pool), new.get(pool))


def _allocations(key: str, before: Iterable[Allocation], after: Iterable[Allocation]) -> Iterator[Change]:
    gone, new = list(before), list(after)
    for held in list(new):
        former = next((old for old in gone if held.reserve.covers(old.reserve)), None)
        if former is None:
            continue
        new.remove(held)
        gone.remove(former)
        if former != held:
            yield Change(Kind.CHANGE, key, _allocation(former), _allocation(held), "grows where it stands")
    kind = Kind.RENUMBER if gone and new else Kind.ADD
    yield from (Change(kind, key, _next(gone), _allocation(held)) for held in new)
    yield from (Change(Kind.REMOVE, key, _allocation(held), "") for held in gone)


def _next(gone: list[Allocation]) -> str:
    return _allocation(gone.pop(0)) if gone else ""


def _allocation(held: Allocation) -> str:
    return str(held.prefix) if held.prefix == held.reserve else f"{held.prefix} (reserved: {held.reserve})"


def _tombstone(key: str, before: bool, after: bool) -> Iterator[Change]:  # noqa: FBT001  two states of one flag
    if before and not after:
        yield Change(Kind.CHANGE, key, "tombstone", "in use", "back in the plan, with the addresses it had")
    elif after and not before:
        yield Change(Kind.CHANGE, key, "in use", "tombstone", "its addresses stay its own until they are released")


def _services(key: str, before: ServiceRange | None, after: ServiceRange | None) -> Iterator[Change]:
    old, new = _service_text(before), _service_text(after)
    if old != new:
        more = before and after and after.pairs[: len(before.pairs)] == before.pairs
        yield Change(Kind.CHANGE if more else _kind(old, new), key, old, new)


def _service_text(held: ServiceRange | None) -> str:
    if held is None:
        return ""
    return ", ".join(
        str(real) if seen == real else f"{real} (shared), from the hub {seen}" for seen, real in held.pairs
    )


def _subnet(key: str, before: Subnet | None, after: Subnet | None) -> Iterator[Change]:
    old, new = _subnet_text(before), _subnet_text(after)
    if old == new:
        return
    kind = _kind(old, new)
    if before and after and after.prefixes[: len(before.prefixes)] == before.prefixes:
        families = [(before.of_family(each), after.of_family(each)) for each in Family]
        if all(mine[: len(later)] == later[: len(mine)] for mine, later in families):
            kind = Kind.CHANGE
    yield Change(kind, key, old, new)


def _subnet_text(held: Subnet | None) -> str:
    if held is None:
        return ""
    addresses = (*held.addresses, *held.addresses_v6)
    hosts = f": {', '.join(map(str, addresses))}" if addresses else ""
    return f"{', '.join(map(str, held.prefixes))}{hosts}"


def _pool(key: str, before: NodePoolLock | None, after: NodePoolLock | None) -> Iterator[Change]:
    old, new = (before.segments if before else ()), (after.segments if after else ())
    if before and after:
        yield from _tombstone(key, before.tombstone, after.tombstone)
    for place in range(max(len(old), len(new))):
        former = old[place] if place < len(old) else None
        latter = new[place] if place < len(new) else None
        yield from _segment(f"{key}[{place}]", former, latter)


def _segment(key: str, before: Segment | None, after: Segment | None) -> Iterator[Change]:
    old, new = _segment_text(before), _segment_text(after)
    if before == after:
        return
    only_added = before and after and before.v6 is None and before == after.model_copy(update={"v6": None})
    yield Change(Kind.CHANGE if only_added else _kind(old, new), key, old, new)


def _segment_text(held: Segment | None) -> str:
    if held is None:
        return ""
    nodes = f"nodes {held.first:,} to {held.first + held.nodes - 1:,}"
    parts = [f"hosts {part.hosts}, pods {part.pods} ({part.blocks} x /{part.block_length})" for part in held.layouts]
    return f"{nodes}: {'; '.join(parts)}"


def _kind(before: str, after: str) -> Kind:
    if not before:
        return Kind.ADD
    return Kind.RENUMBER if after else Kind.REMOVE
