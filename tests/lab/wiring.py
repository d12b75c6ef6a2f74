"""Builds a topology's hosts and links: namespaces pinned in one directory, veth pairs and bridges.

Every link is made inside the two namespaces it joins, so nothing ever shows up in the machine's
own. Removing a namespace removes its links, routes and rules with it. What netmgr makes on nodes as
well, it makes here with the same messages; for what only a lab has, pyroute2 encodes them.
"""

from __future__ import annotations

import array
import fcntl
import hashlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netmgr.errors import KernelError
from netmgr.kernel import links, netns, routes
from netmgr.kernel.links import VethEnd
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.prefixes import Family
from tests.lab import named_netns
from tests.lab.topology import Host, Interface, Link, Route, Topology
from tests.waiting import PATIENCE

RTPROT_STATIC = 4
LOOPBACK_INDEX = 1
SIOCGIFFLAGS, SIOCETHTOOL, ETHTOOL_GLINK = 0x8913, 0x8946, 0x0A
IFF_RUNNING = 0x40
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
    """Make every host of `topology` as `directory/<host>`, then every link and route."""
    for host in topology.hosts:
        make_host(host, directory / host.name)
    with ExitStack() as closing:
        channels = {
            host.name: closing.enter_context(_open(directory / host.name))
            for host in topology.hosts
        }
        for segment in topology.segments:
            with _pyroute2(directory / segment.host) as kernel:
                # It floods multicast, as neighbour discovery has no querier here.
                kernel.link("add", ifname=segment.name, kind="bridge", br_mcast_snooping=0)
        for link in topology.links:
            _lay(link, channels[link.ends[0].host], directory)
        for host in topology.hosts:
            _configure(host, list(topology.attached(host.name)), channels[host.name], directory)


def wait_until_up(topology: Topology, directory: Path, timeout: float = PATIENCE) -> None:
    """Wait until every interface of `topology` sends and receives, for at most `timeout` seconds.

    A link's first end learns of its carrier up to a second after the second end is up, and
    drops packets until then. OriginalDirection whether there is one makes a recent kernel catch up
    (ethtool_op_get_link, linkwatch_sync_dev), so that there is nothing to wait for.
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
    named_netns.create(path)
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


def _configure(host: Host, ends: list[Interface], channel: Netlink, directory: Path) -> None:
    """Links up, then addresses with the networks they are in, then routes."""
    path = directory / host.name
    with inside(path):
        indices = {end.name: socket.if_nametoindex(end.name) for end in ends}
    if ports := [end for end in ends if end.segment]:
        with _pyroute2(path) as kernel:
            for end in ports:
                kernel.link("set", index=indices[end.name], master=indices[end.segment])
    # Before the routes: the kernel takes none over a link that is down.
    operations = [links.raise_index(index) for index in indices.values()]
    for end in ends:
        operations += _addresses(end, indices[end.name])
    channel.transact([*operations, *(_route(route, ends, indices) for route in host.routes)])
    if host.tables:
        with _pyroute2(path) as kernel:
            _fill_tables(kernel, host, ends, indices)


def _fill_tables(kernel: Any, host: Host, ends: list[Interface], indices: dict[str, int]) -> None:
    """Have what comes in by some interfaces routed by tables of their own first."""
    for number, table in enumerate(host.tables, start=1):
        for family in Family:
            kernel.rule(
                "add",
                family=family.af,
                iifname=table.arriving_on,
                priority=_BEFORE_MAIN + number,
                table=number,
            )
        for route in table.routes:
            kernel.route(
                "add",
                family=route.to.family.af,
                dst=str(route.to),
                gateway=str(route.via),
                oif=_toward(route, ends, indices),
                table=number,
                proto=RTPROT_STATIC,
            )


@contextmanager
def _pyroute2(path: Path) -> Iterator[Any]:
    """A socket of pyroute2's in a namespace, whose refusals are ours.

    Signals wait meanwhile: what a handler raises would be lost in pyroute2's event loop.
    """
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with inside(path):
            opened = IPRoute()
        with opened:
            yield opened
    except NetlinkError as error:
        raise KernelError(f"wire {path.name}", error.code) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _addresses(end: Interface, index: int) -> Iterator[Operation]:
    for own in end.addresses:
        yield links.add_address(own.address, index)
    for network in end.networks:
        yield routes.add_route(network, index, protocol=RTPROT_STATIC)


def _route(route: Route, ends: list[Interface], indices: dict[str, int]) -> Operation:
    index = _toward(route, ends, indices)
    return routes.add_route(route.to, index, protocol=RTPROT_STATIC, gateway=route.via)


def _toward(route: Route, ends: list[Interface], indices: dict[str, int]) -> int:
    """The link behind which a route's gateway is."""
    return next(
        indices[end.name]
        for end in ends
        if any(network.holds(route.via) for network in end.networks)
    )


def sends(handle: socket.socket, name: str) -> bool:
    """Whether the interface has a carrier and the kernel has acted on it (netdevice(7))."""
    # Asked before the flags: this is what makes the kernel catch up, see `wait_until_up`.
    answer = array.array("I", [ETHTOOL_GLINK, 0])
    fcntl.ioctl(handle, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), answer.buffer_info()[0]))
    raw = fcntl.ioctl(handle, SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
    flags: int = struct.unpack_from("16sH", raw)[1]
    return bool(answer[1] and flags & IFF_RUNNING)
