"""The free addresses of the pools, and the steps by which a site (the hub or a cluster) gets more.

1. inside its own prefixes; 2. inside its reserve; 3. its prefix merged with the free buddy
beside it; 4. other prefixes, the largest where it can grow; 5. as many free blocks as the subnets
take; 6. a refusal that says what is missing and what is in the way. No step moves what a site holds
already, or enlarges what is pinned. A cluster that is refused divides its demand into smaller
segments and tries once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from netmgr.documents.diagnostics import Diagnostic, dotted, error, listed
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan.allocate.demand import Key, SubnetRequest
from netmgr.plan.allocate.space import Space, enclosing, length_for, subtract
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import Allocation, PlanRefused
from netmgr.prefixes import Family, Prefix, merge

Placement = dict[Key, Prefix]
"""Where requested subnets were put."""

V6_SITE = 56
"""An IPv6 site gets at least 256 subnets."""

ROOMY = 16
"""A site gets one prefix, whatever that wastes, from a free block of so many times its need."""

SPARE = 1 / 16
"""Elsewhere its prefixes exceed its need by this share at most."""


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """What a site holds, what it lacks, and how it means to grow, in every family.

    `reserve` is how many IPv4 addresses to keep together for it, 0 without declared growth.
    """

    name: str
    allocations: tuple[Allocation, ...]
    taken: tuple[Prefix, ...]
    subnets: tuple[SubnetRequest, ...] = ()
    reserve: int = 0
    is_dense: bool = False
    """Whether it goes to the end of the space, and its growth has no room beside it."""


@dataclass
class AddressPool:
    """What is free in one family's pools, and who holds the rest (for refusals)."""

    space: Space
    holders: list[tuple[Prefix, str]] = field(default_factory=list)
    pinned: frozenset[Prefix] = frozenset()
    """Of networks that exist: these prefixes do not grow."""

    def hold(self, prefix: Prefix, holder: str) -> None:
        """Withdraw what is still free of `prefix`."""
        self.space.withdraw(prefix)
        self.holders.append((prefix, holder))

    def grant(self, site: SiteRequest) -> tuple[tuple[Allocation, ...], Placement]:
        """Give the site what it lacks of this family; PlanRefused without room, and no change."""
        family = self.space.family
        allocations = [held for held in site.allocations if held.prefix.family is family]
        wanted = (request for request in site.subnets if request.family is family)
        # Inside first: what a site has already costs no new route, peering or address space.
        inner = self.inner(site)
        # The largest first, or a small one takes what alone is large enough; then by key, so that
        # every run places alike.
        placed, rest = _fit(inner, sorted(wanted, key=lambda asked: (asked.length, asked.key)))
        if rest:
            # In place before elsewhere: one larger prefix stays one route and one entry in every
            # rule.
            placed |= self._widen(inner, allocations, rest) or self._add(site, allocations, rest)
        if site.reserve:
            self._reserve(site, allocations)
        for held in allocations:
            # What the site held before is withdrawn already; a withdrawal searches all free blocks.
            if held not in site.allocations:
                self.hold(held.reserve, site.name)
        return tuple(sorted(allocations, key=lambda held: held.prefix)), placed

    def inner(self, site: SiteRequest) -> Space:
        """What is free within a site's own prefixes."""
        own = (held.prefix for held in site.allocations)
        return Space(self.space.family, own, site.taken)

    def _widen(
        self, inner: Space, allocations: list[Allocation], subnets: Sequence[SubnetRequest]
    ) -> Placement | None:
        for number, wider in self._widenings(allocations):
            before = allocations[number].prefix
            trial = inner.copy()
            for part in subtract(wider.prefix, before):
                trial.give(part)
            placed, rest = _fit(trial, subnets)
            if not rest:
                allocations[number] = wider
                return placed
        return None

    def _widenings(self, allocations: Sequence[Allocation]) -> Iterator[tuple[int, Allocation]]:
        growing = self._growing(allocations)
        for number, held in growing.items():
            # One bit at a time, from the smallest: what is not needed stays for later growth in the
            # reserve.
            for length in range(held.prefix.length - 1, held.reserve.length - 1, -1):
                wider = enclosing(held.prefix, length)
                yield number, Allocation(prefix=wider, reserve=held.reserve)
        for number in sorted(growing, key=lambda i: allocations[i].reserve.length):
            reach = allocations[number].reserve
            while grown := self.space.grown(reach, reach.length - 1):
                reach = grown
                yield number, _whole(reach)

    def _growing(self, allocations: Sequence[Allocation]) -> dict[int, Allocation]:
        """Those that may grow in place, by number."""
        return {i: held for i, held in enumerate(allocations) if held.prefix not in self.pinned}

    def _add(
        self, site: SiteRequest, allocations: list[Allocation], subnets: Sequence[SubnetRequest]
    ) -> Placement:
        """As few more prefixes as hold all subnets and little else; tightly where that is full."""
        # A site that has prefixes widens the largest of them in `_reserve`; a second reserve would
        # hold the same growth twice.
        reserve = site.reserve if not self._growing(allocations) else 0
        added = self._spread(site, subnets, reserve)
        if added is None and reserve:
            added = self._spread(site, subnets, 0)
        if added is None and (added := self._tight(subnets)) is None:
            raise PlanRefused([self._refusal(site, allocations, subnets)])
        allocations += added
        return _fit(Space(self.space.family, [held.prefix for held in added]), subnets)[0]

    def _spread(
        self, site: SiteRequest, subnets: Sequence[SubnetRequest], reserve: int
    ) -> list[Allocation] | None:
        """The largest block where it can grow, with its reserve; the others at the end."""
        trial, added = self.space.copy(), list[Allocation]()
        for length in self._lengths(site, subnets):
            if added or site.is_dense:
                # Far from what grows: beside it a small block would be in the way.
                block = trial.topmost(length, site.name if added else "")
            else:
                block = trial.sparse(min(length, length_for(reserve, trial.family)), site.name)
            if block is None:
                return None
            trial.take(block)
            added.append(Allocation(prefix=block._replace(length=length), reserve=block))
        return added

    def _tight(self, subnets: Sequence[SubnetRequest]) -> list[Allocation] | None:
        """Each subnet in the smallest free block that holds it."""
        trial, taken = self.space.copy(), []
        for subnet in subnets:
            block = trial.packed(min(subnet.length, V6_SITE))
            if block is None:
                return None
            trial.take(block)
            taken.append(block)
        # Blocks that were taken one by one may lie side by side.
        return list(map(_whole, merge(taken)))

    def _lengths(self, site: SiteRequest, subnets: Sequence[SubnetRequest]) -> list[int]:
        """Of the blocks that hold the subnets: one, or the fewest that waste little."""
        family = self.space.family
        need = left = sum(request.size for request in subnets)
        largest = next(self.space.blocks(), None)
        # One prefix is one route and one entry in every rule. But it may be twice what is needed.
        is_roomy = largest is not None and largest.size >= ROOMY * need
        spare = left if site.is_dense or is_roomy else need * SPARE
        lengths = []
        while left > 0:
            length = length_for(left, family)
            # Halved, it is full: subnets are powers of two, and the largest come first.
            if Prefix(family, 0, length).size - left > spare:
                length += 1
            # A bound for IPv6 alone: no length of IPv4 is as long.
            lengths.append(min(V6_SITE, length))
            left -= Prefix(family, 0, lengths[-1]).size
        return lengths

    def _reserve(self, site: SiteRequest, allocations: list[Allocation]) -> None:
        """Widen a reserve to what is declared, where the neighbourhood is free."""
        growing = self._growing(allocations)
        if self.space.family is Family.V6 or not growing:
            return
        largest = min(growing, key=lambda i: allocations[i].reserve.length)
        held = allocations[largest]
        others = sum(other.reserve.size for other in allocations) - held.reserve.size
        length = min(held.reserve.length, length_for(site.reserve - others, Family.V4))
        # What was added just now is still free in the pool: the reserve must not grow over it.
        for allocation in allocations:
            if allocation not in site.allocations:
                self.space.withdraw(allocation.reserve)
        if grown := self.space.grown(held.reserve, length):
            allocations[largest] = Allocation(prefix=held.prefix, reserve=grown)

    def _refusal(
        self, site: SiteRequest, allocations: Sequence[Allocation], subnets: Sequence[SubnetRequest]
    ) -> Diagnostic:
        needed = sum(request.size for request in subnets)
        length = min(V6_SITE, length_for(needed, self.space.family))
        free = next(self.space.blocks(), None)
        missing = Prefix(self.space.family, 0, length).size - (free.size if free else 0)
        largest = max(subnets, key=lambda request: request.size)
        room = f"the largest free block is {free} ({free.size:,})" if free else "nothing is free"
        message = (
            f"{site.name} needs {needed:,} more addresses, a /{length}, "
            f"but of pools.nodes {room}: {missing:,} too few; "
            f"the largest request is {dotted(largest.path)} ({largest.size:,})"
        )
        if blockers := self._blockers(allocations):
            message += f"; in the way of growing in place: {listed(blockers)}"
        remedy = "add a prefix to pools.nodes, release what is unused, or ask for less"
        return error(message, largest.path, remedy=remedy)

    def _blockers(self, allocations: Iterable[Allocation]) -> list[str]:
        """Who holds what each allocation would grow into once its free neighbourhood is used up."""
        blockers: set[str] = set()
        for held in allocations:
            reach = self.space.reach(held.reserve)
            beyond = enclosing(reach, reach.length - 1)
            near = {
                f"{holder} ({prefix})"
                for prefix, holder in self.holders
                if prefix.overlaps(beyond) and not prefix.overlaps(reach)
            }
            blockers |= near or {f"the end of the pool beyond {reach}"}
        return sorted(blockers)


def withdrawn(plan: PlanDocument, limits: CloudLimits) -> Iterator[tuple[Prefix, str]]:
    """What neither nodes nor Services are allocated from, and whose it is; exclusions aside."""
    for prefix in (*limits.forbidden, *SPECIAL_USE):
        yield prefix, "special use"
    yield from ((pin.prefix, pin.owner) for pin in plan.pins())


def free_pool(
    plan: PlanDocument,
    limits: CloudLimits,
    sites: Mapping[str, Iterable[Allocation]],
    family: Family,
) -> AddressPool:
    """What is free in `pools.nodes` beside what the sites hold."""
    pinned = frozenset(pin.prefix for pin in plan.pins())
    pool = AddressPool(Space(family, plan.pools.nodes), pinned=pinned)
    for prefix, holder in withdrawn(plan, limits):
        pool.hold(prefix, holder)
    for exclusion in plan.exclude:
        pool.hold(exclusion.prefix, f"excluded: {exclusion.reason or exclusion.prefix}")
    for name, allocations in sites.items():
        for held in allocations:
            # The whole reserve: growth that was declared must find it free later.
            pool.hold(held.reserve, name)
    return pool


def _whole(prefix: Prefix) -> Allocation:
    return Allocation(prefix=prefix, reserve=prefix)


def _fit(inner: Space, subnets: Sequence[SubnetRequest]) -> tuple[Placement, list[SubnetRequest]]:
    """Put as many subnets into `inner` as fit, and return the rest. They come largest first."""
    placed: Placement = {}
    rest = []
    for subnet in subnets:
        if prefix := inner.packed(subnet.length):
            inner.take(prefix)
            placed[subnet.key] = prefix
        else:
            rest.append(subnet)
    return placed, rest
