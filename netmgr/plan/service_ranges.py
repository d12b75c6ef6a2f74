"""Where clusters' Services are: ranges out of the pools for them, and the one that shared clusters use inside."""

from __future__ import annotations

from collections.abc import Iterable

from netmgr.config import SPECIAL_USE
from netmgr.plan.document import PlanDocument, ServiceMode, Services
from netmgr.plan.findings import KeyPath, PlanRefused, error
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import ServiceRange
from netmgr.plan.space import Space
from netmgr.prefixes import Family, Prefix

LENGTH_KEYS = {Family.V4: "length", Family.V6: "length_v6"}
"""Key of a cluster's `services` that says how long its range of a family is."""


def length_of(services: Services, family: Family) -> int:
    """Prefix length that the plan asks for."""
    return services.length if family is Family.V4 else services.length_v6


class ServiceGround:
    """What is free of the pools for Services, one space a family."""

    def __init__(self, plan: PlanDocument, limits: CloudLimits, held: Iterable[ServiceRange]) -> None:
        """Take away what others have: `held` are the ranges that stay where they are."""
        self._plan = plan
        self._spaces = {family: Space(family, plan.pools.services) for family in plan.pools.service_families}
        pinned = (prefix for prefixes in plan.pinned.values() for prefix in prefixes)
        excluded = (exclusion.prefix for exclusion in plan.exclude)
        reserved = (cluster.services.pinned(each) for cluster in plan.clusters.values() for each in Family)
        taken = [prefix for range_ in held for prefix in range_.seen]
        taken += [prefix for prefix in reserved if prefix]
        for prefix in (*limits.forbidden, *SPECIAL_USE, *excluded, *pinned, *taken):
            for space in self._spaces.values():
                space.withdraw(prefix)

    def settle(self, name: str, held: ServiceRange | None) -> ServiceRange:
        """A cluster's ranges: those it has, and one of every family it lacks.

        Raises:
            PlanRefused: there is no room, or nothing to share.
        """
        wanted = self._plan.clusters[name].services
        pairs = {seen.family: (seen, real) for seen, real in held.pairs} if held else {}
        for family in self._spaces.keys() - pairs.keys():
            seen = wanted.pinned(family) or self._place(name, length_of(wanted, family), family)
            pairs[family] = (seen, seen if wanted.mode is ServiceMode.UNIQUE else self._shared(name, seen))
        (hub, own), (hub_v6, own_v6) = pairs[Family.V4], pairs.get(Family.V6, (None, None))
        return ServiceRange(mode=wanted.mode, prefix=own, hub_prefix=hub, prefix_v6=own_v6, hub_prefix_v6=hub_v6)

    def _place(self, name: str, length: int, family: Family) -> Prefix:
        space = self._spaces[family]
        place = space.packed(length)
        if place is None:
            free = next(space.blocks(), None)
            room = f"the largest free block of pools.services is {free}" if free else "pools.services has nothing free"
            path: KeyPath = ("clusters", name, "services", LENGTH_KEYS[family])
            message = f"{name} needs a /{length} for Services, but {room}"
            raise PlanRefused([error(path, message, "add a prefix or ask for less", beside=("pools", "services"))])
        space.take(place)
        return place

    def _shared(self, name: str, seen: Prefix) -> Prefix:
        """As many addresses as `seen` has, from the beginning of the range that all share."""
        shared = next((prefix for prefix in self._plan.shared_services if prefix.family is seen.family), None)
        if shared is None or shared.length > seen.length:
            has = f"is {shared}" if shared else f"has no IPv{seen.family} prefix"
            path: KeyPath = ("clusters", name, "services", "mode")
            remedy = f"give shared_services a /{seen.length} or larger, outside all pools"
            beside: KeyPath = ("shared_services",) if self._plan.shared_services else ()
            raise PlanRefused([error(path, f"is shared, but shared_services {has}", remedy, beside=beside)])
        return shared._replace(length=seen.length)
