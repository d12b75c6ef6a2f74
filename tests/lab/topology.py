"""What a lab's world should look like. Nothing here touches the machine.

A world is hosts (network namespaces), links (veth pairs) between them, the hosts that are
nodes, and the pods each node runs. `cluster` draws the smallest useful one:

    internet ── fabric ──┬── node-1 ── pod-1 … pod-4
                         └── node-2 ── pod-5 … pod-8

The fabric routes every node's ranges to that node, as a cloud's network does; the internet
knows the nodes' own addresses only, so what a pod sends there comes back only when it was
masqueraded. A larger world is more hosts and links: the builder knows no roles. `planned` derives
one from an address plan: a hub and its spokes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from netmgr.documents.sites import Role, SourceAddress
from netmgr.errors import ConfigError
from netmgr.prefixes import Address, Family, Prefix

MAX_NODES = 64
MAX_PODS = 250
SPARE_ADDRESSES = 16
"""Addresses a node has beyond its pods, so that one can be replaced while another cools down."""

INTERNET = {Family.V4: Address.parse("203.0.113.1"), Family.V6: Address.parse("2001:db8:ffff::1")}
"""The internet host's addresses (RFC 5737, RFC 3849: documentation prefixes, routed nowhere)."""

EVERYTHING = (Prefix.parse("0.0.0.0/0"), Prefix.parse("::/0"))
NODE_NETWORKS = (Prefix.parse("10.64.0.0/16"), Prefix.parse("fd00:64::/32"))
"""Where the nodes' own addresses lie."""

BESIDE_INTERNET = {
    Family.V4: Address.parse("203.0.113.254"),
    Family.V6: Address.parse("2001:db8:ffff::fe"),
}
_NODE_SUBNET = {Family.V4: Prefix.parse("10.64.0.0/24"), Family.V6: Prefix.parse("fd00:64::/64")}
_POD_BLOCK = {Family.V4: Prefix.parse("10.128.0.0/28"), Family.V6: Prefix.parse("fd00:128::/112")}
_V4_POD_SPACE = 1 << 12
_HOST_LINK_ADDRESS = {Family.V4: 24, Family.V6: 64}


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """An address as an interface carries it: with the length of its on-link prefix."""

    address: Address
    length: int

    @property
    def network(self) -> Prefix:
        free = self.address.family.width - self.length
        return Prefix(self.address.family, self.address.value >> free << free, self.length)


@dataclass(frozen=True, slots=True)
class Interface:
    """One end of a link.

    Attributes:
        on_link: prefixes reached by it without a gateway, beside those of its addresses.
        segment: bridge of the host that it is a port of, if any; then it has no addresses.
    """

    host: str
    name: str
    addresses: tuple[InterfaceAddress, ...] = ()
    on_link: tuple[Prefix, ...] = ()
    segment: str = ""

    @property
    def networks(self) -> tuple[Prefix, ...]:
        """Everything that is reached by it without a gateway."""
        return (*(own.network for own in self.addresses), *self.on_link)


@dataclass(frozen=True, slots=True)
class Segment:
    """A bridge: a layer-2 network whose ports are in `host`, which has `addresses` on it."""

    host: str
    name: str
    addresses: tuple[InterfaceAddress, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two hosts. `mtu` is in bytes."""

    ends: tuple[Interface, Interface]
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class Route:
    """Where a host sends what is not on one of its links."""

    to: Prefix
    via: Address


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Routes for what comes in by one interface alone; they go before the host's own."""

    arriving_on: str
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """One network namespace. A host that `forwards` is a router."""

    name: str
    routes: tuple[Route, ...] = ()
    forwards: bool = False
    tables: tuple[RouteTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A host that runs an agent: its own addresses and the ranges it gives its pods.

    `document` holds the keys of node.yaml that come from an address plan, if there is one.
    """

    host: str
    uplink: str
    addresses: tuple[Address, ...]
    ranges: tuple[Prefix, ...] = ()
    role: Role = Role.NODE
    site: str = ""
    document: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def runs_pods(self) -> bool:
        return self.role is Role.NODE

    def address(self, family: Family) -> Address:
        return next(address for address in self.addresses if address.family is family)


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    node: str
    namespace: str = "research"


@dataclass(frozen=True, slots=True)
class Shown:
    """A Service range: its VIPs, for clients outside the spoke, and its addresses inside."""

    vip_range: Prefix
    service_cidr: Prefix

    def cluster_ip(self, address: Address) -> Address:
        """What a VIP is inside the spoke."""
        return self.vip_range.counterpart(address, self.service_cidr)


@dataclass(frozen=True, slots=True)
class Spoke:
    """A cluster of a planned world, and how its Services are exposed to the others.

    Attributes:
        prefixes: of its nodes and pods.
        gateway: whether it has a NAT gateway; else its way to the internet is the hub's router.
        rogues: hosts in its network without an agent, whose packets no rule filters at the source.
    """

    name: str
    prefixes: tuple[Prefix, ...]
    nat_host: str
    services: tuple[Shown, ...]
    source: SourceAddress
    gateway: bool = True
    rogues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole world. `internet` names the host that plays everything outside.

    Attributes:
        spokes: the clusters of a world with a hub; none in a world of one cluster.
        researcher: the hub's host that reaches every spoke; empty in a world of one cluster.
    """

    internet: str
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = field(default=())
    segments: tuple[Segment, ...] = ()
    spokes: tuple[Spoke, ...] = ()
    researcher: str = ""

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.host == name:
                return node
        raise KeyError(name)

    def interfaces(self) -> Iterator[Interface]:
        """Both ends of every link."""
        return chain.from_iterable(link.ends for link in self.links)

    def attached(self, host: str) -> Iterator[Interface]:
        """Everything `host` has addresses on: its ends of links, and its bridges."""
        yield from (end for end in self.interfaces() if end.host == host)
        yield from (
            Interface(host, each.name, each.addresses)
            for each in self.segments
            if each.host == host
        )

    def address(self, host: str, family: Family) -> Address:
        """The first address of `family` that `host` has."""
        for end in self.attached(host):
            for own in end.addresses:
                if own.address.family is family:
                    return own.address
        raise KeyError(f"{host} has no IPv{family.value} address")


INTERNET_NETWORKS = tuple(
    InterfaceAddress(own, _HOST_LINK_ADDRESS[family]).network for family, own in INTERNET.items()
)
"""The prefixes on the link between internet and fabric."""


def cluster(nodes: int = 2, pods: int = 4) -> Topology:
    """One cluster on one fabric: `nodes` nodes with `pods` pods each, dual stack."""
    if not 1 <= nodes <= MAX_NODES or not 0 <= pods <= MAX_PODS:
        raise ConfigError(
            f"a lab has 1 to {MAX_NODES} nodes with up to {MAX_PODS} pods each, "
            f"not {nodes} with {pods}"
        )
    members = [_node(number, pods) for number in range(1, nodes + 1)]
    to_nodes = tuple(Route(prefix, BESIDE_INTERNET[prefix.family]) for prefix in NODE_NETWORKS)
    return Topology(
        internet="internet",
        hosts=(
            Host("internet", routes=to_nodes),
            Host(
                "fabric", routes=tuple(chain.from_iterable(map(_routes_to, members))), forwards=True
            ),
            *(_host_of(node, number) for number, node in enumerate(members, start=1)),
        ),
        links=(
            internet_link(),
            *(_uplink(node, number) for number, node in enumerate(members, start=1)),
        ),
        nodes=tuple(members),
        pods=tuple(_pods(members, pods)),
    )


def _pods(nodes: list[Node], each: int) -> Iterator[Pod]:
    for index, node in enumerate(nodes):
        for offset in range(1, each + 1):
            yield Pod(f"pod-{index * each + offset}", node.host)


def internet_link() -> Link:
    """The link between the internet and the fabric."""
    return Link((_end("internet", "eth0", INTERNET), _end("fabric", "internet", BESIDE_INTERNET)))


def _node(number: int, pods: int) -> Node:
    return Node(
        host=f"node-{number}",
        uplink="eth0",
        addresses=tuple(_in_subnet(family, number, 2) for family in Family),
        ranges=tuple(_ranges(number, pods)),
    )


def _ranges(number: int, pods: int) -> Iterator[Prefix]:
    """As many /28s as the pods need, with gaps as a grown node has, and one v6 block."""
    block = _POD_BLOCK[Family.V4]
    first = block.value + number * _V4_POD_SPACE
    for index in range(-(-(pods + SPARE_ADDRESSES) // block.size)):
        # Every second block: a node that grew has gaps, and neighbours would merge into one prefix.
        yield Prefix(Family.V4, first + 2 * index * block.size, block.length)
    block = _POD_BLOCK[Family.V6]
    yield Prefix(Family.V6, block.value + (number << 64), block.length)


def _in_subnet(family: Family, number: int, host: int) -> Address:
    subnet = _NODE_SUBNET[family]
    return Address(family, subnet.value + number * subnet.size + host)


def _routes_to(node: Node) -> Iterator[Route]:
    for prefix in node.ranges:
        yield Route(prefix, node.address(prefix.family))


def _host_of(node: Node, number: int) -> Host:
    return Host(
        node.host,
        routes=tuple(Route(prefix, _in_subnet(prefix.family, number, 1)) for prefix in EVERYTHING),
    )


def _uplink(node: Node, number: int) -> Link:
    gateway = {family: _in_subnet(family, number, 1) for family in Family}
    own = {address.family: address for address in node.addresses}
    return Link((_end("fabric", node.host, gateway), _end(node.host, node.uplink, own)))


def _end(host: str, name: str, addresses: dict[Family, Address]) -> Interface:
    return Interface(
        host,
        name,
        tuple(
            InterfaceAddress(address, _HOST_LINK_ADDRESS[family])
            for family, address in addresses.items()
        ),
    )
