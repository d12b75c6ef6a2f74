"""The network that follows from a plan and its lock: what the cloud is asked for, as data.

Terraform, Bicep and the isolation matrix are all made from this one description, so that
what is checked is what is rendered. It follows Azure's model (virtual networks, peerings,
route tables, security groups) and Azure's rules:

- All IP configurations of one network interface lie in one subnet. A segment's hosts and
  pods therefore share a subnet with several address prefixes.
- Peering is not transitive: every spoke's networks are peered with the hub's and with each
  other, never with another spoke's.

Spokes are kept apart twice, neither relying on the other: by routes (every pool leads to
None, which longer prefixes of the spoke itself and of the hub override) and by security
groups. Routes alone would not do: a default route toward the hub removes the None routes
that Azure has for private ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from netmgr.prefixes import Address, Family, Prefix


class NextHop(StrEnum):
    """Where a route leads; the values are the cloud's own."""

    APPLIANCE = "VirtualAppliance"
    INTERNET = "Internet"
    NONE = "None"
    LOCAL = "VnetLocal"


class Direction(StrEnum):
    """Which packets of a subnet a security rule looks at."""

    INBOUND = "Inbound"
    OUTBOUND = "Outbound"


@dataclass(frozen=True, slots=True)
class Route:
    """One route of a route table; `via` is set for, and only for, an appliance."""

    name: str
    prefix: Prefix
    hop: NextHop
    via: Address | None = None


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes that override the cloud's own of the same prefix, in every subnet that uses the table."""

    name: str
    owner: str
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class SecurityRule:
    """One rule: the lowest `priority` that matches decides. `peers` is the other side's prefixes."""

    name: str
    priority: int
    direction: Direction
    allow: bool
    peers: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class SecurityGroup:
    """Rules of every subnet that uses the group; what none matches is allowed between networks that are peered."""

    name: str
    owner: str
    rules: tuple[SecurityRule, ...]


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet. `table`, `group` and `gateway` are names, or empty where it has none."""

    name: str
    role: str
    prefixes: tuple[Prefix, ...]
    table: str = ""
    group: str = ""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class Vnet:
    """A virtual network of the hub or of one cluster, as the cloud gets it."""

    name: str
    owner: str
    location: str
    address_space: tuple[Prefix, ...]
    subnets: tuple[Subnet, ...]

    def subnet_of(self, address: Address) -> Subnet | None:
        """The subnet that holds `address`."""
        return next((net for net in self.subnets if any(block.holds(address) for block in net.prefixes)), None)


@dataclass(frozen=True, slots=True)
class Peering:
    """One direction of a peering. `forwarded`: takes packets the remote network only passes on."""

    name: str
    network: str
    remote: str
    forwarded: bool


@dataclass(frozen=True, slots=True)
class NatGateway:
    """A cluster's way to the internet, with its public addresses."""

    name: str
    owner: str
    location: str
    addresses: int


@dataclass(frozen=True, slots=True)
class ScaleSet:
    """Virtual machines of one segment of a node pool, all that the cloud allows in one set, and their interface.

    Attributes:
        configurations: IP configurations for pods beside the node's own: one a block or address.
        block_length: prefix length of each of them (IPv4).
    """

    name: str
    owner: str
    location: str
    network: str
    subnet: str
    instances: int
    configurations: int
    block_length: int
    families: tuple[Family, ...]


@dataclass(frozen=True, slots=True)
class Translation:
    """Stateless 1:1 translation of what the hub sees onto what the cluster's Services are."""

    seen: Prefix
    real: Prefix

    def translate(self, address: Address) -> Address:
        """The Service behind an address that the hub sees."""
        return self.seen.counterpart(address, self.real)


@dataclass(frozen=True, slots=True)
class Appliance:
    """A machine that forwards: a hub's router or a cluster's NAT host.

    Attributes:
        drops: (sources, destinations) that it refuses to pass on, each a group of prefixes.
        addresses: its own, one a family.
        translations: what a NAT host translates; a router has none.
        internet: whether it is a way to the internet.
    """

    name: str
    owner: str
    addresses: tuple[Address, ...]
    drops: tuple[tuple[tuple[Prefix, ...], tuple[Prefix, ...]], ...] = ()
    translations: tuple[Translation, ...] = ()
    internet: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """All of it."""

    plan: str
    networks: tuple[Vnet, ...]
    peerings: tuple[Peering, ...]
    tables: tuple[RouteTable, ...]
    groups: tuple[SecurityGroup, ...]
    gateways: tuple[NatGateway, ...]
    scale_sets: tuple[ScaleSet, ...]
    appliances: tuple[Appliance, ...]

    def of(self, owner: str) -> tuple[Vnet, ...]:
        """The virtual networks of the hub or of one cluster."""
        return tuple(network for network in self.networks if network.owner == owner)
