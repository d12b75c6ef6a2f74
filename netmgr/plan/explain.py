"""Who has an address in the plan, which key of which document says so, and where its packets go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from netmgr.documents.diagnostics import dotted
from netmgr.documents.sites import HUB
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.plan import machines
from netmgr.plan.document import PlanDocument, Services, key_of
from netmgr.plan.lock import LockDocument, ServiceRangeLock
from netmgr.prefixes import Address, Prefix


@dataclass(frozen=True, slots=True)
class AddressMeaning:
    """What an address is.

    `role` is node, pod, NAT host, router, researcher, Service, reserve, unused, free, excluded,
    pinned, special use or internet. `prefix` is the longest one that says so, and `because`
    names its document and key. `traffic` says where packets to or from it are masqueraded or
    translated.
    """

    address: str
    role: str
    cluster: str
    node: str
    prefix: str
    because: str
    traffic: str
    version: Literal[1] = 1
    """Of the answer's form."""


NATIVE = "native to the hub and within its cluster; masqueraded as the node toward the internet"
NOWHERE = "nobody sends to it"
UNPLANNED = "netmgr plans nothing there"


class _Owner(NamedTuple):
    """Who has a prefix; the fields are those of `AddressMeaning`."""

    role: str
    prefix: Prefix
    because: str
    traffic: str
    cluster: str = ""
    node: str = ""


def explain(plan: PlanDocument, lock: LockDocument, address: Address) -> AddressMeaning:
    """Explain one address. The most specific owner answers first."""
    # Lazy, and in this order: the first that holds the address is the most specific.
    owners = chain(
        _node(plan, lock, address),
        _machines(lock, address),
        _services(plan, lock, address),
        _set_apart(plan),
        _sites(lock),
        _rest(plan),
    )
    text = "no prefix of plan.yaml or its lock holds it"
    internet = "counted; pods reach it masqueraded as their node"
    nobody = _Owner("internet", address.prefix, text, internet)
    owner = next((owner for owner in owners if owner.prefix.holds(address)), nobody)
    role, prefix, because, traffic, cluster, node = owner
    return AddressMeaning(str(address), role, cluster, node, str(prefix), because, traffic)


def _node(plan: PlanDocument, lock: LockDocument, address: Address) -> Iterator[_Owner]:
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
        yield _Owner("pod", block, because, NATIVE, node.cluster, node.name)
    traffic = "native to the hub and within its cluster"
    yield _Owner("node", address.prefix, because, traffic, node.cluster, node.name)


def _machines(lock: LockDocument, address: Address) -> Iterator[_Owner]:
    hub = lock.hub
    if address in chain.from_iterable(hub.routers.hosts):
        for prefix in hub.routers.prefixes:
            yield _Owner("router", prefix, "lock: hub.routers", "reaches every cluster", HUB)
    for number, subnet in enumerate(hub.researchers):
        because = f"lock: hub.researchers[{number}]"
        traffic = (
            "keeps its address toward every cluster's nodes and pods; "
            "Services through their NAT hosts"
        )
        for prefix in subnet.prefixes:
            yield _Owner("researcher", prefix, because, traffic, HUB)
    for name, held in lock.clusters.items():
        if address in chain.from_iterable(held.nat.hosts):
            traffic = f"the hub's way to Services: {'; '.join(_ways(held.services))}"
            for prefix in held.nat.prefixes:
                yield _Owner("NAT host", prefix, f"lock: clusters.{name}.nat", traffic, name)


def _ways(services: ServiceRangeLock) -> Iterator[str]:
    for vip_range, service_cidr in services.pairs:
        inside = "" if vip_range == service_cidr else f", translated to {service_cidr}"
        yield f"{vip_range}{inside}"


def _services(plan: PlanDocument, lock: LockDocument, address: Address) -> Iterator[_Owner]:
    for name, held in lock.clusters.items():
        spec = plan.clusters.get(name)
        source = (spec.services if spec else Services()).source
        client = "as the NAT host" if source == "snat" else "with the client's own address"
        how = f"translated there, seen by the Service {client}"
        for vip_range, service_cidr in held.services.pairs:
            hosts = ", ".join(map(str, held.nat.of_family(vip_range.family)))
            traffic = f"reached from the hub through {hosts}; {how}"
            if vip_range != service_cidr and vip_range.holds(address):
                inside = vip_range.counterpart(address, service_cidr)
                traffic = f"the hub's name for {inside} inside {name}; {traffic}"
            key = key_of("hub_prefix", vip_range.family)
            because = f"lock: clusters.{name}.services.{key}"
            yield _Owner("Service", vip_range, because, traffic, name)


def _set_apart(plan: PlanDocument) -> Iterator[_Owner]:
    for shared in plan.shared_services:
        traffic = (
            "means a Service of the own cluster in every shared cluster; "
            "no route leads to it from outside"
        )
        yield _Owner("Service", shared, "plan.yaml: shared_services", traffic)

    # Unused, or a live subnet of a site's own prefix that netmgr did not make.
    for number, exclusion in enumerate(plan.exclude):
        because = f"plan.yaml: exclude[{number}] {exclusion.reason}".rstrip()
        yield _Owner("excluded", exclusion.prefix, because, UNPLANNED)


def _sites(lock: LockDocument) -> Iterator[_Owner]:
    """What the hub or a cluster holds and has not given to a subnet."""
    sites = {HUB: (HUB, lock.hub.prefixes)}
    sites |= {name: (f"clusters.{name}", held.prefixes) for name, held in lock.clusters.items()}
    for name, (key, allocations) in sites.items():
        for number, held in enumerate(allocations):
            because = f"lock: {key}.prefixes[{number}]"
            # The prefix before the reserve that covers it.
            yield _Owner("unused", held.prefix, f"{because}.prefix", NOWHERE, name)
            yield _Owner("reserve", held.reserve, f"{because}.reserve", NOWHERE, name)


def _rest(plan: PlanDocument) -> Iterator[_Owner]:
    for prefix, key, owner in plan.pins():
        yield _Owner("pinned", prefix, f"plan.yaml: {dotted(key)}", UNPLANNED, owner)
    for prefix in SPECIAL_USE:
        traffic = "never internet, never routed"
        yield _Owner("special use", prefix, "no document: RFC 6890", traffic)
    for prefix, key, _ in plan.pools.keyed():
        yield _Owner("free", prefix, f"plan.yaml: pools.{dotted(key)}", NOWHERE)
