"""Builds a topology's hosts and links: namespaces pinned in one directory, veth pairs between them.

Every link is made inside the two namespaces it joins, so nothing ever shows up in the
machine's own. Removing a namespace removes its links, routes and rules with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netmgr.dataplane import netns
from netmgr.errors import KernelError
from netmgr.lab.topology import Host, Interface, Link, Topology
from netmgr.prefixes import Family

IFA_F_NODAD = 0x02
"""Usable at once: duplicate address detection would hold a v6 address back for a second (RFC 4862, 5.4)."""

_SYSTEM_FAMILY = {Family.V4: 2, Family.V6: 10}


@contextmanager
def inside(path: Path) -> Iterator[None]:
    """Have the calling thread in the namespace pinned at `path` for the length of the block."""
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
    with ExitStack() as open_sockets:
        sockets: dict[str, IPRoute] = {}
        for host in topology.hosts:
            make_host(host, directory / host.name)
            with inside(directory / host.name):
                sockets[host.name] = open_sockets.enter_context(IPRoute())
        try:
            for link in topology.links:
                _lay(link, sockets, directory)
            for host in topology.hosts:
                _set_routes(host, sockets[host.name])
        except NetlinkError as error:
            raise KernelError("wire the lab", error.code) from error


def wait_until_up(topology: Topology, directory: Path, timeout: float = 10) -> None:
    """Wait until every interface of `topology` sends and receives, for at most `timeout` seconds.

    A link's first end learns of its carrier up to a second after the second end is up, and
    drops packets until then. Asking for a link by its index makes the kernel catch up
    (rtnl_getlink, linkwatch_sync_dev), so with a recent kernel there is nothing to wait for.

    Raises:
        KernelError: a link stayed down.
    """
    deadline = time.monotonic() + timeout
    for host in topology.hosts:
        with inside(directory / host.name), IPRoute() as route:
            for index in [link["index"] for link in route.get_links()]:
                while (link := route.link("get", index=index)[0]).get("operstate") == "DOWN":
                    if time.monotonic() > deadline:
                        raise KernelError(f"bring up {link.get('ifname')} in {host.name}", details="no carrier")
                    time.sleep(0.02)


def make_host(host: Host, path: Path) -> None:
    """Make one namespace at `path`, its loopback up."""
    netns.create(path)
    with inside(path):
        _set("ipv6/conf/default/accept_dad", "0")
        _set("ipv4/ping_group_range", "0 2147483647")
        if host.forwards:
            _set("ipv4/ip_forward", "1")
            _set("ipv6/conf/all/forwarding", "1")
        with IPRoute() as route:
            route.link("set", index=1, state="up")


def _set(key: str, value: str) -> None:
    Path("/proc/sys/net", key).write_text(value, encoding="ascii")


def _lay(link: Link, sockets: dict[str, IPRoute], directory: Path) -> None:
    near, far = link.ends
    descriptor = os.open(directory / far.host, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sockets[near.host].link(
            "add",
            ifname=near.name,
            kind="veth",
            mtu=link.mtu,
            peer={"ifname": far.name, "net_ns_fd": descriptor, "mtu": link.mtu},
        )
    finally:
        os.close(descriptor)
    for end in link.ends:
        _bring_up(end, sockets[end.host])


def _bring_up(end: Interface, route: IPRoute) -> None:
    index = route.link_lookup(ifname=end.name)[0]
    for own in end.addresses:
        family = own.address.family
        flags = {"flags": IFA_F_NODAD} if family is Family.V6 else {}
        route.addr("add", index=index, address=str(own.address), prefixlen=own.length, **flags)
    route.link("set", index=index, state="up")


def _set_routes(host: Host, route: IPRoute) -> None:
    for entry in host.routes:
        family = _SYSTEM_FAMILY[entry.to.family]
        route.route("add", dst=str(entry.to), gateway=str(entry.via), family=family)
