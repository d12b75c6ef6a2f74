"""What the kernel lists: netlink messages of every kind, xtables' tables, inotify's events."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from netmgr.errors import KernelError
from netmgr.kernel import (
    conntrack,
    flowtables,
    inotify,
    ipset,
    links,
    neighbours,
    netlink,
    nf_tables,
    routes,
    traffic_control,
)
from netmgr.kernel.netlink import NFGENMSG, Operation, attributes, each_attribute
from netmgr.prefixes import Family
from tests.fuzz.mutation import Shape
from tests.fuzz.target import file_of, target

Decode = Callable[[bytes], object]

_ASKED = Operation("fuzzed", 0, 0, b"")


ROUTE_DECODERS: tuple[Decode, ...] = (
    links.link_of,
    lambda body: links.inet_settings(links.link_of(body)),
    links.address_of,
    links.namespace_id_of,
    routes.route_of,
    routes.rule_of,
    neighbours.neighbour_of,
    neighbours.permanent_of,
    traffic_control._class_of,
)
NETFILTER_DECODERS: tuple[Decode, ...] = (
    nf_tables.table_of,
    lambda body: nf_tables.base_chain_of(body, nf_tables.FORWARD_HOOK),
    nf_tables.rule_of,
    nf_tables.counts_of,
    nf_tables.counter_of,
    nf_tables.generation_of,
    flowtables._flowtable_of,
    conntrack._sources_of,
    lambda body: conntrack._reply_of(Family.V4, body),
    lambda body: conntrack._reply_of(Family.V6, body),
    ipset.revision_of,
    ipset.name_of,
    ipset.kind_of,
    lambda body: list(ipset.listed(body)),
    lambda body: ipset.counts_of(body, Family.V4),
    lambda body: ipset.counts_of(body, Family.V6),
)


def _decoded(decode: Decode, body: bytes) -> Any:
    """As a channel decodes an answer."""
    return netlink._decoded(_ASKED, decode, body)


@target(Shape.NETLINK, rounds=6000)
def rtnetlink(data: bytes) -> None:
    """A message of rtnetlink is a `KernelError`, or whole; what ours encode comes back the same."""
    if not data:
        return
    decode = ROUTE_DECODERS[data[0] % len(ROUTE_DECODERS)]
    with suppress(KernelError):
        _decoded(decode, data[1:])


@target(Shape.NETLINK, rounds=6000)
def nfnetlink(data: bytes) -> None:
    """A message of nfnetlink is a `KernelError`, or whole; what is read by position is the same."""
    if not data:
        return
    decode = NETFILTER_DECODERS[data[0] % len(NETFILTER_DECODERS)]
    body = data[1:]
    try:
        found = _decoded(decode, body)
    except KernelError:
        return
    if decode in _BY_STRUCTURE:
        assert found == _decoded(_BY_STRUCTURE[decode], body)


def _counts(body: bytes) -> list[tuple[bytes, int, int]]:
    listed = attributes(body, NFGENMSG.size).get(3, b"")
    return [one for _, item in each_attribute(listed) for one in nf_tables._counts_of_one(item)]


_BY_STRUCTURE: Mapping[Decode, Decode] = {nf_tables.counts_of: _counts}
"""The same by a slower way that takes no position for granted."""


@target(Shape.NETLINK, rounds=6000, longest=8192)
def netlink_frame(data: bytes) -> None:
    """A datagram is a `KernelError`, or consists of messages that make it up again."""
    try:
        found = list(netlink.messages(data))
    except KernelError:
        return
    size = sum(16 + (len(body) + 3 & ~3) for _, _, _, body in found)
    assert 0 <= size - len(data) < 4
    for kind, flags, _, body in found:
        if kind == netlink.NLMSG_ERROR:
            with suppress(KernelError):
                netlink.error_of(flags, body)


@target(Shape.BYTES, rounds=3000, longest=1024)
def inotify_events(data: bytes) -> None:
    """Events as the kernel frames them are read one by one; names come back as bytes that are."""
    framed, wanted = b"", []
    for piece in data.split(b"\n"):
        name = piece.replace(b"\0", b"")[:255]
        padded = name.ljust(-(-(len(name) + 1) // 16) * 16, b"\0") if name else b""
        framed += struct.pack("=iIII", 1, len(name), 0, len(padded)) + padded
        wanted.append((len(name), name.decode(errors="surrogateescape")))
    assert list(inotify._events(framed)) == wanted


@target(Shape.TEXT, rounds=3000)
def proc_net_dev(data: bytes) -> None:
    """A line of /proc/net/dev is a `KernelError`, or a link with the figures that it shows."""
    for line in data.split(b"\n"):
        with file_of(b"head\nhead\n" + line + b"\n", "dev") as path, suppress(KernelError):
            ((name, carried),) = links.read_carried(path).items()
            assert str(carried.received).encode() in line
            assert os.fsencode(name) == line.rpartition(b":")[0].lstrip(b" ")
