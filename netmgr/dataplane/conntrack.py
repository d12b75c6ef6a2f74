"""Asks the kernel's connection table whether it still names an address (linux/netfilter/nfnetlink_conntrack.h)."""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Iterable

from netmgr.dataplane import rtnetlink
from netmgr.prefixes import Address, Family

_NETLINK_NETFILTER = 12
_CT_GET = (1 << 8) | 1
_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY, _CTA_TUPLE_IP, _CTA_FILTER = 1, 2, 1, 25
_FILTER_FLAGS = {_CTA_TUPLE_ORIG: 1, _CTA_TUPLE_REPLY: 2}
_FILTER_BY_SOURCE = 1
_CTA_IP_SOURCE = {Family.V4: 1, Family.V6: 3}
_AF = {Family.V4: 2, Family.V6: 10}
_NO_CONNTRACK = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT}

log = logging.getLogger(__name__)


def named(addresses: Iterable[Address]) -> set[Address]:
    """Those of `addresses` that a tracked connection came from, or was answered by.

    The kernel filters (CTA_FILTER, Linux 5.8), so a large table is walked but never copied. Where
    connections are not tracked at all, none is named.
    """
    found = set()
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER) as sock:
            sock.settimeout(5)
            for sequence, address in enumerate(addresses):
                sides = (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY)
                # Both sides are asked, always: a dump left unread would answer the next question.
                if sum(_count(sock, address, side, 2 * sequence + side) for side in sides):
                    found.add(address)
    except OSError as error:
        if error.errno not in _NO_CONNTRACK:
            log.warning("connection table cannot be read error=%s", error)
    return found


def _count(sock: socket.socket, address: Address, side: int, sequence: int) -> int:
    source = rtnetlink.attribute(_CTA_IP_SOURCE[address.family], address.packed)
    tuple_ip = rtnetlink.nested(_CTA_TUPLE_IP, source)
    flags = rtnetlink.attribute(_FILTER_FLAGS[side], struct.pack("=I", _FILTER_BY_SOURCE))
    body = struct.pack("=BBH", _AF[address.family], 0, 0)
    body += rtnetlink.nested(side, tuple_ip) + rtnetlink.nested(_CTA_FILTER, flags)
    request = rtnetlink.Operation(f"connections of {address}", _CT_GET, rtnetlink.NLM_F_DUMP, body)
    sock.send(rtnetlink.encode(request, sequence))
    count = 0
    while True:
        for kind, message_flags, number, payload in rtnetlink.messages(sock.recv(1 << 16)):
            if number != sequence:
                continue
            if kind == rtnetlink.NLMSG_DONE:
                return count
            if kind == rtnetlink.NLMSG_ERROR:
                code, reason = rtnetlink.error_of(message_flags, payload)
                raise OSError(code, reason or "refused")
            count += 1
