"""The ground that sites (the hub and the clusters) stand on, and the ladder by which one gets more of it.

1. inside its own prefixes; 2. inside its reserve; 3. its prefix merged with the free buddy
beside it; 4. another prefix; 5. as many free blocks as the subnets take; 6. a refusal that says
what is missing and what is in the way. Nothing that a site holds already moves on any rung. A
cluster that is refused divides its demand into smaller segments and tries once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from netmgr.plan.demand import Key, Want
from netmgr.plan.findings import Finding, KeyPath, PlanRefused, error
from netmgr.plan.lock import Allocation
from netmgr.plan.space import Space, enclosing, length_for, subtract
from netmgr.prefixes import Family, Prefix, merge

Places = dict[Key, Prefix]
V6_SITE = 56
"""An IPv6 site gets at least 256 subnets."""


@dataclass(frozen=True, slots=True)
class Site:
    """Who wants ground: what it holds, what it lacks, and how it means to grow.

    `reserve` is the least number of IPv4 addresses to keep together for it, 0 without declared growth.
    """

    name: str
    path: KeyPath
    allocations: tuple[Allocation, ...]
    taken: tuple[Prefix, ...]
    wants: tuple[Want, ...]
    reserve: int = 0


@dataclass
class Ground:
    """What is free of the pools of one family, and who holds the rest (for refusals)."""

    space: Space
    holders: list[tuple[Prefix, str]] = field(default_factory=list)

    def hold(self, prefix: Prefix, holder: str) -> None:
        """Take away what is still free of `prefix`."""
        self.space.withdraw(prefix)
        self.holders.append((prefix, holder))

    def settle(self, site: Site) -> tuple[tuple[Allocation, ...], Places]:
        """Give the site what it lacks.

        Raises:
            PlanRefused: there is no room; the ground is as it was.
        """
        inner = Space(self.space.family, (held.prefix for held in site.allocations))
        for subnet in site.taken:
            inner.withdraw(subnet)
        wants = sorted(site.wants, key=lambda want: (want.length, want.key))
        places, rest = _fit(inner, wants)
        allocations = list(site.allocations)
        if rest:
            places |= self._widen(inner, allocations, rest) or self._add(site, allocations, rest)
        if site.reserve:
            self._reserve(site, allocations)
        for held in allocations:
            if held not in site.allocations:  # looking for what is free in a prefix costs a look at all that is free
                self.hold(held.reserve, site.name)
        return tuple(sorted(allocations, key=lambda held: held.prefix)), places

    def spaces(self, allocations: Iterable[Allocation], taken: Iterable[Prefix]) -> tuple[Space, Space]:
        """Copies of what a site may use: what is free within its own prefixes, and what is nobody's."""
        inner = Space(self.space.family, (held.prefix for held in allocations))
        for subnet in taken:
            inner.withdraw(subnet)
        return inner, self.space.copy()

    def _widen(self, inner: Space, allocations: list[Allocation], wants: Sequence[Want]) -> Places | None:
        needed = sum(want.size for want in wants)
        for place, wider in self._widenings(allocations):
            before = allocations[place].prefix
            if inner.size + wider.prefix.size - before.size < needed:
                continue
            trial = inner.copy()
            for part in subtract(wider.prefix, before):
                trial.give(part)
            places, rest = _fit(trial, wants)
            if not rest:
                allocations[place] = wider
                return places
        return None

    def _widenings(self, allocations: Sequence[Allocation]) -> Iterator[tuple[int, Allocation]]:
        for place, held in enumerate(allocations):
            for length in range(held.prefix.length - 1, held.reserve.length - 1, -1):
                yield place, Allocation(prefix=enclosing(held.prefix, length), reserve=held.reserve)
        by_size = sorted(range(len(allocations)), key=lambda place: allocations[place].reserve.length)
        for place in by_size:
            reserve = allocations[place].reserve
            for length in range(reserve.length - 1, -1, -1):
                grown = self.space.grown(reserve, length)
                if grown is None:
                    break
                yield place, Allocation(prefix=grown, reserve=grown)

    def _add(self, site: Site, allocations: list[Allocation], wants: Sequence[Want]) -> Places:
        """One more prefix for all wants, or else as few as there are free blocks to take them."""
        is_sparse = not site.reserve
        for groups in ([tuple(wants)], [(want,) for want in wants]):
            trial = self.space.copy()
            added: list[Allocation] = []
            places: Places = {}
            for group in groups:
                first = not allocations and len(groups) == 1
                found = self._place(
                    trial, group, site.reserve if first else 0, is_sparse=is_sparse and len(groups) == 1
                )
                if found is None:
                    break
                trial.take(found.reserve)
                added.append(found)
                places |= _fit(Space(trial.family, [found.prefix]), group)[0]
            else:
                # Blocks that were taken one by one may lie side by side.
                allocations += added if len(groups) == 1 else map(_whole, merge(found.reserve for found in added))
                return places
        raise PlanRefused([self._refusal(site, allocations, wants)])

    def _place(self, space: Space, wants: Sequence[Want], reserve: int, *, is_sparse: bool) -> Allocation | None:
        length = length_for(sum(want.size for want in wants), space.family)
        if space.family is Family.V6:
            length = min(length, V6_SITE)
        for size in sorted({min(length, length_for(reserve, space.family)), length}):
            found = space.sparse(size) if is_sparse else space.topmost(size)
            if found:
                return Allocation(prefix=enclosing(found, size)._replace(length=length), reserve=found)
        return None

    def _reserve(self, site: Site, allocations: list[Allocation]) -> None:
        """Widen a reserve to what is declared, where the neighbourhood is free."""
        if self.space.family is Family.V6 or not allocations:
            return
        largest = min(range(len(allocations)), key=lambda place: allocations[place].reserve.length)
        held = allocations[largest]
        others = sum(other.reserve.size for other in allocations) - held.reserve.size
        length = min(held.reserve.length, length_for(site.reserve - others, Family.V4))
        for each in allocations:
            if each not in site.allocations:
                self.space.withdraw(each.reserve)
        if grown := self.space.grown(held.reserve, length):
            allocations[largest] = Allocation(prefix=held.prefix, reserve=grown)

    def _refusal(self, site: Site, allocations: Sequence[Allocation], wants: Sequence[Want]) -> Finding:
        family = self.space.family
        needed = sum(want.size for want in wants)
        length = length_for(needed, family)
        free = next(self.space.blocks(), None)
        missing = (1 << (family.width - length)) - (free.size if free else 0)
        largest = max(wants, key=lambda want: want.size)
        room = f"the largest free block is {free} ({free.size:,})" if free else "nothing is free"
        message = (
            f"{site.name} needs {needed:,} more addresses, a /{length}, but of pools.nodes {room}: "
            f"{max(missing, 0):,} too few; the largest request is {'.'.join(map(str, largest.path))} ({largest.size:,})"
        )
        blockers = self._blockers(allocations)
        if blockers:
            message += f"; in the way of growing where it stands: {', '.join(blockers)}"
        return error(largest.path, message, "add a prefix to pools.nodes, release what is unused, or ask for less")

    def _blockers(self, allocations: Iterable[Allocation]) -> list[str]:
        """Who holds what each allocation would have to grow into next, once its free neighbourhood is used up."""
        found: set[str] = set()
        for held in allocations:
            reach = held.reserve
            while reach.length and (wider := self.space.grown(reach, reach.length - 1)):
                reach = wider
            beyond = enclosing(reach, max(reach.length - 1, 0))
            near = {f"{holder} ({prefix})" for prefix, holder in self.holders if _is_beside(prefix, beyond, reach)}
            found |= near or {f"the end of the pool beyond {reach}"}
        return sorted(found)


def _whole(prefix: Prefix) -> Allocation:
    return Allocation(prefix=prefix, reserve=prefix)


def _is_beside(prefix: Prefix, beyond: Prefix, reach: Prefix) -> bool:
    return prefix.overlaps(beyond) and not prefix.overlaps(reach)


def _fit(inner: Space, wants: Sequence[Want]) -> tuple[Places, list[Want]]:
    """Places for as many wants as fit; `inner` loses them. Wants come largest first."""
    places: Places = {}
    rest = []
    for want in wants:
        place = inner.packed(want.length)
        if place is None:
            rest.append(want)
            continue
        inner.take(place)
        places[want.key] = place
    return places, rest
