"""What one network namespace holds, of whatever made it: links, addresses, and unicast routes of every table."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from netmgr.dataplane import netlink, rtnetlink
from netmgr.dataplane.links import Link, link_of
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import NLM_F_DUMP, RTM_GETROUTE, RTN_UNICAST, Operation
from netmgr.prefixes import Address, Family, Prefix

_RTMSG = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_TABLE = 1, 5, 6, 15
_AF = {Family.V4: 2, Family.V6: 10}


class RouteEntry(NamedTuple):
    """One route: `table`, `priority` (the metric) and `scope` as rtnetlink(7) numbers them."""

    destination: Prefix
    gateway: Address | None
    table: int
    priority: int
    scope: int


class Contents(NamedTuple):
    """Links by name, (link, address, prefix length) of each address, and routes."""

    links: dict[str, Link]
    addresses: set[tuple[str, Address, int]]
    routes: list[RouteEntry]


def contents_of(namespace: str) -> Contents:
    """What the namespace at a path holds.

    Raises:
        KernelError: there is none at this path, or the kernel refuses to list it.
    """
    descriptor = netlink.open_namespace(namespace)
    try:
        channel, _ = netlink.open_in(descriptor, "lo")
        with channel:
            routes = [route for family in Family for route in channel.dump(_dump_routes(family), _route_of)]
            return _read(channel)._replace(routes=routes)
    finally:
        os.close(descriptor)


def own_contents() -> Contents:
    """The same of the agent's own namespace, without its routes, of which a host may have many."""
    with Netlink() as channel:
        return _read(channel)


def _read(channel: Netlink) -> Contents:
    links = channel.dump(rtnetlink.dump_links(), link_of)
    names = {link.number: link.name for link in links}
    addresses = {
        (names.get(oif, ""), Address(each.family, each.value), each.length)
        for family in Family
        for each, oif in channel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
    }
    return Contents({link.name: link for link in links}, addresses, [])


def _dump_routes(family: Family) -> Operation:
    body = _RTMSG.pack(_AF[family], 0, 0, 0, 0, 0, 0, RTN_UNICAST, 0)
    return Operation(f"route dump IPv{family.value} of every table", RTM_GETROUTE, NLM_F_DUMP, body)


def _route_of(body: bytes) -> RouteEntry | None:
    af, length, _, _, table, _, scope, kind, _ = _RTMSG.unpack_from(body)
    family = next((family for family, number in _AF.items() if number == af), None)
    if family is None or kind != RTN_UNICAST:
        return None
    found = rtnetlink.attributes(body, _RTMSG.size)
    destination = Prefix(family, int.from_bytes(found.get(_RTA_DST, b""), "big"), length)
    gateway = Address(family, int.from_bytes(found[_RTA_GATEWAY], "big")) if _RTA_GATEWAY in found else None
    # The header has one byte for the table; beyond 255 the attribute says which.
    whole = int.from_bytes(found[_RTA_TABLE], "little") if _RTA_TABLE in found else table
    return RouteEntry(destination, gateway, whole, int.from_bytes(found.get(_RTA_PRIORITY, b""), "little"), scope)
