"""From the plan and what stays of the previous lock, which never moves, to the next lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from netmgr.documents.diagnostics import KeyPath, error
from netmgr.documents.sites import HUB
from netmgr.plan import lock
from netmgr.plan.allocate.demand import SubnetRequest
from netmgr.plan.allocate.pool import Placement, SiteRequest, free_pool, withdrawn
from netmgr.plan.allocate.space import Space
from netmgr.plan.allocate.subnetting import ClusterDemand, FixedSubnet, taken_by_pools
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, PlanDocument, ServiceMode, key_of
from netmgr.prefixes import Family, Prefix


class Allocator:
    """One run of the allocation. It changes neither the plan nor the lock it is given."""

    def __init__(
        self,
        plan: PlanDocument,
        held: lock.LockDocument | None,
        limits: CloudLimits,
        moving: Collection[tuple[str, ...]],
        *,
        reserving: bool,
    ) -> None:
        """Prepare what is free beside `held`, which lacks the clusters and node pools that move.

        The hub and Services that are `moving` get other prefixes. With `reserving`, new reserves
        are made for declared growth.
        """
        self.plan = plan
        self.limits = limits
        self.reserving = reserving
        self.hub = held.hub if held and (HUB,) not in moving else None
        self.clusters = held.clusters if held else {}
        sites = held.sites if held else {}
        if self.hub is None:
            sites.pop(HUB, None)
        self.pools = {
            family: free_pool(plan, limits, sites, family) for family in plan.pools.families
        }
        ranges = {
            name: cluster.services
            for name, cluster in self.clusters.items()
            if (name, "services") not in moving
        }
        self.services = ServicePool(plan, limits, ranges)

    def run(self) -> lock.LockDocument:
        """The next lock; PlanRefused if something does not fit."""
        hub = self._hub()
        clusters = {
            # A cluster that left the plan may still run, so nobody else gets its addresses before
            # they are released.
            name: held.model_copy(update={"tombstone": True})
            for name, held in self.clusters.items()
            if name not in self.plan.clusters
        }
        # By rank, not by the order in plan.yaml: moving a cluster's lines must not change who gets
        # what. Only what the lock lacks depends on it.
        for name in sorted(self.plan.clusters, key=self._rank):
            clusters[name] = self._cluster(name)
        return lock.LockDocument(
            api_version="netmgr.io/v1alpha1",
            kind="NetworkPlanLock",
            version=lock.LOCK_VERSION,
            plan=self.plan.name,
            hub=hub,
            clusters=dict(sorted(clusters.items())),
            plan_digest=lock.plan_digest_of(self.plan),
        )

    def _rank(self, name: str) -> tuple[bool, int, str]:
        # What is hard to fit finds room if it comes first: declared growth, then the largest.
        cluster = self.plan.clusters[name]
        size = sum(pool.capacity * pool.blocks_per_node for pool in cluster.node_pools.values())
        return not declares_growth(cluster), -size, name

    def _hub(self) -> lock.HubLock:
        held, limits = self.hub, self.limits
        path: KeyPath = ("hub", "routers")
        former = held.routers if held else None
        subnets = [FixedSubnet(("routers",), path, HUB, former, hosts=self.plan.hub.routers)]
        path = ("hub", "researchers")
        missing = self.plan.hub.researchers
        for number, subnet in enumerate(held.researchers if held else ()):
            subnets.append(FixedSubnet(("researchers", str(number)), path, HUB, subnet))
            missing -= subnet.prefix.size - limits.reserved
        if missing > 0:
            # Subnets in use cannot be resized in a cloud, so that more seats take another subnet.
            key = ("researchers", str(len(subnets) - 1))
            subnets.append(FixedSubnet(key, path, HUB, None, seats=missing))
        families = self.plan.pools.service_families
        requests = [request for subnet in subnets for request in subnet.requests(families, limits)]
        site = self._site(HUB, held, [prefix for subnet in subnets for prefix in subnet.taken])
        # The largest free block stays a cluster's to grow into.
        prefixes, placed = self._grant(replace(site, subnets=tuple(requests), is_dense=True))
        routers, *researchers = (subnet.complete(placed, limits) for subnet in subnets)
        return lock.HubLock(prefixes=prefixes, routers=routers, researchers=tuple(researchers))

    def _cluster(self, name: str) -> lock.ClusterLock:
        """A cluster's entry; what no single free block holds is divided into several segments."""
        spec, held = self.plan.clusters[name], self.clusters.get(name)
        node_pools, families = held.node_pools if held else {}, self.plan.pools.families
        demand = ClusterDemand(name, spec, node_pools, families, self.limits).with_pinned()
        path: KeyPath = ("clusters", name, "nat_hosts")
        former = held.nat if held else None
        nat = FixedSubnet(("nat",), path, name, former, hosts=spec.nat_hosts)
        site = self._site(name, held, [*nat.taken, *taken_by_pools(demand.held)])
        # IPv6 is never short: a site's first prefix holds 256 subnets.
        pool = self.pools[Family.V4]
        before = pool.space.size
        try:
            return self._subnetted(site, demand, nat)
        except lock.PlanRefused:
            # If room was found, something else is wrong, which smaller segments would not change.
            if pool.space.size != before:
                raise
            # The NAT hosts' subnet cannot be divided, so it goes first.
            fixed = nat.requests([Family.V4], self.limits)
            sizes = demand.pieces((pool.inner(site), pool.space.copy()), fixed)
            if sizes is None:
                raise
        return self._subnetted(site, demand, nat, sizes)

    def _subnetted(
        self,
        site: SiteRequest,
        demand: ClusterDemand,
        nat: FixedSubnet,
        sizes: dict[str, list[int]] | None = None,
    ) -> lock.ClusterLock:
        new = demand.missing(sizes)
        # Together, so that one prefix is found that holds all of the cluster's subnets.
        fixed = nat.requests(self.plan.pools.service_families, self.limits)
        requests = (*new.requests, *fixed)
        reserve = _reserve(demand.spec, requests, site.taken) if self.reserving else 0
        prefixes, placed = self._grant(replace(site, subnets=requests, reserve=reserve))
        return lock.ClusterLock(
            prefixes=prefixes,
            services=self.services.grant(site.name),
            nat=nat.complete(placed, self.limits),
            node_pools=demand.complete(new, placed),
        )

    def _site(
        self, name: str, held: lock.HubLock | lock.ClusterLock | None, taken: Iterable[Prefix]
    ) -> SiteRequest:
        """A site with its prefixes, also those that are pinned to it and not in the lock yet."""
        allocations = list(held.prefixes if held else ())
        for prefix in self.plan.pinned.get(name, ()):
            # A network of that size exists, so what was given out in it becomes part of it.
            allocations = [part for part in allocations if not prefix.covers(part.reserve)]
            if not any(allocation.reserve.overlaps(prefix) for allocation in allocations):
                allocations.append(lock.Allocation(prefix=prefix, reserve=prefix))
        return SiteRequest(name, tuple(allocations), tuple(taken))

    def _grant(self, site: SiteRequest) -> tuple[tuple[lock.Allocation, ...], Placement]:
        """A site's prefixes and its new subnets, of every family."""
        # Excluded inside a site's own prefix are live subnets that nothing is allocated from.
        excluded = (exclusion.prefix for exclusion in self.plan.exclude)
        site = replace(site, taken=(*site.taken, *excluded))
        # A family that left the pools keeps what it has.
        allocations = [held for held in site.allocations if held.prefix.family not in self.pools]
        placed: Placement = {}
        for pool in self.pools.values():
            granted, placement = pool.grant(site)
            allocations += granted
            placed |= placement
        return tuple(sorted(allocations, key=lambda held: held.prefix)), placed


class ServicePool:
    """What is free in the pools for Services, one space a family.

    Each cluster has a range of its own there; shared clusters use one and the same inside.
    """

    def __init__(
        self, plan: PlanDocument, limits: CloudLimits, held: Mapping[str, lock.ServiceRangeLock]
    ) -> None:
        """Withdraw what others have: `held` are the ranges that stay where they are."""
        self._plan, self._held = plan, held
        taken = [prefix for prefix, _ in withdrawn(plan, limits)]
        taken += (exclusion.prefix for exclusion in plan.service_exclusions())
        # Pins of clusters that come later in this run, too: none must be given away first.
        taken += (pin.prefix for pin in plan.service_pins())
        taken += chain.from_iterable(ranges.vip_ranges for ranges in held.values())
        wanted = [cluster.services for cluster in plan.clusters.values()]
        self._largest = {
            family: min((services.length_of(family) for services in wanted), default=0)
            for family in Family
        }
        self._spaces = {
            family: Space(family, plan.pools.services, taken)
            for family in plan.pools.service_families
        }

    def grant(self, name: str) -> lock.ServiceRangeLock:
        """A cluster's ranges, with one of each family that it lacks; PlanRefused if none fits."""
        wanted, held = self._plan.clusters[name].services, self._held.get(name)
        pairs = {pair.vip_range.family: pair for pair in held.pairs} if held else {}
        for family in self._spaces.keys() - pairs.keys():
            vip_range = wanted.pinned(family) or self._take(name, wanted.length_of(family), family)
            is_own = wanted.mode is ServiceMode.UNIQUE
            service_cidr = vip_range if is_own else self._shared(name, vip_range)
            pairs[family] = lock.ServiceMapping(vip_range, service_cidr)
        (hub, own), (hub_v6, own_v6) = pairs[Family.V4], pairs.get(Family.V6, (None, None))
        return lock.ServiceRangeLock(
            mode=wanted.mode, prefix=own, hub_prefix=hub, prefix_v6=own_v6, hub_prefix_v6=hub_v6
        )

    def _take(self, name: str, length: int, family: Family) -> Prefix:
        space = self._spaces[family]
        # The smallest free block: a Service range never grows, because Kubernetes cannot resize it.
        # The largest ranges leave nothing behind that is too small for others, wherever they are.
        vip_range = space.packed(length, name, share=1 if length == self._largest[family] else 4)
        if vip_range is None:
            room = "pools.services has nothing free"
            if free := next(space.blocks(), None):
                room = f"the largest free block of pools.services is {free}"
            message = f"{name} needs a /{length} for Services, but {room}"
            path: KeyPath = ("clusters", name, "services", key_of("length", family))
            remedy = "add a prefix or ask for less"
            raise lock.PlanRefused([error(message, path, ("pools", "services"), remedy)])
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
            raise lock.PlanRefused([error(message, path, beside, remedy)])
        # From the beginning: all shared clusters have the same addresses inside, whatever their
        # sizes.
        return shared._replace(length=vip_range.length)


def declares_growth(cluster: Cluster) -> bool:
    """Whether addresses are reserved for more nodes than there are."""
    return bool(cluster.grow_to) or any(pool.grow_to for pool in cluster.node_pools.values())


def _reserve(cluster: Cluster, requests: Iterable[SubnetRequest], taken: Iterable[Prefix]) -> int:
    """Addresses to keep together: what the subnets take, scaled to the declared number of nodes."""
    if not declares_growth(cluster):
        return 0
    # For IPv4 alone: an IPv6 site has 256 subnets from the first day.
    subnets = sum(request.size for request in requests if request.family is Family.V4)
    subnets += sum(prefix.size for prefix in taken if prefix.family is Family.V4)
    declared = sum(pool.declared for pool in cluster.node_pools.values())
    return max(subnets, subnets * max(cluster.grow_to or 0, declared) // max(declared, 1), 1)
