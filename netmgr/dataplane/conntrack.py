"""Asks the kernel's connection table whether it still names an address (linux/netfilter/nfnetlink_conntrack.h)."""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import KernelError
from netmgr.prefixes import Address, Family

_NETLINK_NETFILTER = 12
_CT_GET = (1 << 8) | 1
_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY, _CTA_TUPLE_IP, _CTA_FILTER = 1, 2, 1, 25
_FILTER_FLAGS = {_CTA_TUPLE_ORIG: 1, _CTA_TUPLE_REPLY: 2}
_FILTER_BY_SOURCE = 1
_CTA_IP_SOURCE = {Family.V4: 1, Family.V6: 3}
_AF = {Family.V4: 2, Family.V6: 10}
_NFGENMSG = struct.Struct("=BBH")
_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_WALK_SECONDS = 0.009
_ENTRY_SECONDS = 0.00001
"""What one walk of the table costs the kernel, and decoding one entry us; measured on one 2 GHz core."""
_NO_CONNTRACK = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT}

log = logging.getLogger(__name__)


def named(addresses: Iterable[Address]) -> set[Address]:
    """Those of `addresses` that a tracked connection came from, or was answered by.

    A small table is listed once; of a large one the kernel picks each address's connections
    (CTA_FILTER, Linux 5.8), so that it is walked but never copied. IPv6 is always listed: the
    kernel's comparison of IPv6 addresses in that filter is inverted (seen in Linux 6.18). Where
    connections are not tracked at all, none is named.
    """
    wanted = set(addresses)
    tracked = _tracked()
    if not tracked:
        return set()
    try:
        with Netlink(_NETLINK_NETFILTER) as channel:
            listings = (channel.dump(request, _sources_of) for request in _requests(wanted, tracked))
            return wanted & {source for listing in listings for sources in listing for source in sources}
    except KernelError as error:
        if error.errno not in _NO_CONNTRACK:
            log.warning("connection-table-unread error=%s", error)
        return set()


def _requests(wanted: set[Address], tracked: int) -> Iterator[rtnetlink.Operation]:
    for family in Family:
        members = [address for address in wanted if address.family is family]
        if not members:
            continue
        if family is Family.V6 or tracked * _ENTRY_SECONDS < 2 * len(members) * _WALK_SECONDS:
            yield _listing(family)
        else:
            yield from (_filtered(a, side) for a in members for side in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY))


def _tracked() -> int:
    try:
        return int(_COUNT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _listing(family: Family) -> rtnetlink.Operation:
    return rtnetlink.Operation("connections", _CT_GET, rtnetlink.NLM_F_DUMP, _NFGENMSG.pack(_AF[family], 0, 0))


def _filtered(address: Address, side: int) -> rtnetlink.Operation:
    source = rtnetlink.attribute(_CTA_IP_SOURCE[address.family], address.packed)
    flags = rtnetlink.attribute(_FILTER_FLAGS[side], struct.pack("=I", _FILTER_BY_SOURCE))
    body = _NFGENMSG.pack(_AF[address.family], 0, 0)
    body += rtnetlink.nested(side, rtnetlink.nested(_CTA_TUPLE_IP, source)) + rtnetlink.nested(_CTA_FILTER, flags)
    return rtnetlink.Operation(f"connections of {address}", _CT_GET, rtnetlink.NLM_F_DUMP, body)


def _sources_of(body: bytes) -> list[Address]:
    """Source addresses of both directions of one connection."""
    found = []
    connection = rtnetlink.attributes(body, _NFGENMSG.size)
    for side in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY):
        addresses = rtnetlink.attributes(rtnetlink.attributes(connection.get(side, b""), 0).get(_CTA_TUPLE_IP, b""), 0)
        for family, kind in _CTA_IP_SOURCE.items():
            if kind in addresses and len(addresses[kind]) == family.width // 8:
                found.append(Address(family, int.from_bytes(addresses[kind], "big")))
    return found
