"""A packet followed through the derived network, hop by hop, as a cloud forwards it.

Sources: Microsoft, "Virtual network traffic routing" (how a route is selected) and "Virtual network
peering" (forwarded traffic).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import NamedTuple, TypeVar

from netmgr.documents.special_use import PRIVATE_USE
from netmgr.plan.network import (
    Appliance,
    CloudRoute,
    Direction,
    Network,
    NextHop,
    Subnet,
    VirtualNetwork,
)
from netmgr.prefixes import Address, Family, Prefix, PrefixTable

Value = TypeVar("Value")

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
        self._gateways = {gateway.name for gateway in network.gateways}
        self._routes: dict[tuple[str, str], PrefixTable[_Hop]] = {}
        self._networks = {peer.name: peer for peer in network.networks}
        self._tables = {table.name: table.routes for table in network.tables}
        # The first rule that matches decides, in the order of priorities.
        self._rules = {
            group.name: sorted(group.rules, key=lambda rule: rule.priority)
            for group in network.groups
        }
        self._forwarded = {
            (peering.network, peering.remote): peering.forwarded for peering in network.peerings
        }
        self._peers = grouped(
            (peering.network, self._networks[peering.remote]) for peering in network.peerings
        )
        self._appliances = dict(_appliances(network))
        # A router's name every spoke, and each spoke's packets look there.
        self._drops = {
            appliance.name: [tuple(map(_table, sides)) for sides in appliance.drops]
            for appliance in network.appliances
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
        hop = self._route(network, subnet, destination)
        if isinstance(hop, str):
            return _Outcome((hop,))
        if hop.kind is NextHop.APPLIANCE:
            return self._to_appliance(network, subnet, hop, (source, destination))
        if hop.kind is NextHop.LOCAL:
            return self._delivered(network, hop.peer, source, destination)
        if _held(PRIVATE_USE, destination):
            why = f"leaves {subnet.name} toward the internet, which has no private addresses"
            return _Outcome((f"dropped: {why}",))
        if self._system.needs_gateway and (
            subnet.gateway not in self._gateways or destination.family is Family.V6
        ):
            return _Outcome((f"dropped: {subnet.name} has no IPv{destination.family} NAT gateway",))
        return _Outcome((f"leaves {subnet.name} for the internet",), INTERNET, INTERNET)

    def keeps(self, network: VirtualNetwork, subnet: Subnet, destination: Address) -> bool:
        """Whether nothing leaves the subnet toward a destination, wherever it comes from."""
        return isinstance(self._route(network, subnet, destination), str)

    def deciding(self, network: VirtualNetwork, subnet: Subnet) -> Iterator[Prefix]:
        """What `keeps` depends on: destinations that no border of these parts are kept alike."""
        yield from chain.from_iterable(rule.peers for rule in self._rules.get(subnet.group, ()))
        yield from (hop.prefix for hop in self._hops(network, subnet.table))

    def _route(self, network: VirtualNetwork, subnet: Subnet, destination: Address) -> _Hop | str:
        """The route by which a packet leaves a subnet, or why it does not."""
        # Security groups see a packet before it is routed, and again before it is delivered.
        if refusal := self._refused(subnet, Direction.OUTBOUND, destination):
            return refusal
        key = (network.name, subnet.table)
        if key not in self._routes:
            hops = self._hops(network, subnet.table)
            self._routes[key] = PrefixTable((hop.prefix, hop) for hop in hops)
        match = self._routes[key].match(destination)
        if match and match[1].kind is not NextHop.NONE:
            return match[1]
        route = f"{match[0]} leads to None ({match[1].origin})" if match else "it has no route"
        return f"dropped in {subnet.name}: {route}"

    def _hops(self, network: VirtualNetwork, name: str) -> Iterator[_Hop]:
        """Of equal prefixes the last wins: a table's over the cloud's own."""
        routes = self._tables.get(name, ())
        yield from self._built_in(network, routes)
        for route in routes:
            yield _Hop(route.hop, f"route table {name}", route.prefix, route.via)

    def _built_in(self, network: VirtualNetwork, routes: Iterable[CloudRoute]) -> Iterator[_Hop]:
        internet = _EVERYTHING.values() if self._system.internet else ()
        yield from (_Hop(NextHop.INTERNET, _CLOUD, everything) for everything in internet)
        # The cloud drops its None routes as soon as a table has a default route of its own.
        if all(route.prefix != _EVERYTHING[Family.V4] for route in routes):
            yield from (_Hop(NextHop.NONE, _CLOUD, prefix) for prefix in self._system.dropped)
        # The own network last, because the last wins.
        for near in (*self._peers.get(network.name, ()), network):
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
        for sources, destinations in self._drops[appliance.name]:
            if sources.match(source) and destinations.match(destination):
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
        for rule in self._rules.get(subnet.group, ()):
            if rule.direction is direction and _held(rule.peers, peer):
                why = f"dropped by security group {subnet.group}: {rule.name} of {subnet.name}"
                return "" if rule.allow else why
        return ""


def _held(prefixes: Iterable[Prefix], address: Address) -> bool:
    return any(prefix.holds(address) for prefix in prefixes)


def grouped(pairs: Iterable[tuple[str, Value]]) -> dict[str, list[Value]]:
    groups: dict[str, list[Value]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def _appliances(
    network: Network,
) -> Iterator[tuple[Address, tuple[Appliance, VirtualNetwork, Subnet]]]:
    homes = grouped((home.owner, home) for home in network.networks)
    for appliance in network.appliances:
        for address, home in product(appliance.addresses, homes.get(appliance.owner, ())):
            if subnet := home.subnet_of(address):
                yield address, (appliance, home, subnet)


def _table(prefixes: Iterable[Prefix]) -> PrefixTable[None]:
    return PrefixTable((prefix, None) for prefix in prefixes)
