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
            "accounting": {"rule_owner": plan.rule_owner},
        }
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
        return {**_KIND, "node": node, **place}, own

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
        return self._whole({**_KIND, **place}, own)

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
