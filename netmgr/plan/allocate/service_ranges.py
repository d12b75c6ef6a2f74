"""Service ranges: one of the pools for each cluster, and one that shared clusters use inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from netmgr.documents.diagnostics import KeyPath, error
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan.allocate.space import Space
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import PlanDocument, ServiceMode, key_of
from netmgr.plan.lock import PlanRefused, ServiceMapping, ServiceRange
from netmgr.prefixes import Family, Prefix


class ServicePool:
    """What is free in the pools for Services, one space a family."""

    def __init__(
        self, plan: PlanDocument, limits: CloudLimits, held: Iterable[ServiceRange]
    ) -> None:
        """Withdraw what others have: `held` are the ranges that stay where they are."""
        self._plan = plan
        self._spaces = {
            family: Space(family, plan.pools.services) for family in plan.pools.service_families
        }
        for prefix in _unavailable(plan, limits, held):
            for space in self._spaces.values():
                space.withdraw(prefix)

    def grant(self, name: str, held: ServiceRange | None) -> ServiceRange:
        """A cluster's ranges: those it has, and one of every family it lacks.

        Raises:
            PlanRefused: there is no room, or nothing to share.
        """
        wanted = self._plan.clusters[name].services
        pairs = {pair.vip_range.family: pair for pair in held.pairs} if held else {}
        for family in self._spaces.keys() - pairs.keys():
            vip_range = wanted.pinned(family) or self._take(name, wanted.length_of(family), family)
            is_own = wanted.mode is ServiceMode.UNIQUE
            service_cidr = vip_range if is_own else self._shared(name, vip_range)
            pairs[family] = ServiceMapping(vip_range, service_cidr)
        (hub, own), (hub_v6, own_v6) = pairs[Family.V4], pairs.get(Family.V6, (None, None))
        return ServiceRange(
            mode=wanted.mode, prefix=own, hub_prefix=hub, prefix_v6=own_v6, hub_prefix_v6=hub_v6
        )

    def _take(self, name: str, length: int, family: Family) -> Prefix:
        space = self._spaces[family]
        # The smallest free block: a Service range never grows, because Kubernetes cannot resize it.
        vip_range = space.packed(length)
        if vip_range is None:
            room = "pools.services has nothing free"
            if free := next(space.blocks(), None):
                room = f"the largest free block of pools.services is {free}"
            message = f"{name} needs a /{length} for Services, but {room}"
            path: KeyPath = ("clusters", name, "services", key_of("length", family))
            remedy = "add a prefix or ask for less"
            raise PlanRefused([error(message, path, ("pools", "services"), remedy)])
        space.take(vip_range)
        return vip_range

    def _shared(self, name: str, vip_range: Prefix) -> Prefix:
        """As many addresses as `vip_range` has, from the beginning of the range that all share."""
        ranges = self._plan.shared_services
        shared = next((prefix for prefix in ranges if prefix.family is vip_range.family), None)
        if shared is None or shared.length > vip_range.length:
            has = f"is {shared}" if shared else f"has no IPv{vip_range.family} prefix"
            message = f"is shared, but shared_services {has}"
            path: KeyPath = ("clusters", name, "services", "mode")
            remedy = f"give shared_services a /{vip_range.length} or larger, outside all pools"
            beside: KeyPath | None = ("shared_services",) if ranges else None
            raise PlanRefused([error(message, path, beside, remedy)])
        # From the beginning: all shared clusters have the same addresses inside, whatever their
        # sizes.
        return shared._replace(length=vip_range.length)


def _unavailable(
    plan: PlanDocument, limits: CloudLimits, held: Iterable[ServiceRange]
) -> Iterator[Prefix]:
    yield from (*limits.forbidden, *SPECIAL_USE)
    yield from (entry.prefix for entry in (*plan.exclusions(), *plan.pins()))
    for range_ in held:
        yield from range_.vip_ranges
    for cluster in plan.clusters.values():
        # Also those of clusters that come later in this run: a pin must not be given away first.
        pinned = (cluster.services.pinned(family) for family in Family)
        yield from (prefix for prefix in pinned if prefix)
