"""From the plan and the previous lock to the next lock.

A pure function: the same two documents give the same lock, and a lock that already answers
its plan comes back unchanged. What the previous lock holds is an input and never moves;
the order of keys in the plan decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from netmgr.config import SPECIAL_USE
from netmgr.plan.carve import cluster_wants, complete, keep_tombstones, missing, taken_by_pools
from netmgr.plan.conflicts import REMEDY, Scope, conflicts, moved, pinned_faults, renamed, without
from netmgr.plan.demand import Want
from netmgr.plan.diff import diff, renumbered
from netmgr.plan.document import Cluster, PlanDocument
from netmgr.plan.findings import Finding, KeyPath, PlanRefused, error
from netmgr.plan.fixed import FixedSubnet
from netmgr.plan.ground import Ground, Places, Site
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import (
    LOCK_VERSION,
    Allocation,
    ClusterLock,
    HubLock,
    LockDocument,
    Subnet,
)
from netmgr.plan.pins import with_pinned
from netmgr.plan.service_ranges import ServiceGround
from netmgr.plan.space import Space
from netmgr.plan.split import pieces
from netmgr.plan.verify import verify
from netmgr.prefixes import Family, Prefix, merge
from netmgr.sites import HUB


def make_lock(
    plan: PlanDocument,
    previous: LockDocument | None,
    limits: CloudLimits,
    *,
    released: Collection[str] = (),
    renumber: bool = False,
) -> LockDocument:
    """Answer the plan.

    Args:
        plan: what is asked for.
        previous: the lock so far, None the first time.
        limits: the cloud's, with the plan's quotas in place.
        released: names of tombstones (`cluster` or `cluster/pool`) to forget.
        renumber: whether what the plan contradicts may move; otherwise it is refused.

    Raises:
        PlanRefused: something does not fit, or would have to move.
    """
    if faults := [*pinned_faults(plan), *(verify(previous) if previous else ())]:
        raise PlanRefused(faults)
    if previous and previous.plan != plan.name:
        raise PlanRefused([error(("name",), f"is {plan.name!r}, but the lock belongs to the plan {previous.plan!r}")])
    if previous and not renumber and (names := list(renamed(plan, previous, limits))):
        raise PlanRefused(names)
    kept = _kept(previous, released)
    found = _allocated(plan, kept, limits, renumber=renumber)
    if kept and not renumber:
        _refuse_renumbering(kept, found)
    return found


def _allocated(plan: PlanDocument, kept: LockDocument | None, limits: CloudLimits, *, renumber: bool) -> LockDocument:
    """With new reserves for declared growth, otherwise without: they must not take what somebody needs today."""
    try:
        return _Locking(plan, kept, limits, renumber=renumber).run()
    except PlanRefused:
        if any(map(_declares, plan.clusters.values())):
            with suppress(PlanRefused):
                return _Locking(plan, kept, limits, renumber=renumber, reserving=False).run()
        raise


def _refuse_renumbering(before: LockDocument, after: LockDocument) -> None:
    """The last word on the promise that nothing moves, whatever the reason would be."""
    moves = renumbered(diff(before, after))
    if moves:
        raise PlanRefused(
            error(tuple(move.key.split(".")), f"would move from {move.before} to {move.after}", REMEDY)
            for move in moves
        )


class _Locking:
    """One run; everything it changes is its own."""

    def __init__(
        self,
        plan: PlanDocument,
        previous: LockDocument | None,
        limits: CloudLimits,
        *,
        renumber: bool,
        reserving: bool = True,
    ) -> None:
        self.plan = plan
        self.reserving = reserving
        self.limits = limits
        scopes = _scopes(plan, previous, limits, renumber=renumber)
        self.hub_moves, self.services_move = moved(scopes)
        self.held = without(previous, scopes) if previous else None
        self.clusters = dict(self.held.clusters) if self.held else {}
        self.grounds = {family: self._ground(family) for family in plan.pools.families}
        staying = (held.services for name, held in self.clusters.items() if name not in self.services_move)
        self.services = ServiceGround(plan, limits, staying)
        self.open = plan.pools.service_families

    def run(self) -> LockDocument:
        hub = self._hub()
        gone = {n: keep_tombstones(held, None) for n, held in self.clusters.items() if n not in self.plan.clusters}
        made = {name: self._cluster(name) for name in sorted(self.plan.clusters, key=self._rank)}
        everything = gone | made
        return LockDocument(
            api_version="netmgr.io/v1alpha1",
            kind="NetworkPlanLock",
            version=LOCK_VERSION,
            plan=self.plan.name,
            hub=hub,
            clusters={name: everything[name] for name in sorted(everything)},
        )

    def _rank(self, name: str) -> tuple[bool, int, str]:
        """Declared growth first, then the largest, so that what is hard to place finds room."""
        cluster = self.plan.clusters[name]
        size = sum(pool.capacity * pool.blocks_per_node for pool in cluster.node_pools.values())
        return not _declares(cluster), -size, name

    def _ground(self, family: Family) -> Ground:
        pools = tuple(merge(prefix for prefix in self.plan.pools.nodes if prefix.family is family))
        ground = Ground(Space(family, pools))
        for prefix, holder in self._held_prefixes():
            if prefix.family is family:
                ground.hold(prefix, holder)
        return ground

    def _held_prefixes(self) -> Iterator[tuple[Prefix, str]]:
        for forbidden in (*self.limits.forbidden, *SPECIAL_USE):
            yield forbidden, "special use"
        for exclusion in self.plan.exclude:
            yield exclusion.prefix, f"excluded: {exclusion.reason or exclusion.prefix}"
        for owner, prefixes in self.plan.pinned.items():
            yield from ((prefix, owner) for prefix in prefixes)
        for name, held in self.clusters.items():
            yield from ((allocation.reserve, name) for allocation in held.prefixes)
        if self.held and not self.hub_moves:
            yield from ((allocation.reserve, HUB) for allocation in self.held.hub.prefixes)

    def _settle(
        self,
        name: str,
        path: KeyPath,
        before: Iterable[Allocation],
        wants: list[Want],
        taken: list[Prefix],
        reserve: int,
    ) -> tuple[tuple[Allocation, ...], dict[Family, Places]]:
        held = self._with_pinned(name, before)
        # Live subnets inside a site's own prefix, which nothing is allocated from.
        taken = [*taken, *(each.prefix for each in self.plan.exclude)]
        places: dict[Family, Places] = {}
        for family, ground in self.grounds.items():
            own = tuple(allocation for allocation in held if allocation.prefix.family is family)
            subset = tuple(want for want in wants if want.family is family)
            subnets = tuple(prefix for prefix in taken if prefix.family is family)
            other = tuple(allocation for allocation in held if allocation.prefix.family is not family)
            settled, places[family] = ground.settle(Site(name, path, own, subnets, subset, reserve))
            held = (*other, *settled)
        return tuple(sorted(held, key=lambda allocation: allocation.prefix)), places

    def _with_pinned(self, name: str, before: Iterable[Allocation]) -> tuple[Allocation, ...]:
        held = list(before)
        for prefix in self.plan.pinned.get(name, ()):
            if not any(allocation.reserve.overlaps(prefix) for allocation in held):
                held.append(Allocation(prefix=prefix, reserve=prefix))
        return tuple(held)

    def _hub(self) -> HubLock:
        before = self.held.hub if self.held and not self.hub_moves else None
        routers = FixedSubnet(
            ("routers",), ("hub", "routers"), HUB, before.routers if before else None, hosts=self.plan.hub.routers
        )
        researchers = list(self._researchers(before.researchers if before else ()))
        every = (routers, *researchers)
        wants = [want for subnet in every for want in subnet.wants(self.open, self.limits)]
        taken = [prefix for subnet in every for prefix in subnet.taken]
        prefixes, places = self._settle(HUB, ("hub",), before.prefixes if before else (), wants, taken, 1)
        return HubLock(
            prefixes=prefixes,
            routers=routers.complete(places, self.limits),
            researchers=tuple(subnet.complete(places, self.limits) for subnet in researchers),
        )

    def _researchers(self, held: tuple[Subnet, ...]) -> Iterator[FixedSubnet]:
        """The subnets there are, and one more for those who have no seat in them."""
        path: KeyPath = ("hub", "researchers")
        for number, subnet in enumerate(held):
            yield FixedSubnet(("researchers", str(number)), path, HUB, subnet)
        missing = self.plan.hub.researchers - sum(subnet.prefix.size - self.limits.reserved for subnet in held)
        if missing > 0:
            yield FixedSubnet(("researchers", str(len(held))), path, HUB, None, seats=missing)

    def _cluster(self, name: str) -> ClusterLock:
        """A cluster's entry; what no single free block holds is divided into several segments."""
        space = self.grounds[Family.V4].space
        before = space.size
        try:
            return self._carved(name, None)
        except PlanRefused:
            # Unless room was found and something else is wrong.
            sizes = self._pieces(name) if space.size == before else None
            if sizes is None:
                raise
        return self._carved(name, sizes)

    def _pieces(self, name: str) -> dict[str, list[int]] | None:
        cluster, held = self.plan.clusters[name], self.clusters.get(name)
        pools = with_pinned(name, cluster, held.node_pools if held else {}, self.limits, self.plan.pools.families)
        lacks = {pool: (spec, missing(spec, pools.get(pool))) for pool, spec in cluster.node_pools.items()}
        largest = sorted(lacks.items(), key=lambda each: (-each[1][1], each[0]))
        own = (each for each in self._with_pinned(name, held.prefixes if held else ()))
        nat = FixedSubnet(("nat",), ("clusters", name, "nat_hosts"), name, held.nat if held else None)
        taken = (*nat.taken, *taken_by_pools(pools))
        free = self.grounds[Family.V4].spaces((each for each in own if each.prefix.family is Family.V4), taken)
        return pieces(free, nat.wants([Family.V4], self.limits), dict(largest), self.limits)

    def _carved(self, name: str, sizes: dict[str, list[int]] | None) -> ClusterLock:
        cluster, held = self.plan.clusters[name], self.clusters.get(name)
        path: KeyPath = ("clusters", name)
        families = self.plan.pools.families
        pools = with_pinned(name, cluster, held.node_pools if held else {}, self.limits, families)
        new = cluster_wants(name, cluster, pools, families, self.limits, sizes)
        nat = FixedSubnet(("nat",), (*path, "nat_hosts"), name, held.nat if held else None, hosts=cluster.nat_hosts)
        wants = [*new.wants, *nat.wants(self.open, self.limits)]
        taken = [*nat.taken, *taken_by_pools(pools)]
        wanted = sum(want.size for want in wants if want.family is Family.V4)
        reserve = _reserve(cluster, wanted, taken) if self.reserving else 0
        before = held.prefixes if held else ()
        prefixes, places = self._settle(name, path, before, wants, taken, reserve)
        return ClusterLock(
            prefixes=prefixes,
            services=self.services.settle(name, held.services if held and name not in self.services_move else None),
            nat=nat.complete(places, self.limits),
            node_pools=complete(cluster, pools, new, places, self.limits),
        )


def _declares(cluster: Cluster) -> bool:
    return bool(cluster.grow_to) or any(pool.grow_to for pool in cluster.node_pools.values())


def _reserve(cluster: Cluster, wanted: int, taken: Iterable[Prefix]) -> int:
    """Addresses to keep together: what the subnets take, scaled to the declared number of nodes."""
    if not _declares(cluster):
        return 0
    subnets = wanted + sum(prefix.size for prefix in taken if prefix.family is Family.V4)
    declared = sum(pool.declared for pool in cluster.node_pools.values())
    return max(subnets, subnets * max(cluster.grow_to or 0, declared) // max(declared, 1), 1)


def _kept(previous: LockDocument | None, released: Iterable[str]) -> LockDocument | None:
    """The lock without the tombstones that are released.

    Raises:
        PlanRefused: a name is no tombstone.
    """
    scopes: list[Scope] = []
    for name in released:
        cluster, _, pool = name.partition("/")
        held = previous.clusters.get(cluster) if previous else None
        found = held.node_pools.get(pool) if held and pool else held
        if found is None:
            raise PlanRefused([error((), f"{name} is not in the lock; nothing to release")])
        if not found.tombstone:
            raise PlanRefused([error(("clusters", *name.split("/")), "is in use", "take it out of plan.yaml first")])
        scopes.append((cluster, "node_pools", pool) if pool else (cluster,))
    return without(previous, scopes) if previous else None


def _scopes(plan: PlanDocument, previous: LockDocument | None, limits: CloudLimits, *, renumber: bool) -> set[Scope]:
    found = list(conflicts(plan, previous, limits)) if previous else []
    if found and not renumber:
        faults: list[Finding] = [conflict.finding for conflict in found]
        raise PlanRefused(faults)
    return {conflict.scope for conflict in found}
