"""Who has an address in the plan, which key of which document says so, and where its packets go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from netmgr.documents.diagnostics import dotted, listed
from netmgr.documents.sites import HUB
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan import machines
from netmgr.plan.document import PlanDocument, Services, key_of
from netmgr.plan.lock import LockDocument, ServiceRangeLock
from netmgr.prefixes import Address, Prefix


class Ownership(NamedTuple):
    """Who has a prefix, and what its addresses are.

    `role` is node, pod, NAT host, router, researcher, Service, reserve, unused, free, excluded,
    pinned, special use or internet; `cluster` and `node` are empty where it has none. `because`
    names the document and key that say so. `traffic` says where packets to or from it are
    masqueraded or translated.
    """

    role: str
    cluster: str
    node: str
    prefix: Prefix
    because: str
    traffic: str


NATIVE = "native to the hub and within its cluster; masqueraded as the node toward the internet"
NOWHERE = "nobody sends to it"
UNPLANNED = "netmgr plans nothing there"


def explain(plan: PlanDocument, lock: LockDocument, address: Address) -> Ownership:
    """Explain one address. The most specific owner answers first."""
    # Lazy, and in this order: the first that holds the address is the most specific.
    owners = chain(
        _node(plan, lock, address),
        _machines(lock, address),
        _services(plan, lock, address),
        _others(plan, lock),
    )
    text = "no prefix of plan.yaml or its lock holds it"
    internet = "counted; pods reach it masqueraded as their node"
    nobody = Ownership("internet", "", "", address.prefix, text, internet)
    return next((owner for owner in owners if owner.prefix.holds(address)), nobody)


def _node(plan: PlanDocument, lock: LockDocument, address: Address) -> Iterator[Ownership]:
    node = machines.node_owning(lock, address)
    if node is None:
        return
    segments = lock.clusters[node.cluster].node_pools[node.pool].segments
    number = segments.index(node.segment)
    because = f"lock: clusters.{node.cluster}.node_pools.{node.pool}.segments[{number}]"
    cluster = plan.clusters.get(node.cluster)
    spec = cluster.node_pools.get(node.pool) if cluster else None
    # The lock has room for more nodes than there are; their addresses are decided already.
    if spec is None or node.index >= spec.needed:
        because += ", a place for growth that no planned node has yet"
    for block in node.blocks:
        yield Ownership("pod", node.cluster, node.name, block, because, NATIVE)
    traffic = "native to the hub and within its cluster"
    yield Ownership("node", node.cluster, node.name, address.prefix, because, traffic)


def _machines(lock: LockDocument, address: Address) -> Iterator[Ownership]:
    hub = lock.hub
    if address in chain.from_iterable(hub.routers.hosts):
        for prefix in hub.routers.prefixes:
            yield Ownership("router", HUB, "", prefix, "lock: hub.routers", "reaches every cluster")
    for number, subnet in enumerate(hub.researchers):
        because = f"lock: hub.researchers[{number}]"
        traffic = (
            "keeps its address toward every cluster's nodes and pods; "
            "Services through their NAT hosts"
        )
        for prefix in subnet.prefixes:
            yield Ownership("researcher", HUB, "", prefix, because, traffic)
    for name, held in lock.clusters.items():
        if address in chain.from_iterable(held.nat.hosts):
            traffic = f"the hub's way to Services: {'; '.join(_ways(held.services))}"
            for prefix in held.nat.prefixes:
                yield Ownership("NAT host", name, "", prefix, f"lock: clusters.{name}.nat", traffic)


def _ways(services: ServiceRangeLock) -> Iterator[str]:
    for vip_range, service_cidr in services.pairs:
        inside = "" if vip_range == service_cidr else f", translated to {service_cidr}"
        yield f"{vip_range}{inside}"


def _services(plan: PlanDocument, lock: LockDocument, address: Address) -> Iterator[Ownership]:
    for name, held in lock.clusters.items():
        spec = plan.clusters.get(name)
        source = (spec.services if spec else Services()).source
        client = "as the NAT host" if source == "snat" else "with the client's own address"
        how = f"translated there, seen by the Service {client}"
        for vip_range, service_cidr in held.services.pairs:
            hosts = listed(held.nat.of_family(vip_range.family))
            traffic = f"reached from the hub through {hosts}; {how}"
            if vip_range != service_cidr and vip_range.holds(address):
                inside = vip_range.counterpart(address, service_cidr)
                traffic = f"the hub's name for {inside} inside {name}; {traffic}"
            key = key_of("hub_prefix", vip_range.family)
            because = f"lock: clusters.{name}.services.{key}"
            yield Ownership("Service", name, "", vip_range, because, traffic)


def _others(plan: PlanDocument, lock: LockDocument) -> Iterator[Ownership]:
    for shared in plan.shared_services:
        traffic = (
            "means a Service of the own cluster in every shared cluster; "
            "no route leads to it from outside"
        )
        yield Ownership("Service", "", "", shared, "plan.yaml: shared_services", traffic)

    # Unused, or a live subnet of a site's own prefix that netmgr did not make.
    for number, exclusion in enumerate(plan.exclude):
        because = f"plan.yaml: exclude[{number}] {exclusion.reason}".rstrip()
        yield Ownership("excluded", "", "", exclusion.prefix, because, UNPLANNED)

    # What the hub or a cluster holds and has not given to a subnet.
    for name, allocations in lock.sites.items():
        place = HUB if name == HUB else f"clusters.{name}"
        for number, held in enumerate(allocations):
            because = f"lock: {place}.prefixes[{number}]"
            # The prefix before the reserve that covers it.
            yield Ownership("unused", name, "", held.prefix, f"{because}.prefix", NOWHERE)
            yield Ownership("reserve", name, "", held.reserve, f"{because}.reserve", NOWHERE)

    for prefix, key, owner in plan.pins():
        yield Ownership("pinned", owner, "", prefix, f"plan.yaml: {dotted(key)}", UNPLANNED)
    for prefix in SPECIAL_USE:
        traffic = "never internet, never routed"
        yield Ownership("special use", "", "", prefix, "no document: RFC 6890", traffic)
    for prefix, key, _ in plan.pools.keyed():
        yield Ownership("free", "", "", prefix, f"plan.yaml: pools.{dotted(key)}", NOWHERE)
