"""Hears of routes and neighbour entries that are deleted, in rtnetlink's groups (rtnetlink(7))."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from errno import EAGAIN, ENOBUFS, EPERM
from typing import ClassVar, NamedTuple

from netmgr.errors import KernelError
from netmgr.kernel.neighbours import RTM_DELNEIGH, neighbour_of
from netmgr.kernel.netlink import SOL_NETLINK, Reader, messages
from netmgr.kernel.routes import RTM_DELROUTE, RTN_BLACKHOLE
from netmgr.prefixes import Address

_ADD_MEMBERSHIP, _LISTEN_ALL_NSID = 1, 8
_RTNLGRP_NEIGH, _RTNLGRP_IPV4_ROUTE, _RTNLGRP_IPV6_ROUTE = 3, 7, 11
_SO_ATTACH_FILTER = 26
_RECEIVE_BYTES, _MOST_AT_ONCE = 1 << 16, 4096

# BPF: LD|W|ABS, LD|H|ABS, JMP|JEQ|K, RET|K
_LOAD_WORD, _LOAD_HALF, _JUMP_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_TYPE_OFFSET = 4
# Of the first attribute's value in a neighbour's message, which is NDA_DST (neigh_fill_info).
_ADDRESS_OFFSET = 32

_News = tuple[int, bytes, int]
"""Type and body of a message, and the number of its namespace; -1 for the listener's own."""


class _Listener(Reader):
    """Joins groups of rtnetlink's. The caller asks nothing by this socket."""

    _hearing: ClassVar[str]

    def _join(self, *groups: int) -> None:
        # Without a port of its own the socket would be taken for the kernel's, and skipped.
        self._socket.bind((0, 0))
        for group in groups:
            self._socket.setsockopt(SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _news(self) -> Iterator[_News | None]:
        """What waits to be read; None where the kernel had no room for some messages."""
        # Bounded, since a pod that changes its MAC all the time must not keep its reader for good.
        for _ in range(_MOST_AT_ONCE):
            try:
                data, extra, _, _ = self._socket.recvmsg(
                    _RECEIVE_BYTES, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT
                )
            except OSError as error:
                if error.errno == EAGAIN:
                    return
                if error.errno != ENOBUFS:
                    raise KernelError(self._hearing, error.errno or 0) from None
                yield None
            else:
                netns = _namespace_of(extra)
                yield from ((kind, body, netns) for kind, _, _, body in messages(data))


class BlackholeLosses(_Listener):
    """Of a protocol, in this namespace."""

    _hearing = "hear of routes"

    def __init__(self, protocol: int) -> None:
        super().__init__()
        self._lost = protocol, RTN_BLACKHOLE
        self._join(_RTNLGRP_IPV4_ROUTE, _RTNLGRP_IPV6_ROUTE)

    def read(self) -> bool:
        """Whether there was one since the last call, or there may have been."""
        is_lost = False
        # To the end, since what stays in the queue would be news again.
        for news in self._news():
            if news is None:
                is_lost = True
            elif news[0] == RTM_DELROUTE:
                # The sixth and the eighth byte of struct rtmsg.
                is_lost |= (news[1][5], news[1][7]) == self._lost
        return is_lost


class LinkEnd(NamedTuple):
    """A link as another namespace knows it: the number of its namespace there, and its own."""

    netns: int
    number: int


class NeighbourLosses(_Listener):
    """Reports deleted entries for a few addresses, in every namespace with a link into this one."""

    _hearing = "hear of the neighbours of every sandbox"

    def __init__(self, addresses: Collection[Address]) -> None:
        super().__init__()
        self._addresses = frozenset(addresses)
        try:
            # Every link that is deleted loses entries, so the kernel drops what is not wanted.
            _filter(self._socket, self._addresses)
            self._socket.setsockopt(SOL_NETLINK, _LISTEN_ALL_NSID, 1)
            self._join(_RTNLGRP_NEIGH)
        except OSError as error:
            self.close()
            lacking = "CAP_NET_BROADCAST is missing" if error.errno == EPERM else ""
            raise KernelError(self._hearing, error.errno or 0, lacking) from None

    def read(self) -> set[LinkEnd] | None:
        """Links that lost such an entry since the last call; None after an overflow: any may."""
        ends, heard = set(), list(self._news())
        for kind, body, netns in filter(None, heard):
            # Events of the listener's own namespace carry no number (netlink_cmsg_listen_all_nsid).
            # They are about the host's entries, which are not waited for here.
            if kind == RTM_DELNEIGH and netns >= 0:
                # The kernel's filter compared four bytes of the address only.
                lost = neighbour_of(body)
                if lost and lost.address in self._addresses:
                    ends.add(LinkEnd(netns, lost.link))
        return None if None in heard else ends


def _namespace_of(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in extra:
        if (level, kind) == (SOL_NETLINK, _LISTEN_ALL_NSID):
            return int.from_bytes(value[:4], sys.byteorder, signed=True)
    return -1


def _filter(listener: socket.socket, addresses: Collection[Address]) -> None:
    """Pass only deletions of addresses with these first four bytes (SO_ATTACH_FILTER)."""
    # The filter loads in network order what a netlink header has in the machine's own.
    kind = socket.htons(RTM_DELNEIGH)
    first_words = [int.from_bytes(address.packed[:4], "big") for address in addresses]
    words = len(first_words)
    # A jump counts from the next instruction. The first of the two returns drops the message, the
    # second passes all of it.
    program = [
        (_LOAD_HALF, 0, 0, _TYPE_OFFSET),
        (_JUMP_EQUAL, 0, words + 1, kind),
        (_LOAD_WORD, 0, 0, _ADDRESS_OFFSET),
        *((_JUMP_EQUAL, words - place, 0, word) for place, word in enumerate(first_words)),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, 0xFFFF),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    listener.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("@HP", len(program), ctypes.addressof(code)),
    )
