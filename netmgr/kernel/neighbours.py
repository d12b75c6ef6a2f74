"""Neighbour entries as rtnetlink messages, and news of deleted ones (linux/neighbour.h)."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from errno import EAGAIN, ENOBUFS, EPERM
from typing import NamedTuple, Self

from netmgr.errors import KernelError
from netmgr.kernel import netlink
from netmgr.prefixes import Address, Family

RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30
_NUD_PERMANENT = 0x80
_NDA_DST, _NDA_LLADDR, _NDA_IFINDEX = 1, 2, 8
_NDMSG = struct.Struct("=BxxxiHBB")

_ADD_MEMBERSHIP, _LISTEN_ALL_NSID = 1, 8
_RTNLGRP_NEIGH = 3
_SO_ATTACH_FILTER = 26
_RECEIVE_BYTES = 1 << 16
_MOST_AT_ONCE = 4096

# BPF: LD|W|ABS, LD|H|ABS, JMP|JEQ|K, RET|K
_LOAD_WORD, _LOAD_HALF, _JUMP_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_TYPE_OFFSET = 4
_ADDRESS_OFFSET = 32
"""Of the first attribute's value in a neighbour's message, which is NDA_DST (neigh_fill_info)."""


class Neighbour(NamedTuple):
    """One entry: the hardware address of an address, on a link."""

    address: Address
    mac: bytes
    link: int


def add_neighbour(address: Address, mac: bytes, index: int) -> netlink.Operation:
    """Install or replace a permanent neighbour entry."""
    # A permanent entry is neither resolved again nor aged nor collected (neigh_periodic_work).
    body = _NDMSG.pack(address.family.af, index, _NUD_PERMANENT, 0, 0)
    body += netlink.attribute(_NDA_DST, address.packed) + netlink.attribute(_NDA_LLADDR, mac)
    text = f"neighbour add {address} on link {index}"
    return netlink.Operation(
        text, RTM_NEWNEIGH, netlink.NLM_F_ACK | netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE, body
    )


def read_permanent(channel: netlink.Reader, index: int = 0) -> set[Neighbour]:
    """The permanent entries of both families: of one link, or of all."""
    # The link is an attribute, because with the strict check the header of a dump must be empty
    # (neigh_valid_dump_req).
    body = _NDMSG.pack(0, 0, 0, 0, 0) + netlink.u32_attribute(_NDA_IFINDEX, index)
    request = netlink.Operation(
        f"neighbour dump of link {index}", RTM_GETNEIGH, netlink.NLM_F_DUMP, body
    )
    return set(channel.dump(request, permanent_of))


def permanent_of(body: bytes) -> Neighbour | None:
    """Decode an RTM_NEWNEIGH body; None for an entry that is not permanent."""
    _, _, state, _, _ = _NDMSG.unpack_from(body)
    return neighbour_of(body) if state & _NUD_PERMANENT else None


def neighbour_of(body: bytes) -> Neighbour | None:
    """Decode the body of a message about a neighbour; None for another family's."""
    af, index, _, _, _ = _NDMSG.unpack_from(body)
    attributes = netlink.attributes(body, _NDMSG.size)
    if Family.of_af(af) is None or _NDA_DST not in attributes:
        return None
    return Neighbour(Address.unpack(attributes[_NDA_DST]), attributes.get(_NDA_LLADDR, b""), index)


class LinkEnd(NamedTuple):
    """A link as another namespace knows it: the number of its namespace there, and its own."""

    netns: int
    number: int


class NeighbourLosses:
    """Reports deleted entries for a few addresses, in every namespace with a link into this one."""

    def __init__(self, addresses: Collection[Address]) -> None:
        """Open the socket.

        Raises:
            KernelError: CAP_NET_BROADCAST is missing, or the process may open no more files.
        """
        self._addresses = frozenset(addresses)
        self._has_overflown = False
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK,
                socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                socket.NETLINK_ROUTE,
            )
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from None
        try:
            # Every link that is deleted loses entries, so the kernel drops what is not wanted.
            _filter(self._socket, self._addresses)
            # Without a port of its own the socket would be taken for the kernel's, and skipped.
            self._socket.bind((0, 0))
            self._socket.setsockopt(netlink.SOL_NETLINK, _LISTEN_ALL_NSID, 1)
            self._socket.setsockopt(netlink.SOL_NETLINK, _ADD_MEMBERSHIP, _RTNLGRP_NEIGH)
        except OSError as error:
            self._socket.close()
            lacking = "CAP_NET_BROADCAST is missing" if error.errno == EPERM else ""
            raise KernelError(_HEARING, error.errno or 0, lacking) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor that is readable when there is news."""
        return self._socket.fileno()

    def read(self) -> set[LinkEnd] | None:
        """Links that lost such an entry since the last call; None after an overflow: any may."""
        ends = set()
        self._has_overflown = False
        for netns, body in self._deletions():
            # The kernel's filter compared four bytes of the address only.
            lost = neighbour_of(body)
            if lost and lost.address in self._addresses:
                ends.add(LinkEnd(netns, lost.link))
        return None if self._has_overflown else ends

    def _deletions(self) -> Iterator[tuple[int, bytes]]:
        """Number of the namespace and body of each message about a deleted entry."""
        for netns, data in self._datagrams():
            for kind, _, _, body in netlink.messages(data):
                # Events of the listener's own namespace carry no number
                # (netlink_cmsg_listen_all_nsid). They are about the host's entries, which are not
                # waited for here.
                if kind == RTM_DELNEIGH and netns >= 0:
                    yield netns, body

    def _datagrams(self) -> Iterator[tuple[int, bytes]]:
        # Bounded, since a pod that changes its MAC all the time must not keep its reader for good.
        for _ in range(_MOST_AT_ONCE):
            try:
                data, extra, _, _ = self._socket.recvmsg(_RECEIVE_BYTES, socket.CMSG_SPACE(4))
            except OSError as error:
                if error.errno == ENOBUFS:
                    # The kernel had no room for some messages; what came after is still to be read.
                    self._has_overflown = True
                    continue
                if error.errno == EAGAIN:
                    return
                raise KernelError(_HEARING, error.errno or 0) from None
            yield _namespace_of(extra), data


_HEARING = "hear of the neighbours of every sandbox"


def _namespace_of(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in extra:
        if (level, kind) == (netlink.SOL_NETLINK, _LISTEN_ALL_NSID):
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
