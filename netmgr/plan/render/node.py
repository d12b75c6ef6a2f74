"""From a plan and its lock to each machine's node.yaml: nodes, the hub's routers, NAT hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import chain
from typing import Any

from netmgr.documents.sites import HUB, Role, SourceAddress
from netmgr.documents.special_use import PRIVATE_USE
from netmgr.plan import machines
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.derive import location_of
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.machines import PlannedHost, PlannedNode
from netmgr.prefixes import Prefix, merge

Mapping = dict[str, Any]
"""A node.yaml, in the order of a reader's questions; keys at their defaults are left out."""

_KIND: Mapping = {"apiVersion": "netmgr.io/v1alpha1", "kind": "Node"}


class Documents:
    """Every machine's node.yaml, as mappings that a caller may change."""

    def __init__(
        self, plan: PlanDocument, lock: LockDocument, reader_group: str | None = None
    ) -> None:
        """Prepare what all documents share; `reader_group` may read the ledger socket."""
        self._plan, self._lock = plan, lock
        # Between the first and the third part, which are a machine's own, and behind those. Every
        # document names every site, so that each machine keeps spokes apart by itself.
        self.sites: Mapping = {"sites": list(_sites(lock))}
        routers = [str(address) for hosts in lock.hub.routers.hosts for address in hosts]
        probed: Mapping = {"preflight": {"hub": routers}} if routers else {}
        # What all nodes of a cluster have, and no other machines.
        self._of_nodes = {name: _routes_back(plan, lock, name) | probed for name in lock.clusters}
        self.common: Mapping = {
            "internal": [str(prefix) for prefix in internal(plan)],
            "masquerade": True,
        }
        self._accounting: Mapping = {"rule_owner": plan.rule_owner}
        self._counts_zones = any(spec.zone for _, spec in plan.node_pools())
        if not self._counts_zones:
            self.common["accounting"] = self._accounting
        if reader_group is not None:
            is_number = reader_group.isascii() and reader_group.isdigit()
            self.common["reader_group"] = int(reader_group) if is_number else reader_group

    def machines(self) -> Iterator[PlannedHost | PlannedNode]:
        """Every machine of the plan: routers, NAT hosts, then nodes."""
        yield from machines.hosts(self._lock)
        for cluster, spec in self._plan.clusters.items():
            for pool, asked in spec.node_pools.items():
                for index in range(asked.nodes):
                    if node := machines.node(self._lock, cluster, pool, index):
                        yield node

    def of(self, machine: PlannedHost | PlannedNode) -> Mapping:
        return self._whole(*self.parts(machine))

    def parts(self, machine: PlannedHost | PlannedNode) -> tuple[Mapping, Mapping]:
        """First part and third part of a machine's document; the others are the same for all.

        With many clusters nearly all of a document is shared, and is written as text only once.
        """
        if isinstance(machine, PlannedNode):
            addresses, place = machine.hosts, {"site": machine.cluster}
            own = self._of_nodes[machine.cluster] | {"ranges": _texts(machine.blocks)}
        else:
            addresses, place = machine.addresses, {"role": str(machine.role), "site": machine.site}
            own = {}
            if machine.role is Role.NAT_HOST:
                own["nat"] = self._nat(machine.site) | {"addresses": list(map(str, addresses))}
        node = {"name": machine.name, "addresses": list(map(str, addresses))}
        pool = (machine.cluster, machine.pool) if isinstance(machine, PlannedNode) else None
        return {**_KIND, "node": node, **place}, own | self._accounting_of(pool)

    def template(self, cluster: str, role: Role = Role.NODE, pool: str = "") -> Mapping:
        """What all nodes (or NAT hosts) of a cluster share: no name, addresses or ranges.

        `netmgr kube node` adds what only the Node object knows. Nodes of a `pool` of single
        addresses ask the cloud, which chose them, for their ranges.
        """
        own: Mapping
        if role is Role.NAT_HOST:
            place, own = {"role": str(role), "site": cluster}, {"nat": self._nat(cluster)}
        else:
            place, own = {"site": cluster}, dict(self._of_nodes[cluster])
            spec = self._plan.clusters[cluster].node_pools[pool] if pool else None
            if spec and spec.single_addresses and self._plan.cloud is not Cloud.NONE:
                own["range_source"] = str(self._plan.cloud)
        nodes = (cluster, pool) if role is Role.NODE else None
        return self._whole({**_KIND, **place}, own | self._accounting_of(nodes))

    def _accounting_of(self, pool: tuple[str, str] | None) -> Mapping:
        """What a node pool's nodes count, where that depends on their zone; other hosts no pods."""
        if not self._counts_zones:
            return {}
        classes = {"classes": _zone_classes(self._plan, self._lock, *pool)} if pool else {}
        return {"accounting": self._accounting | classes}

    def _whole(self, head: Mapping, own: Mapping) -> Mapping:
        # Shared parts are copied, because a caller may change its document.
        return deepcopy(head | self.sites | own | self.common)

    def _nat(self, cluster: str) -> Mapping:
        held = self._lock.clusters[cluster]
        segments = [segment for pool in held.node_pools.values() for segment in pool.segments]
        # Where the cluster's machines have their own addresses, and no pod has one.
        layouts = chain.from_iterable(segment.layouts for segment in segments)
        hosts = chain.from_iterable(layout.below_pods for layout in layouts)
        return {
            # All ranges, so that one host can take over for another. The hub's routes say which
            # part reaches which host.
            "services": [
                {"vip_range": str(vip_range), "service_cidr": str(service_cidr)}
                for vip_range, service_cidr in held.services.pairs
            ],
            "source": str(self._plan.clusters[cluster].services.source),
            "machines": _texts([*held.nat.prefixes, *hosts]),
        }


def _sites(lock: LockDocument) -> Iterator[Mapping]:
    """The hub and every cluster, with what each holds and where the hub sees its Services."""
    # With its reserves: a cluster that grows into its own changes no other machine's document.
    yield {"name": HUB, "prefixes": _texts(held.reserve for held in lock.hub.prefixes)}
    # A tombstone stays a site: its machines may still be running.
    for name, held in lock.clusters.items():
        prefixes = _texts(allocation.reserve for allocation in held.prefixes)
        yield {"name": name, "prefixes": prefixes, "services": _texts(held.services.vip_ranges)}


def _zone_classes(plan: PlanDocument, lock: LockDocument, cluster: str, pool: str) -> list[Mapping]:
    """Classes of traffic by how far it goes, as clouds price it; every pool has these names."""
    region, zone = own = _place(plan, cluster, pool)
    near, far, nearest = list[Prefix](), list[Prefix](), list[Prefix]()
    for site in _sites(lock):
        prefixes = map(Prefix.parse, (*site["prefixes"], *site.get("services", ())))
        (near if _place(plan, site["name"])[0] == region else far).extend(prefixes)
    for name, other, segment in machines.segments(lock):
        if zone and _place(plan, name, other) == own:
            nearest += segment.prefixes
    same_zone = merge(nearest)
    # A region with one zone has the same prefixes, and a prefix is of one class.
    same_region = [prefix for prefix in merge(near) if prefix not in same_zone]
    classes = {"same-zone": same_zone, "same-region": same_region, "other-region": far}
    return [{"name": name, "prefixes": _texts(parts)} for name, parts in classes.items() if parts]


def _place(plan: PlanDocument, site: str, pool: str = "") -> tuple[str | None, str | None]:
    """Region and zone; None where the plan says nothing, as of a cluster that left it."""
    region = location_of(plan, site) if plan.is_site(site) else None
    spec = plan.clusters[site].node_pools.get(pool) if site in plan.clusters else None
    return region, spec.zone if spec else None


def _texts(prefixes: Iterable[Prefix]) -> list[str]:
    return [str(prefix) for prefix in merge(prefixes)]


def _routes_back(plan: PlanDocument, lock: LockDocument, cluster: str) -> Mapping:
    """A cluster's routes to the researchers, where its Services see the researchers' addresses."""
    spec = plan.clusters.get(cluster)
    if spec is None or spec.services.source is not SourceAddress.PRESERVE:
        return {}
    # Answers have to pass the host that translated the request. It is always the first one: an
    # answer's destination, the client, does not tell through which host its request came.
    clients = merge(prefix for subnet in lock.hub.researchers for prefix in subnet.prefixes)
    routes = [
        {"to": str(client), "via": str(gateway)}
        for client in clients
        for gateway in lock.clusters[cluster].nat.of_family(client.family)[:1]
    ]
    return {"routes": routes} if routes else {}


def internal(plan: PlanDocument) -> tuple[Prefix, ...]:
    """What no machine of the plan counts as internet: pools, pinned and shared, private ranges."""
    pinned = (pin.prefix for pin in plan.pins())
    pools = (*plan.pools.nodes, *plan.pools.services)
    return tuple(merge((*PRIVATE_USE, *pools, *pinned, *plan.shared_services)))
