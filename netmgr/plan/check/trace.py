"""A packet followed through the derived network, hop by hop, as a cloud forwards it.

Sources: Microsoft, "Virtual network traffic routing" (how a route is selected) and "Virtual network
peering" (forwarded traffic).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from netmgr.documents.special_use import PRIVATE_USE
from netmgr.plan.network import CloudRoute, Direction, Network, NextHop, Subnet, VirtualNetwork
from netmgr.prefixes import Address, Family, Prefix, PrefixTable

INTERNET = "internet"
MOST_HOPS = 8

_EVERYTHING = {family: Prefix(family, 0, 0) for family in Family}
_CLOUD = "the cloud's own route"


@dataclass(frozen=True, slots=True)
class Path:
    """What became of one packet.

    Attributes:
        arrived: subnet, Services or "internet" it reached; empty if it was dropped.
        owner: whose that is.
        steps: what happened on the way; the last says why it ended.
    """

    source: Address
    destination: Address
    arrived: str
    owner: str
    steps: tuple[str, ...]


class _Hop(NamedTuple):
    kind: NextHop
    origin: str
    prefix: Prefix
    via: Address | None = None
    peer: str = ""


class _Outcome(NamedTuple):
    """What a packet meets in one subnet: where it goes on from there, or how it ends."""

    steps: tuple[str, ...]
    arrived: str = ""
    owner: str = ""
    onward: tuple[VirtualNetwork, Subnet] | None = None


class Tracer:
    def __init__(self, network: Network) -> None:
        self._system = network.system_routes
        self._routes: dict[tuple[str, str], PrefixTable[_Hop]] = {}
        self._networks = {peer.name: peer for peer in network.networks}
        self._tables = {table.name: table.routes for table in network.tables}
        self._groups = {group.name: group.rules for group in network.groups}
        self._forwarded = {
            (peering.network, peering.remote): peering.forwarded for peering in network.peerings
        }
        self._appliances = {
            address: (appliance, virtual_network, subnet)
            for appliance in network.appliances
            for address in appliance.addresses
            for virtual_network in network.networks
            if (subnet := virtual_network.subnet_of(address))
        }

    def trace(
        self, network: VirtualNetwork, subnet: Subnet, source: Address, destination: Address
    ) -> Path:
        """Follow a packet that a machine of `subnet` sends."""
        steps: list[str] = []
        # Routes of a faulty plan may lead in circles.
        for _ in range(MOST_HOPS):
            outcome = self._step(network, subnet, source, destination)
            steps += outcome.steps
            if outcome.onward is None:
                return Path(source, destination, outcome.arrived, outcome.owner, tuple(steps))
            network, subnet = outcome.onward
        steps.append(f"dropped: still on its way after {MOST_HOPS} hops")
        return Path(source, destination, "", "", tuple(steps))

    def _step(
        self, network: VirtualNetwork, subnet: Subnet, source: Address, destination: Address
    ) -> _Outcome:
        # Security groups see a packet before it is routed, and again before it is delivered.
        if refusal := self._refused(subnet, Direction.OUTBOUND, destination):
            return _Outcome((refusal,))
        key = (network.name, subnet.table)
        if key not in self._routes:
            self._routes[key] = self._table(network, subnet.table)
        match = self._routes[key].match(destination)
        if match is None or match[1].kind is NextHop.NONE:
            route = f"{match[0]} leads to None ({match[1].origin})" if match else "it has no route"
            return _Outcome((f"dropped in {subnet.name}: {route}",))
        hop = match[1]
        if hop.kind is NextHop.APPLIANCE:
            return self._to_appliance(network, subnet, hop, (source, destination))
        if hop.kind is NextHop.LOCAL:
            return self._delivered(network, hop.peer, source, destination)
        if _held(PRIVATE_USE, destination):
            why = f"leaves {subnet.name} toward the internet, which has no private addresses"
            return _Outcome((f"dropped: {why}",))
        return _Outcome((f"leaves {subnet.name} for the internet",), INTERNET, INTERNET)

    def _table(self, network: VirtualNetwork, name: str) -> PrefixTable[_Hop]:
        routes = self._tables.get(name, ())
        own = (_Hop(route.hop, f"route table {name}", route.prefix, route.via) for route in routes)
        # Later entries win over earlier ones of the same prefix: the table's over the cloud's.
        hops = chain(self._built_in(network, routes), own)
        return PrefixTable((hop.prefix, hop) for hop in hops)

    def _built_in(self, network: VirtualNetwork, routes: Iterable[CloudRoute]) -> Iterator[_Hop]:
        internet = _EVERYTHING.values() if self._system.internet else ()
        yield from (_Hop(NextHop.INTERNET, _CLOUD, everything) for everything in internet)
        # The cloud drops its None routes as soon as a table has a default route of its own.
        if all(route.prefix != _EVERYTHING[Family.V4] for route in routes):
            yield from (_Hop(NextHop.NONE, _CLOUD, prefix) for prefix in self._system.dropped)
        peers = [
            peer for peer in self._networks.values() if (network.name, peer.name) in self._forwarded
        ]
        # The own network last, because later entries win.
        for near in (*peers, network):
            for prefix in near.address_space:
                yield _Hop(NextHop.LOCAL, _CLOUD, prefix, peer=near.name)

    def _delivered(
        self, network: VirtualNetwork, name: str, source: Address, destination: Address
    ) -> _Outcome:
        target = self._networks[name or network.name]
        subnet = target.subnet_of(destination)
        if subnet is None:
            return _Outcome((f"dropped: no subnet of {target.name} has {destination}",))
        if refusal := self._not_taken(network, target, subnet, source):
            return _Outcome((refusal,))
        return _Outcome((f"arrives in {subnet.name}",), subnet.name, target.owner)

    def _to_appliance(
        self, network: VirtualNetwork, subnet: Subnet, hop: _Hop, packet: tuple[Address, Address]
    ) -> _Outcome:
        if hop.via not in self._appliances:
            return _Outcome((f"dropped: nobody has the next hop {hop.via}",))
        source, destination = packet
        appliance, home, inside = self._appliances[hop.via]
        # A cloud delivers to a next hop by peering alone, never through a third network.
        if home is not network and (network.name, home.name) not in self._forwarded:
            why = f"is in {home.name}, which {network.name} is not peered with"
            return _Outcome((f"dropped: the next hop {hop.via} {why}",))
        if refusal := self._not_taken(network, home, inside, source):
            return _Outcome((refusal,))
        step = f"{subnet.name} sends it to {appliance.name} ({hop.prefix}, {hop.origin})"
        for sources, destinations in appliance.drops:
            if _held(sources, source) and _held(destinations, destination):
                return _Outcome((step, f"dropped and counted by {appliance.name}: spoke to spoke"))
        for vip_range, service_cidr in appliance.translations:
            if vip_range.holds(destination):
                service = vip_range.counterpart(destination, service_cidr)
                why = f"{appliance.name} translates it to Service {service}"
                return _Outcome((step, why), f"{appliance.owner} Services", appliance.owner)
        return _Outcome((step,), onward=(home, inside))

    def _not_taken(
        self, network: VirtualNetwork, target: VirtualNetwork, subnet: Subnet, source: Address
    ) -> str:
        """Why a packet may not go from one network to a subnet of its peer; or empty."""
        is_own = _held(network.address_space, source)
        if network is target or is_own or self._forwarded.get((target.name, network.name)):
            return self._refused(subnet, Direction.INBOUND, source)
        accepted = "only what is sent there, not what is passed on"
        return f"dropped: {target.name} takes from {network.name} {accepted}"

    def _refused(self, subnet: Subnet, direction: Direction, peer: Address) -> str:
        """The security rule that drops it; or empty."""
        # The first rule that matches decides, in the order of priorities.
        for rule in sorted(self._groups.get(subnet.group, ()), key=lambda rule: rule.priority):
            if rule.direction is direction and _held(rule.peers, peer):
                why = f"dropped by security group {subnet.group}: {rule.name} of {subnet.name}"
                return "" if rule.allow else why
        return ""


def _held(prefixes: Iterable[Prefix], address: Address) -> bool:
    return any(prefix.holds(address) for prefix in prefixes)
