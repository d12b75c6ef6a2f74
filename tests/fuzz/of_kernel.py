"""What the kernel lists: netlink messages of every kind, xtables' tables, inotify's events."""

from __future__ import annotations

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
from netmgr.kernel.nf_tables import Expression
from netmgr.kernel.xtables import expressions, listing, nft
from netmgr.kernel.xtables.entries import LAYOUTS, Entry, assembled, extension
from netmgr.prefixes import Family
from tests.fuzz.mutation import Shape
from tests.fuzz.target import target

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
    lambda body: nf_tables.owner_of(body, "netmgr-agent"),
    nf_tables.chain_of,
    lambda body: nf_tables.dropping_chain_of(body, nf_tables.FORWARD_HOOK),
    nf_tables.place_of,
    nf_tables.chain_named_in,
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
    ipset.index_of,
    ipset.kind_of,
    lambda body: list(ipset.listed(body)),
    lambda body: ipset.counts_of(body, Family.V4),
    lambda body: ipset.counts_of(body, Family.V6),
    lambda body: nft.entry_of(body, Family.V4),
    lambda body: nft.entry_of(body, Family.V6),
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
    if isinstance(found, Entry):
        # Another program's rule, whatever it is, must not hide ours.
        _read(found)
    if decode in _BY_STRUCTURE:
        assert found == _decoded(_BY_STRUCTURE[decode], body)
    if decode is nf_tables.chain_named_in:
        # It reads no further than the name; what is cut off behind that is another reader's.
        with suppress(KernelError):
            kinds = [kind for kind, _ in each_attribute(body, NFGENMSG.size)]
            assert len({*kinds}) < len(kinds) or found == nf_tables.place_of(body)[1]


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


@target(Shape.BYTES, rounds=4000, longest=16384)
def xtables_table(data: bytes) -> None:
    """A table of legacy iptables is a `KernelError`, or every rule of it can be read."""
    if not data:
        return
    family = tuple(Family)[data[0] % 2]
    content = data[1:]
    try:
        table = listing.Table(bytearray(content), {0: "INPUT"}, family)
        table.rule_counts()
        table.drops("INPUT")
        found = table.having(b"iptables-exporter ")
        for entries in found.values():
            for entry in entries:
                _read(entry)
    except KernelError:
        return


def _read(entry: Entry) -> None:
    entry.comment  # noqa: B018  it is read for its errors
    entry.conditions()
    entry.target_extension()
    assert entry.does_the_same_as(entry)
    assert entry.with_counts(1, 2).counters == (1, 2)


@target(Shape.BYTES, rounds=4000)
def xtables_round_trip(data: bytes) -> None:
    """A rule as iptables writes it is the same after a way through nf_tables' expressions."""
    entry = _entry(data)
    encoded = [_listed(one) for one in expressions.encode(entry)]
    again = expressions.decode(encoded, entry.family)
    assert again.conditions() == entry.conditions()
    assert again.counters == entry.counters
    assert (again.target, again.is_goto) == (entry.target, entry.is_goto)
    assert again.does_the_same_as(entry)


def _listed(expression: Expression) -> Expression:
    """The expression as it comes back in a listing."""
    ((_, item),) = each_attribute(expression.encode())
    parts = attributes(item)
    return Expression(netlink.string_of(parts[1]), attributes(parts[2]))


class _Reader:
    """Takes numbers off the input; zeros once it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, size: int) -> bytes:
        head, self._data = self._data[:size], self._data[size:]
        return head.ljust(size, b"\0")

    def number(self, end: int) -> int:
        return self.take(1)[0] % end


def _entry(data: bytes) -> Entry:
    """A rule that iptables can write."""
    reader = _Reader(data)
    family = tuple(Family)[reader.number(2)]
    layout = LAYOUTS[family]
    head = bytearray(layout.size)
    size, at = layout.address, layout.links_at
    for side in range(2):
        length = reader.number(8 * size + 1)
        mask = ((1 << 8 * size) - 1 >> 8 * size - length << 8 * size - length).to_bytes(size, "big")
        address = bytes(a & b for a, b in zip(reader.take(size), mask, strict=True))
        head[side * size : (side + 1) * size] = address
        head[(2 + side) * size : (3 + side) * size] = mask
        name = b"nm0123456789ab"[: reader.number(15)]
        is_beginning = bool(name) and reader.number(2)
        shown = name + (b"+" if is_beginning else b"\0") if name else b""
        head[at + side * 16 : at + side * 16 + len(shown)] = shown
        significant = len(name) + (not is_beginning) if name else 0
        head[at + 32 + side * 16 : at + 32 + side * 16 + significant] = b"\xff" * significant
        for flag, is_there in ((0x08 << side, length), (0x01 << side, name)):
            head[layout.invert_at] |= flag if is_there and reader.number(2) else 0
    protocol = reader.number(256)
    head[layout.protocol_at] = protocol
    if protocol:
        head[layout.flags_at] |= layout.has_protocol
        head[layout.invert_at] |= 0x40 if reader.number(2) else 0
    matches = b""
    for _ in range(reader.number(4)):
        names = ("comment", "set", "addrtype", "conntrack")
        name, size = names[reader.number(4)], 8 * reader.number(16)
        matches += extension(name, reader.take(size), reader.number(256))
    names = ("", "DROP", "RETURN", "ACCEPT", "NETMGR-FORWARD", "MASQUERADE")
    name = names[reader.number(6)]
    is_chain = name.startswith("NETMGR")
    if is_chain and reader.number(2):
        head[layout.flags_at] |= layout.goto
    plain = extension(name, bytes(4) if name != "MASQUERADE" else reader.take(24))
    return assembled(head, matches, name, plain, family).with_counts(reader.number(256), 1 << 40)


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
    """A line of /proc/net/dev is a `KernelError`, or has the figures that it shows."""
    text = data.decode("ascii", errors="surrogateescape")
    for line in text.splitlines():
        with suppress(KernelError):
            name, carried = links._carried(line)
            assert str(carried.received) in line
            assert name in line
