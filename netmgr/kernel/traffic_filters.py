"""Filters of traffic control that run programs of eBPF, as rtnetlink messages (tc-bpf(8)).

They are in a link's clsact, or in a block that the clsacts of many links share.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from netmgr.errors import Ignoring
from netmgr.kernel import netlink
from netmgr.kernel.netlink import Netlink, Operation, Reader

_NEW_QDISC, _DELETE_QDISC, _GET_QDISC = 36, 37, 38
_NEW_FILTER, _DELETE_FILTER, _GET_FILTER = 44, 45, 46
_TCMSG = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS, _BLOCKS = 1, 2, (13, 14)
_FD, _NAME, _FLAGS, _ID, _DIRECT_ACTION = 6, 7, 8, 11, 1
_CLSACT, _CLSACT_HANDLE, _INGRESS, _EGRESS = 0xFFFFFFF1, 0xFFFF0000, 0xFFFFFFF2, 0xFFFFFFF3
# In place of a link's index: the filter is in a block, whose number is the parent's.
_IN_BLOCK = -1
# The first priority, for packets of any protocol (ETH_P_ALL); ours is known by its handle there.
_INFO, _HANDLE = 1 << 16 | socket.htons(3), 0x6E6D


# The numbers of those that a link's way in and its way out share with other links'; 0 for none.
Blocks = tuple[int, int]
NO_BLOCKS: Blocks = (0, 0)


class FilterPlace(NamedTuple):
    """Where a filter is: one way of a link, or a block."""

    link: int
    parent: int

    def __str__(self) -> str:
        """As tc(8) is told it."""
        if self.link == _IN_BLOCK:
            return f"block {self.parent}"
        way = "ingress" if self.parent == _INGRESS else "egress"
        return f"dev {netlink.name_of(self.link)} {way}"

    @classmethod
    def entering(cls, link: int) -> FilterPlace:
        return cls(link, _INGRESS)

    @classmethod
    def leaving(cls, link: int) -> FilterPlace:
        return cls(link, _EGRESS)

    @classmethod
    def block(cls, number: int) -> FilterPlace:
        return cls(_IN_BLOCK, number)


def add_clsact(link: int, blocks: Blocks = NO_BLOCKS) -> Operation:
    """Give a link a clsact (EEXIST if it has one)."""
    body = _TCMSG.pack(0, link, _CLSACT_HANDLE, _CLSACT, 0)
    shared = {kind: number or None for kind, number in zip(_BLOCKS, blocks, strict=True)}
    body += netlink.encoded({_KIND: "clsact", **shared})
    return Operation(f"qdisc add dev {netlink.name_of(link)} clsact", _NEW_QDISC, netlink.ADD, body)


def put_filter(place: FilterPlace, descriptor: int, name: str) -> Operation:
    """Have a program run there: by a new filter, or at once in place of ours that is there."""
    options: netlink.Values = {_FD: descriptor, _NAME: name, _FLAGS: _DIRECT_ACTION}
    body = _TCMSG.pack(0, place.link, _HANDLE, place.parent, _INFO)
    body += netlink.encoded({_KIND: "bpf", _OPTIONS: options})
    flags = netlink.NLM_F_ACK | netlink.NLM_F_CREATE
    return Operation(f"filter replace {place} bpf {name}", _NEW_FILTER, flags, body)


def delete_filter(place: FilterPlace) -> Operation:
    body = _TCMSG.pack(0, place.link, _HANDLE, place.parent, _INFO)
    body += netlink.encoded({_KIND: "bpf"})
    return Operation(f"filter delete {place}", _DELETE_FILTER, netlink.NLM_F_ACK, body)


def read_clsacts(channel: Reader) -> dict[int, Blocks]:
    """Links with a clsact, and its blocks."""
    body = _TCMSG.pack(0, 0, 0, 0, 0)
    request = Operation("qdisc dump", _GET_QDISC, netlink.NLM_F_DUMP, body)
    return dict(channel.dump(request, _clsact_of))


def _clsact_of(body: bytes) -> tuple[int, Blocks] | None:
    _, link, *_ = _TCMSG.unpack_from(body)
    attributes = netlink.attributes(body, _TCMSG.size)
    is_clsact = netlink.string_of(attributes.get(_KIND, b"")) == "clsact"
    entry, exit_ = (netlink.u32_of(attributes.get(kind)) for kind in _BLOCKS)
    return (link, (entry, exit_)) if is_clsact else None


def places(channel: Reader) -> Iterator[FilterPlace]:
    """Wherever there may be filters: each way of links with a clsact, and the blocks they share."""
    for link, blocks in read_clsacts(channel).items():
        yield from (FilterPlace.entering(link), FilterPlace.leaving(link))
        yield from map(FilterPlace.block, filter(None, blocks))


def read_filters(channel: Reader, place: FilterPlace) -> list[tuple[bool, int]]:
    """The filters there, in their order: whether each is ours, and its program's number."""
    body = _TCMSG.pack(0, place.link, 0, place.parent, 0)
    request = Operation(f"filter show {place}", _GET_FILTER, netlink.NLM_F_DUMP, body)
    # Links come and go, and a block is there while a link shares it.
    with Ignoring(errno.ENOENT, errno.ENODEV, errno.EINVAL):
        return channel.dump(request, _filter_of)
    return []


def _filter_of(body: bytes) -> tuple[bool, int] | None:
    _, _, handle, _, info = _TCMSG.unpack_from(body)
    options = netlink.attributes(netlink.attributes(body, _TCMSG.size).get(_OPTIONS, b""))
    is_ours = (handle, info) == (_HANDLE, _INFO)
    # Each priority is listed by itself, too.
    return (is_ours, netlink.u32_of(options.get(_ID))) if handle else None


def remove_unused(channel: Netlink) -> None:
    """Remove every clsact that has no filter; nobody misses it."""
    # Not while another way of counting takes over: a link whose clsact comes or goes loses what it
    # sends meanwhile (qdisc_graft).
    for link in read_clsacts(channel):
        ways = FilterPlace.entering(link), FilterPlace.leaving(link)
        if not any(read_filters(channel, place) for place in ways):
            body = _TCMSG.pack(0, link, _CLSACT_HANDLE, _CLSACT, 0)
            text = f"qdisc delete dev {link} clsact"
            channel.attempt([Operation(text, _DELETE_QDISC, netlink.NLM_F_ACK, body)])
