"""Builds a topology's hosts and links: namespaces pinned in one directory, veth pairs and bridges.

Every link is made inside the two namespaces it joins, so nothing ever shows up in the machine's
own. Removing a namespace removes its links, routes and rules with it. The messages at the end are
those that only a lab needs (linux/if_link.h, linux/fib_rules.h).
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from netmgr.errors import KernelError
from netmgr.kernel import links, netlink, netns, routes
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import (
    Netlink,
    Operation,
    attribute,
    nested,
    string_attribute,
    u32_attribute,
)
from netmgr.lab.topology import Host, Interface, Link, Route, Topology
from netmgr.prefixes import Family

RTPROT_STATIC = 4
LOOPBACK_INDEX = 1
SIOCGIFFLAGS, SIOCETHTOOL, ETHTOOL_GLINK = 0x8913, 0x8946, 0x0A
IFF_RUNNING = 0x40
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO = 3, 10, 18
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _IFLA_BR_MCAST_SNOOPING = 1, 2, 23
_FRA_IIFNAME, _FRA_PRIORITY, _FRA_TABLE = 3, 6, 15
_FR_ACT_TO_TBL = 1
_IFINFO = struct.Struct("=BxHiII")
_FIB_RULE = struct.Struct("=BBBBBBBBI")
_CREATE = netlink.NLM_F_ACK | netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
_TABLE_OFFSET = 4
_BEFORE_MAIN = 1000


@contextmanager
def inside(path: Path) -> Iterator[None]:
    """Keep the calling thread in the namespace pinned at `path` for the length of the block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with netns.entered(descriptor):
            yield
    finally:
        os.close(descriptor)


def build(topology: Topology, directory: Path) -> None:
    """Make every host of `topology` as `directory/<host>`, then every link and route.

    Raises:
        KernelError: the kernel refused; what was made so far stays for the caller to remove.
    """
    for host in topology.hosts:
        make_host(host, directory / host.name)
    with ExitStack() as closing:
        channels = {
            host.name: closing.enter_context(_open(directory / host.name))
            for host in topology.hosts
        }
        for segment in topology.segments:
            channels[segment.host].transact([_create_bridge(segment.name)])
        for link in topology.links:
            _lay(link, channels[link.ends[0].host], directory)
        for host in topology.hosts:
            channels[host.name].transact(
                _configuration(host, list(topology.attached(host.name)), directory)
            )


def wait_until_up(topology: Topology, directory: Path, timeout: float = 10) -> None:
    """Wait until every interface of `topology` sends and receives, for at most `timeout` seconds.

    A link's first end learns of its carrier up to a second after the second end is up, and
    drops packets until then. Asking whether there is one makes a recent kernel catch up
    (ethtool_op_get_link, linkwatch_sync_dev), so that there is nothing to wait for.

    Raises:
        KernelError: a link stayed down.
    """
    deadline = time.monotonic() + timeout
    for end in topology.interfaces():
        with (
            inside(directory / end.host),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle,
        ):
            while not sends(handle, end.name):
                if time.monotonic() > deadline:
                    raise KernelError(f"bring up {end.name} in {end.host}", details="no carrier")
                time.sleep(0.02)


def make_host(host: Host, path: Path) -> None:
    """Make one namespace at `path`, its loopback up."""
    netns.create(path)
    with inside(path):
        # A new address would be tentative, and unusable, for a second of duplicate detection.
        _set("ipv6/conf/default/accept_dad", "0")
        # Whoever is in the namespace may ping without a raw socket.
        _set("ipv4/ping_group_range", "0 2147483647")
        if host.forwards:
            _set("ipv4/ip_forward", "1")
            for scope in ("all", "default"):
                _set(f"ipv4/conf/{scope}/send_redirects", "0")  # a cloud's routing sends none
            _set("ipv6/conf/all/forwarding", "1")
    with _open(path) as channel:
        channel.transact([links.raise_index(LOOPBACK_INDEX)])


def _set(key: str, value: str) -> None:
    Path("/proc/sys/net", key).write_text(value, encoding="ascii")


def _open(path: Path) -> Netlink:
    """A netlink socket; it stays in the namespace it was opened in."""
    with inside(path):
        return Netlink()


def _lay(link: Link, channel: Netlink, directory: Path) -> None:
    near, far = (VethEnd(end.name, _mac(end), link.mtu) for end in link.ends)
    descriptor = os.open(directory / link.ends[1].host, os.O_RDONLY | os.O_CLOEXEC)
    try:
        channel.transact([links.create_veth(near, far, descriptor)])
    finally:
        os.close(descriptor)


def _mac(end: Interface) -> bytes:
    """A locally administered hardware address that no other end of the lab has."""
    # 02: locally administered, unicast. From names, so that every build has the same.
    return b"\x02" + hashlib.sha256(f"{end.host}/{end.name}".encode()).digest()[:5]


def _configuration(host: Host, ends: list[Interface], directory: Path) -> list[Operation]:
    """Links up, then addresses with the networks they are in, then routes."""
    with inside(directory / host.name):
        indices = {end.name: socket.if_nametoindex(end.name) for end in ends}
    operations = [_enslave(indices[end.name], indices[end.segment]) for end in ends if end.segment]
    # Before the routes: the kernel takes none over a link that is down.
    operations += [links.raise_index(index) for index in indices.values()]
    for end in ends:
        operations += _addresses(end, indices[end.name])
    operations += [_route(route, ends, indices) for route in host.routes]
    for number, table in enumerate(host.tables, start=1):
        operations += [_look_up_first(family, table.arriving_on, number) for family in Family]
        for route in table.routes:
            operations.append(_in_table(_route(route, ends, indices), number))
    return operations


def _addresses(end: Interface, index: int) -> Iterator[Operation]:
    for own in end.addresses:
        yield links.add_address(own.address, index)
    for network in end.networks:
        yield routes.add_route(network, index, protocol=RTPROT_STATIC)


def _route(route: Route, ends: list[Interface], indices: dict[str, int]) -> Operation:
    index = next(
        indices[end.name]
        for end in ends
        if any(network.holds(route.via) for network in end.networks)
    )
    return routes.add_route(route.to, index, protocol=RTPROT_STATIC, gateway=route.via)


def sends(handle: socket.socket, name: str) -> bool:
    """Whether the interface has a carrier and the kernel has acted on it (netdevice(7))."""
    # Asked before the flags: this is what makes the kernel catch up, see `wait_until_up`.
    answer = array.array("I", [ETHTOOL_GLINK, 0])
    fcntl.ioctl(handle, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), answer.buffer_info()[0]))
    raw = fcntl.ioctl(handle, SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    flags: int = struct.unpack_from("16sH", raw)[1]
    return bool(answer[1] and flags & IFF_RUNNING)


def _create_bridge(name: str) -> Operation:
    """Create a bridge, down. It floods multicast, as neighbour discovery has no querier here."""
    data = nested(_IFLA_INFO_DATA, attribute(_IFLA_BR_MCAST_SNOOPING, b"\0"))
    body = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + string_attribute(_IFLA_IFNAME, name)
        + nested(_IFLA_LINKINFO, string_attribute(_IFLA_INFO_KIND, "bridge"), data)
    )
    return Operation(f"link add {name} type bridge", links.RTM_NEWLINK, _CREATE, body)


def _enslave(index: int, bridge: int) -> Operation:
    """Make the link of this index a port of a bridge."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + u32_attribute(_IFLA_MASTER, bridge)
    return Operation(
        f"link set {index} master {bridge}", links.RTM_NEWLINK, netlink.NLM_F_ACK, body
    )


def _look_up_first(family: Family, arriving_on: str, table: int) -> Operation:
    """Route what comes in by an interface by a table of its own first."""
    body = (
        _FIB_RULE.pack(family.af, 0, 0, 0, table, 0, 0, _FR_ACT_TO_TBL, 0)
        + string_attribute(_FRA_IIFNAME, arriving_on)
        + u32_attribute(_FRA_PRIORITY, _BEFORE_MAIN + table)
        + u32_attribute(_FRA_TABLE, table)
    )
    return Operation(
        f"rule add iif {arriving_on} lookup {table}", routes.RTM_NEWRULE, _CREATE, body
    )


def _in_table(route: Operation, table: int) -> Operation:
    """A route of the main table as one of another table, numbered 1 to 252."""
    body = bytearray(route.body)
    body[_TABLE_OFFSET] = table  # rtm_table of struct rtmsg
    return replace(route, text=f"{route.text} table {table}", body=bytes(body))
