"""The network that follows from a plan and its lock: what the cloud is asked for, as data.

Every rendering and the isolation matrix are made from this one description, so that what is
checked is what is rendered.

Spokes are kept apart twice: by routes (every pool leads to None, which longer prefixes of the
spoke itself and of the hub override) and by security groups. Routes alone would not do: a default
route toward the hub removes the None routes that a cloud has for private ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from netmgr.plan.clouds.cloud import SystemRoutes
from netmgr.plan.lock import ServiceMapping
from netmgr.prefixes import Address, Family, Prefix


class NextHop(StrEnum):
    """Where a route leads."""

    APPLIANCE = "appliance"
    INTERNET = "internet"
    NONE = "None"
    LOCAL = "local"


class Direction(StrEnum):
    """Which packets of a subnet a security rule looks at."""

    INBOUND = "inbound"
    OUTBOUND = "outbound"


@dataclass(frozen=True, slots=True)
class CloudRoute:
    """One route of a route table; `via` is set for an appliance, and only then."""

    name: str
    prefix: Prefix
    hop: NextHop
    via: Address | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes that override the cloud's own of the same prefix, in subnets that use the table."""

    name: str
    owner: str
    routes: tuple[CloudRoute, ...]


@dataclass(frozen=True, slots=True)
class SecurityRule:
    """The matching rule of the lowest `priority` decides. `peers` are the other side's prefixes."""

    name: str
    priority: int
    direction: Direction
    allow: bool
    peers: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class SecurityGroup:
    """Rules of every subnet that uses the group; peered networks allow what no rule matches."""

    name: str
    owner: str
    rules: tuple[SecurityRule, ...]


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet. `table`, `group` and `gateway` are names, or empty where it has none.

    `role` is routers, researchers, nat or nodes.
    """

    name: str
    role: str
    prefixes: tuple[Prefix, ...]
    table: str = ""
    group: str = ""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class VirtualNetwork:
    """A virtual network of the hub or of one cluster."""

    name: str
    owner: str
    location: str
    address_space: tuple[Prefix, ...]
    subnets: tuple[Subnet, ...]

    def subnet_of(self, address: Address) -> Subnet | None:
        for subnet in self.subnets:
            if any(prefix.holds(address) for prefix in subnet.prefixes):
                return subnet
        return None


@dataclass(frozen=True, slots=True)
class Peering:
    """One direction of a peering. `forwarded`: takes packets the remote network only passes on."""

    name: str
    network: str
    remote: str
    forwarded: bool


@dataclass(frozen=True, slots=True)
class NatGateway:
    """The way of the hub or a cluster to the internet, with its public addresses."""

    name: str
    owner: str
    location: str
    addresses: int


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Virtual machines of one segment of a node pool, as many as the cloud allows in one group.

    Attributes:
        pods: addresses of each family for pods that a machine's interface has beside its own, and
            that the cloud chooses; 0 where pods have blocks, which no such group's model has.
    """

    name: str
    owner: str
    location: str
    network: str
    subnet: str
    instances: int
    pods: int
    families: tuple[Family, ...]


@dataclass(frozen=True, slots=True)
class Appliance:
    """A machine that forwards: a hub's router or a cluster's NAT host.

    Attributes:
        machine: its name among the plan's machines.
        addresses: its own, one a family.
        drops: (sources, destinations) that it refuses to pass on, each a group of prefixes.
        translations: what a NAT host translates; a router has none.
    """

    name: str
    machine: str
    owner: str
    addresses: tuple[Address, ...]
    drops: tuple[tuple[tuple[Prefix, ...], tuple[Prefix, ...]], ...] = ()
    translations: tuple[ServiceMapping, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    plan: str
    networks: tuple[VirtualNetwork, ...]
    peerings: tuple[Peering, ...]
    tables: tuple[RouteTable, ...]
    groups: tuple[SecurityGroup, ...]
    gateways: tuple[NatGateway, ...]
    node_groups: tuple[NodeGroup, ...]
    appliances: tuple[Appliance, ...]
    system_routes: SystemRoutes

    def of(self, owner: str) -> tuple[VirtualNetwork, ...]:
        """The virtual networks of the hub or of one cluster."""
        return tuple(network for network in self.networks if network.owner == owner)
