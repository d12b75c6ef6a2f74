"""The network of a cluster of two nodes.

    internet ──┐
    hub ───────┼─ fabric ──┬── control-plane
    spoke ─────┘           ├── node-1 ── its pods
                           └── node-2 ── its pods

The three machines on the right are on one bridge, as on a flat network; the fabric is their router
and delivers every node's podCIDRs to the node, as a cloud's route table does. The internet knows
the machines' own addresses only. The hub, where researchers are, and another cluster's machine,
the spoke, are for tests of NAT hosts: the fabric delivers the hub's VIP range to node-2.
"""

from __future__ import annotations

from netmgr.prefixes import Address, Family, Prefix
from tests.lab.topology import (
    BESIDE_INTERNET,
    EVERYTHING,
    INTERNET,
    Host,
    Interface,
    InterfaceAddress,
    Link,
    Route,
    Segment,
    Topology,
)

FABRIC = "fabric"
CONTROL_PLANE = "control-plane"
NODES = ("node-1", "node-2")
LAN = {Family.V4: Prefix.parse("172.18.0.0/24"), Family.V6: Prefix.parse("fd00:172:18::/64")}
POD_CIDRS = {Family.V4: Prefix.parse("10.244.0.0/16"), Family.V6: Prefix.parse("fd00:244::/56")}
SERVICE_CIDRS = {Family.V4: Prefix.parse("10.96.0.0/16"), Family.V6: Prefix.parse("fd00:96::/112")}
FURTHER_INTERNET = Prefix.parse("198.51.100.0/24")
CLUSTER_DNS = Address.parse("10.96.0.10")
UPLINK = "eth0"
HUB, SPOKE = "hub", "spoke"
OUTSIDE = {HUB: Prefix.parse("10.200.0.0/24"), SPOKE: Prefix.parse("10.64.0.0/24")}
"""The networks of these two machines. Each has the second address, the fabric the first."""
VIP_RANGE = Prefix.parse("100.64.0.0/16")
NAT_HOST = NODES[1]
"""Of the cluster's Services, as the hub reaches them by this node."""
_GATEWAY = 1
_HOSTS = {CONTROL_PLANE: 2, **{name: 11 + number for number, name in enumerate(NODES)}}
MACHINES = tuple(_HOSTS)


def address(host: str, family: Family = Family.V4) -> Address:
    """The address of a machine on the bridge."""
    return _on_lan(_HOSTS[host], family)


def gateway(family: Family = Family.V4) -> Address:
    """The fabric's address on the bridge."""
    return _on_lan(_GATEWAY, family)


def topology() -> Topology:
    """All of it; the podCIDRs' routes follow when the Nodes have them."""
    to_lan = tuple(Route(LAN[family], BESIDE_INTERNET[family]) for family in Family)
    from_fabric = (
        Route(FURTHER_INTERNET, INTERNET[Family.V4]),
        Route(VIP_RANGE, address(NAT_HOST)),
    )
    everything_v4 = next(each for each in EVERYTHING if each.family is Family.V4)
    outward = tuple(
        Route(everything, _on_lan(_GATEWAY, everything.family)) for everything in EVERYTHING
    )
    return Topology(
        internet="internet",
        hosts=(
            Host("internet", routes=to_lan),
            Host(FABRIC, routes=from_fabric, forwards=True),
            *(Host(name, routes=outward) for name in _HOSTS),
            *(
                Host(name, routes=(Route(everything_v4, _inside(prefix, 1)),))
                for name, prefix in OUTSIDE.items()
            ),
        ),
        links=(
            _internet_link(),
            *(_uplink(name) for name in _HOSTS),
            *(_link_outside(name) for name in OUTSIDE),
        ),
        segments=(Segment(FABRIC, "lan", tuple(_interface_addresses(_GATEWAY))),),
    )


def outside(host: str) -> Address:
    """The address of the hub or the spoke."""
    return _inside(OUTSIDE[host], 2)


def _inside(prefix: Prefix, number: int) -> Address:
    return Address(prefix.family, prefix.value + number)


def _link_outside(host: str) -> Link:
    prefix = OUTSIDE[host]
    fabric, own = (InterfaceAddress(_inside(prefix, each), prefix.length) for each in (1, 2))
    return Link((Interface(FABRIC, host, (fabric,)), Interface(host, UPLINK, (own,))))


def _on_lan(number: int, family: Family) -> Address:
    return Address(family, LAN[family].value + number)


def _interface_addresses(number: int) -> list[InterfaceAddress]:
    return [InterfaceAddress(_on_lan(number, family), LAN[family].length) for family in Family]


def _internet_link() -> Link:
    lengths = {Family.V4: 24, Family.V6: 64}
    own = [InterfaceAddress(INTERNET[family], lengths[family]) for family in Family]
    further = InterfaceAddress(
        Address(Family.V4, FURTHER_INTERNET.value + 1), FURTHER_INTERNET.length
    )
    beside = [InterfaceAddress(BESIDE_INTERNET[family], lengths[family]) for family in Family]
    return Link(
        (
            Interface("internet", "eth0", (*own, further)),
            Interface(FABRIC, "internet", tuple(beside)),
        )
    )


def _uplink(name: str) -> Link:
    return Link(
        (
            Interface(FABRIC, name, segment="lan"),
            Interface(name, UPLINK, tuple(_interface_addresses(_HOSTS[name]))),
        )
    )
