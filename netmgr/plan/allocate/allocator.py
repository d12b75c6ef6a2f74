"""From the plan and what stays of the previous lock to the next lock.

What the lock holds never moves: it is an input. The order of keys in the plan decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from netmgr.documents.diagnostics import KeyPath
from netmgr.documents.sites import HUB
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan import lock
from netmgr.plan.allocate import subnetting
from netmgr.plan.allocate.demand import SubnetRequest
from netmgr.plan.allocate.pool import AddressPool, Placement, SiteRequest
from netmgr.plan.allocate.service_ranges import ServicePool
from netmgr.plan.allocate.space import Space
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import Cluster, PlanDocument
from netmgr.prefixes import Family, Prefix, merge


class Allocator:
    """One run of the allocation. It changes neither the plan nor the lock it is given."""

    def __init__(
        self,
        plan: PlanDocument,
        held: lock.LockDocument | None,
        limits: CloudLimits,
        *,
        hub_moves: bool = False,
        service_moves: Collection[str] = (),
        reserving: bool = True,
    ) -> None:
        """Prepare what is free.

        Args:
            plan: what is asked for.
            held: the lock so far, without what is to move.
            limits: the cloud's, with the plan's quotas in place.
            hub_moves: whether the hub gets other prefixes.
            service_moves: clusters whose Services get other ranges.
            reserving: whether new reserves are made for declared growth.
        """
        self.plan = plan
        self.limits = limits
        self.reserving = reserving
        self.hub = held.hub if held and not hub_moves else None
        self.clusters = held.clusters if held else {}
        self.service_moves = service_moves
        self.pools = {family: self._pool(family) for family in plan.pools.families}
        staying = (
            cluster.services for name, cluster in self.clusters.items() if name not in service_moves
        )
        self.services = ServicePool(plan, limits, staying)
        self.fixed_families = plan.pools.service_families

    def run(self) -> lock.LockDocument:
        """The next lock.

        Raises:
            PlanRefused: something does not fit.
        """
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
            plan_digest=lock.digest_of(self.plan),
        )

    def _rank(self, name: str) -> tuple[bool, int, str]:
        """Declared growth first, then the largest, so that what is hard to fit finds room."""
        cluster = self.plan.clusters[name]
        size = sum(pool.capacity * pool.blocks_per_node for pool in cluster.node_pools.values())
        return not declares_growth(cluster), -size, name

    def _pool(self, family: Family) -> AddressPool:
        prefixes = merge(prefix for prefix in self.plan.pools.nodes if prefix.family is family)
        pool = AddressPool(Space(family, prefixes))
        for prefix, holder in self._held_prefixes():
            if prefix.family is family:
                pool.hold(prefix, holder)
        return pool

    def _held_prefixes(self) -> Iterator[tuple[Prefix, str]]:
        for forbidden in (*self.limits.forbidden, *SPECIAL_USE):
            yield forbidden, "special use"
        for exclusion in self.plan.exclude:
            yield exclusion.prefix, f"excluded: {exclusion.reason or exclusion.prefix}"
        for owner, prefixes in self.plan.pinned.items():
            yield from ((prefix, owner) for prefix in prefixes)
        sites = {name: held.prefixes for name, held in self.clusters.items()}
        if self.hub:
            sites[HUB] = self.hub.prefixes
        for name, allocations in sites.items():
            # The whole reserve: growth that was declared must find it free later.
            yield from ((allocation.reserve, name) for allocation in allocations)

    def _grant(
        self,
        name: str,
        before: Iterable[lock.Allocation],
        requests: Collection[SubnetRequest],
        taken: Iterable[Prefix],
        reserve: int,
    ) -> tuple[tuple[lock.Allocation, ...], Placement]:
        """A site's prefixes and its new subnets, of every family."""
        held = self._with_pinned(name, before)
        # Excluded inside a site's own prefix are live subnets that nothing is allocated from.
        taken = (*taken, *(exclusion.prefix for exclusion in self.plan.exclude))
        placed: Placement = {}
        allocations: list[lock.Allocation] = []
        for family, pool in self.pools.items():
            own = tuple(allocation for allocation in held if allocation.prefix.family is family)
            subnets = tuple(request for request in requests if request.family is family)
            granted, placement = pool.grant(SiteRequest(name, own, taken, subnets, reserve))
            allocations += granted
            placed |= placement
        # A family that left the pools keeps what it has.
        allocations += (
            allocation for allocation in held if allocation.prefix.family not in self.pools
        )
        return tuple(sorted(allocations, key=lambda allocation: allocation.prefix)), placed

    def _with_pinned(self, name: str, before: Iterable[lock.Allocation]) -> list[lock.Allocation]:
        held = list(before)
        for prefix in self.plan.pinned.get(name, ()):
            if not any(allocation.reserve.overlaps(prefix) for allocation in held):
                held.append(lock.Allocation(prefix=prefix, reserve=prefix))
        return held

    def _hub(self) -> lock.HubLock:
        before = self.hub
        held = before.routers if before else None
        routers = subnetting.FixedSubnet(
            ("routers",), ("hub", "routers"), HUB, held, hosts=self.plan.hub.routers
        )
        # Subnets in use cannot be resized in a cloud, so that more seats take another subnet.
        researchers = list(self._researchers(before.researchers if before else ()))
        every = (routers, *researchers)
        requests: list[SubnetRequest] = []
        taken: list[Prefix] = []
        for subnet in every:
            requests += subnet.requests(self.fixed_families, self.limits)
            taken += subnet.taken
        prefixes, placed = self._grant(HUB, before.prefixes if before else (), requests, taken, 1)
        return lock.HubLock(
            prefixes=prefixes,
            routers=routers.complete(placed, self.limits),
            researchers=tuple(subnet.complete(placed, self.limits) for subnet in researchers),
        )

    def _researchers(self, held: tuple[lock.Subnet, ...]) -> Iterator[subnetting.FixedSubnet]:
        """The existing subnets, and one more if they have too few addresses."""
        path: KeyPath = ("hub", "researchers")
        for number, subnet in enumerate(held):
            yield subnetting.FixedSubnet(("researchers", str(number)), path, HUB, subnet)
        seats = sum(subnet.prefix.size - self.limits.reserved for subnet in held)
        missing = self.plan.hub.researchers - seats
        if missing > 0:
            yield subnetting.FixedSubnet(
                ("researchers", str(len(held))), path, HUB, None, seats=missing
            )

    def _cluster(self, name: str) -> lock.ClusterLock:
        """A cluster's entry; what no single free block holds is divided into several segments."""
        # IPv6 is never short: a site's first prefix holds 256 subnets.
        space = self.pools[Family.V4].space
        before = space.size
        try:
            return self._subnetted(name, None)
        except lock.PlanRefused:
            # If room was found, something else is wrong, which smaller segments would not change.
            sizes = self._pieces(name) if space.size == before else None
            if sizes is None:
                raise
        return self._subnetted(name, sizes)

    def _node_pools(self, name: str) -> dict[str, lock.NodePoolLock]:
        held = self.clusters.get(name)
        pools = held.node_pools if held else {}
        cluster, families = self.plan.clusters[name], self.plan.pools.families
        return subnetting.with_pinned(name, cluster, pools, self.limits, families)

    def _nat(self, name: str) -> subnetting.FixedSubnet:
        held = self.clusters.get(name)
        path: KeyPath = ("clusters", name, "nat_hosts")
        subnet, hosts = held.nat if held else None, self.plan.clusters[name].nat_hosts
        return subnetting.FixedSubnet(("nat",), path, name, subnet, hosts=hosts)

    def _pieces(self, name: str) -> dict[str, list[int]] | None:
        held, pools, nat = self.clusters.get(name), self._node_pools(name), self._nat(name)
        lacks = {
            pool: (spec, subnetting.missing_nodes(spec, pools.get(pool)))
            for pool, spec in self.plan.clusters[name].node_pools.items()
        }
        # What is large has the fewest blocks to choose from; the name decides between equals, so
        # that every run divides alike.
        largest_first = sorted(lacks.items(), key=lambda lack: (-lack[1][1], lack[0]))
        own = self._with_pinned(name, held.prefixes if held else ())
        own_v4 = [allocation for allocation in own if allocation.prefix.family is Family.V4]
        taken = (*nat.taken, *subnetting.taken_by_pools(pools))
        free = self.pools[Family.V4].spaces(own_v4, taken)
        # The NAT hosts' subnet cannot be divided, so it goes first.
        fixed = nat.requests([Family.V4], self.limits)
        return subnetting.pieces(free, fixed, dict(largest_first), self.limits)

    def _subnetted(self, name: str, sizes: dict[str, list[int]] | None) -> lock.ClusterLock:
        cluster, held = self.plan.clusters[name], self.clusters.get(name)
        pools, nat, families = self._node_pools(name), self._nat(name), self.plan.pools.families
        new = subnetting.missing_subnets(name, cluster, pools, families, self.limits, sizes)
        # Together, so that one prefix is found that holds all of the cluster's subnets.
        requests = [*new.requests, *nat.requests(self.fixed_families, self.limits)]
        taken = [*nat.taken, *subnetting.taken_by_pools(pools)]
        # Reserves are for IPv4 alone: an IPv6 site has 256 subnets from the first day.
        wanted = sum(request.size for request in requests if request.family is Family.V4)
        reserve = _reserve(cluster, wanted, taken) if self.reserving else 0
        before = held.prefixes if held else ()
        prefixes, placed = self._grant(name, before, requests, taken, reserve)
        services = held.services if held and name not in self.service_moves else None
        return lock.ClusterLock(
            prefixes=prefixes,
            services=self.services.grant(name, services),
            nat=nat.complete(placed, self.limits),
            node_pools=subnetting.complete(cluster, pools, new, placed, self.limits),
        )


def declares_growth(cluster: Cluster) -> bool:
    """Whether addresses are reserved for more nodes than there are."""
    return bool(cluster.grow_to) or any(pool.grow_to for pool in cluster.node_pools.values())


def _reserve(cluster: Cluster, wanted: int, taken: Iterable[Prefix]) -> int:
    """Addresses to keep together: what the subnets take, scaled to the declared number of nodes."""
    if not declares_growth(cluster):
        return 0
    subnets = wanted + sum(prefix.size for prefix in taken if prefix.family is Family.V4)
    declared = sum(pool.declared for pool in cluster.node_pools.values())
    return max(subnets, subnets * max(cluster.grow_to or 0, declared) // max(declared, 1), 1)
