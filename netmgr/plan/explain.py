"""Whose an address is in the plan, which key of which document made it so, and what happens to its packets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from netmgr.config import SPECIAL_USE
from netmgr.plan import nodes
from netmgr.plan.document import PlanDocument, Services
from netmgr.plan.lock import LockDocument, Subnet
from netmgr.prefixes import Address, Family, Prefix
from netmgr.sites import HUB


@dataclass(frozen=True, slots=True)
class Answer:
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


@dataclass(frozen=True, slots=True)
class _Asked:
    plan: PlanDocument
    lock: LockDocument
    address: Address

    def answer(
        self, role: str, prefix: Prefix, because: str, traffic: str, *, cluster: str = "", node: str = ""
    ) -> Answer:
        return Answer(str(self.address), role, cluster, node, str(prefix), because, traffic)


NATIVE = "native to the hub and within its cluster; masqueraded as the node toward the internet"
NOWHERE = "nobody sends to it"


def explain(plan: PlanDocument, lock: LockDocument, address: Address) -> Answer:
    """Explain one address. The most particular owner answers first."""
    asked = _Asked(plan, lock, address)
    for look in (_node, _machine, _service, _excluded, _site, _pinned, _pool):
        if found := look(asked):
            return found
    text = "no prefix of plan.yaml or its lock holds it"
    return asked.answer("internet", address.prefix, text, "counted; pods reach it masqueraded as their node")


Look = Callable[[_Asked], Answer | None]


def _node(asked: _Asked) -> Answer | None:
    node = nodes.owning(asked.lock, asked.address)
    if node is None:
        return None
    held = asked.lock.clusters[node.cluster].node_pools[node.pool]
    because = f"lock: clusters.{node.cluster}.node_pools.{node.pool}.segments[{held.segments.index(node.segment)}]"
    spec = asked.plan.clusters.get(node.cluster)
    pool = spec.node_pools.get(node.pool) if spec else None
    planned = "" if pool and node.index < pool.needed else ", a place for growth that no planned node has yet"
    for block in node.blocks:
        if block.holds(asked.address):
            return asked.answer("pod", block, because + planned, NATIVE, cluster=node.cluster, node=node.name)
    traffic = "native to the hub and within its cluster"
    own = asked.address.prefix
    return asked.answer("node", own, because + planned, traffic, cluster=node.cluster, node=node.name)


def _machine(asked: _Asked) -> Answer | None:
    hub = asked.lock.hub
    if asked.address in _own(hub.routers):
        prefix = _holding(hub.routers, asked.address)
        return asked.answer("router", prefix, "lock: hub.routers", "reaches every cluster", cluster=HUB)
    for place, subnet in enumerate(hub.researchers):
        if any(prefix.holds(asked.address) for prefix in subnet.prefixes):
            traffic = "keeps its address toward every cluster's nodes and pods; Services through their NAT hosts"
            prefix = _holding(subnet, asked.address)
            return asked.answer("researcher", prefix, f"lock: hub.researchers[{place}]", traffic, cluster=HUB)
    for name, held in asked.lock.clusters.items():
        if asked.address in _own(held.nat):
            pairs = held.services.pairs
            ways = [f"{seen}, translated to {real}" if seen != real else str(real) for seen, real in pairs]
            traffic = f"the hub's way to Services: {'; '.join(ways)}"
            prefix = _holding(held.nat, asked.address)
            return asked.answer("NAT host", prefix, f"lock: clusters.{name}.nat", traffic, cluster=name)
    return None


def _own(subnet: Subnet) -> tuple[Address, ...]:
    return (*subnet.addresses, *subnet.addresses_v6)


def _holding(subnet: Subnet, address: Address) -> Prefix:
    return next(prefix for prefix in subnet.prefixes if prefix.holds(address))


def _service(asked: _Asked) -> Answer | None:
    for name, held in asked.lock.clusters.items():
        for seen, real in held.services.pairs:
            if seen.holds(asked.address):
                return _seen_service(asked, name, seen, real)
    for shared in asked.plan.shared_services:
        if shared.holds(asked.address):
            traffic = "means a Service of the own cluster in every shared cluster; no route leads to it from outside"
            return asked.answer("Service", shared, "plan.yaml: shared_services", traffic)
    return None


def _seen_service(asked: _Asked, name: str, seen: Prefix, real: Prefix) -> Answer:
    held, spec = asked.lock.clusters[name], asked.plan.clusters.get(name)
    how = _translation(spec.services if spec else Services())
    hosts = ", ".join(map(str, held.nat.of_family(seen.family)))
    traffic = f"reached from the hub through {hosts}; {how}"
    if seen != real:
        inside = seen.counterpart(asked.address, real)
        traffic = f"the hub's name for {inside} inside {name}; {traffic}"
    key = "hub_prefix" if seen.family is Family.V4 else "hub_prefix_v6"
    return asked.answer("Service", seen, f"lock: clusters.{name}.services.{key}", traffic, cluster=name)


def _translation(services: Services) -> str:
    seen = "as the NAT host" if services.source == "snat" else "with the client's own address"
    return f"translated by {services.translation}, seen by the Service {seen}"


def _site(asked: _Asked) -> Answer | None:
    """Held by the hub or a cluster, but nobody's in particular."""
    sites = {HUB: asked.lock.hub.prefixes} | {name: held.prefixes for name, held in asked.lock.clusters.items()}
    for name, allocations in sites.items():
        for place, held in enumerate(allocations):
            key = f"{name if name == HUB else f'clusters.{name}'}.prefixes[{place}]"
            if held.prefix.holds(asked.address):
                return asked.answer("unused", held.prefix, f"lock: {key}.prefix", NOWHERE, cluster=name)
            if held.reserve.holds(asked.address):
                return asked.answer("reserve", held.reserve, f"lock: {key}.reserve", NOWHERE, cluster=name)
    return None


def _excluded(asked: _Asked) -> Answer | None:
    """Nobody's, or inside a site's own prefix a live subnet that netmgr did not make."""
    for place, exclusion in enumerate(asked.plan.exclude):
        if exclusion.prefix.holds(asked.address):
            because = f"plan.yaml: exclude[{place}] {exclusion.reason}".rstrip()
            return asked.answer("excluded", exclusion.prefix, because, "netmgr plans nothing there")
    return None


def _pinned(asked: _Asked) -> Answer | None:
    for owner, prefixes in asked.plan.pinned.items():
        for place, prefix in enumerate(prefixes):
            if prefix.holds(asked.address):
                because = f"plan.yaml: pinned.{owner}[{place}]"
                return asked.answer("pinned", prefix, because, "netmgr plans nothing there", cluster=owner)
    return None


def _pool(asked: _Asked) -> Answer | None:
    for prefix in SPECIAL_USE:
        if prefix.holds(asked.address):
            return asked.answer("special use", prefix, "no document: RFC 6890", "never internet, never routed")
    for key, prefixes in (("nodes", asked.plan.pools.nodes), ("services", asked.plan.pools.services)):
        for place, prefix in enumerate(prefixes):
            if prefix.holds(asked.address):
                return asked.answer("free", prefix, f"plan.yaml: pools.{key}[{place}]", NOWHERE)
    return None
