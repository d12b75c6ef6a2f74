"""The neighbour entries at both ends of a pod's link, and the news that a sandbox has lost its own.

Nothing is resolved on a pod's link: both ends have permanent entries. When the pod's end gets another
hardware address (the plugin `tuning` does that, and so may whoever administers the pod), the kernel
drops the sandbox's entries, permanent ones too (neigh_changeaddr), and the host's has the former address.
The kernel tells of each entry it drops; a socket can hear it of every namespace that has a link into its own.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import struct
from collections.abc import Callable, Collection, Iterable
from errno import EAGAIN, EINVAL, ENOBUFS, ENODEV, EPERM
from typing import NamedTuple, Self

from netmgr.config import POD_GATEWAYS
from netmgr.dataplane import desired, links, rtnetlink, sandbox
from netmgr.dataplane.desired import HOST_MAC
from netmgr.dataplane.links import Link
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import NLM_F_DUMP, NUD_PERMANENT, RTM_GETNEIGH, Operation, attribute
from netmgr.errors import KernelError
from netmgr.model import Attachment
from netmgr.prefixes import Address

ANY_LINK = 0
HERE = -1
RTM_DELNEIGH = 29
_NDA_IFINDEX = 8
_NDMSG = struct.Struct("=BxxxiHBB")

_SOL_NETLINK, _ADD_MEMBERSHIP, _LISTEN_ALL_NSID = 270, 1, 8
_RTNLGRP_NEIGH = 3
_SO_ATTACH_FILTER = 26
_RECEIVE_BYTES = 1 << 16
_MOST_AT_ONCE = 4096

_LOAD_WORD, _LOAD_HALF, _JUMP_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06  # LD|W|ABS, LD|H|ABS, JMP|JEQ|K, RET|K
_TYPE_OFFSET = 4
_ADDRESS_OFFSET = 32
"""Of the first attribute's value in a neighbour's message, which is NDA_DST (neigh_fill_info)."""

log = logging.getLogger(__name__)


class End(NamedTuple):
    """A link as another namespace knows it: the number of its namespace there, and its own."""

    netns: int
    number: int


class Neighbours:
    """The entries at both ends of every pod's link.

    Args:
        host: a socket in the namespace of the host's ends; stays the caller's.
    """

    def __init__(self, host: Netlink) -> None:
        self._host = host

    def follow(self, attachment: Attachment, netns_path: str) -> None:
        """Have the entries at both ends fit the MAC that the pod's end has now.

        The sandbox's come first: as long as the host's are wrong, `outdated` finds that there is something to do.

        Raises:
            KernelError: the kernel refused.
        """
        link = self._link(attachment.host_link)
        end = self._end(End(link.peer_netns, link.peer)) if link else None
        if link is None or end is None or not end.up:
            return
        with sandbox.reached(self._host, link, netns_path) as inside:
            lost = _missing_inside(inside, attachment, end.number) if inside else []
            if inside:
                inside.transact(lost)
        wrong = _missing_outside(self._host, attachment, link, end.mac)
        self._host.transact(wrong)
        if lost or wrong:
            shown = (attachment.key.container_id, attachment.key.ifname, attachment.pod, end.mac.hex(":"))
            log.info("pod-neighbours-renewed container=%s ifname=%s pod=%s mac=%s", *shown)

    def outdated(self, attachments: Callable[[], Iterable[Attachment]]) -> list[Attachment]:
        """Attachments of which the host's entries are missing, or not of the MAC that the pod's end has.

        The kernel is read before `attachments` is called, so that none is found that has just been made.
        """
        present = set(self._host.dump(_dump_neighbours_of(ANY_LINK), _permanent_of))
        macs = {
            link.name: (link.number, end.mac)
            for link in self._own_links()
            if (end := self._end(End(link.peer_netns, link.peer))) and end.up
        }
        found = []
        for attachment in attachments():
            number, mac = macs.get(attachment.host_link, (0, b""))
            if number and any((number, address, mac) not in present for address in attachment.addresses):
                found.append(attachment)
        return found

    def host_links_of(self, ends: Collection[End]) -> set[str]:
        """Names of the host's ends that these links in sandboxes lead to; of those being deleted none."""
        found = set()
        for end in ends:
            inside = self._end(end)
            outside = self._end(End(HERE, inside.peer)) if inside and inside.up else None
            if outside and (outside.peer_netns, outside.peer) == end and desired.identity_of(outside):
                found.add(outside.name)
        return found

    def pod_mac(self, link: Link) -> bytes:
        """The MAC that the pod's end of a link has now.

        Raises:
            KernelError: it is gone.
        """
        end = self._end(End(link.peer_netns, link.peer))
        if end is None:
            raise KernelError(f"find the pod's end of {link.name}", ENODEV)
        return end.mac

    def _own_links(self) -> list[Link]:
        return [link for link in self._host.dump(rtnetlink.dump_links(), links.link_of) if desired.identity_of(link)]

    def _link(self, name: str) -> Link | None:
        return self._asked(links.show_link(name))

    def _end(self, end: End) -> Link | None:
        return self._asked(links.show_link_in(end.netns, end.number))

    def _asked(self, request: Operation) -> Link | None:
        try:
            return self._host.query(request, links.link_of)
        except KernelError as error:
            # A namespace without this number is no argument, a link without this one no device.
            if error.errno not in (ENODEV, EINVAL):
                raise
            return None


def _dump_neighbours_of(index: int) -> Operation:
    """Ask for the neighbour entries of one link, of both families."""
    body = _NDMSG.pack(0, 0, 0, 0, 0) + attribute(_NDA_IFINDEX, struct.pack("=I", index))
    return Operation(f"neighbour dump of link {index}", RTM_GETNEIGH, NLM_F_DUMP, body)


def _permanent_of(body: bytes) -> tuple[int, Address, bytes] | None:
    """Decode an RTM_NEWNEIGH body into (link index, address, MAC); None for an entry that is not permanent."""
    found = rtnetlink.neighbour_of(body)
    if found is None or not found[3] & NUD_PERMANENT:
        return None
    address, mac, index, _ = found
    return index, address, mac


def _missing_inside(inside: Netlink, attachment: Attachment, index: int) -> list[Operation]:
    """The entries for the gateways that a sandbox lacks, as operations that make them."""
    present = set(inside.dump(_dump_neighbours_of(index), _permanent_of))
    gateways = [POD_GATEWAYS[family] for family in sorted({each.family for each in attachment.addresses})]
    return [
        rtnetlink.add_neighbour(gateway, HOST_MAC, index)
        for gateway in gateways
        if (index, gateway, HOST_MAC) not in present
    ]


def _missing_outside(host: Netlink, attachment: Attachment, link: Link, mac: bytes) -> list[Operation]:
    """The host's entries for a pod's addresses that are missing or of another MAC, as operations that make them."""
    present = set(host.dump(_dump_neighbours_of(link.number), _permanent_of))
    return [
        rtnetlink.add_neighbour(address, mac, link.number)
        for address in attachment.addresses
        if (link.number, address, mac) not in present
    ]


class GatewayLosses:
    """Hears of neighbour entries for pods' gateways that are dropped, in every namespace with a link into this one."""

    def __init__(self) -> None:
        """Open the socket.

        Raises:
            KernelError: CAP_NET_BROADCAST is missing, or the process may open no more files.
        """
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
            )
        except OSError as error:
            raise KernelError("open a netlink socket", error.errno or 0) from None
        try:
            _only_lost_gateways(self._socket)
            # Without a port of its own the socket would be taken for the kernel's, and skipped.
            self._socket.bind((0, 0))
            self._socket.setsockopt(_SOL_NETLINK, _LISTEN_ALL_NSID, 1)
            self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _RTNLGRP_NEIGH)
        except OSError as error:
            self._socket.close()
            lacking = "CAP_NET_BROADCAST is missing" if error.errno == EPERM else ""
            raise KernelError("hear of the neighbours of every sandbox", error.errno or 0, lacking) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor that is readable when there is news."""
        return self._socket.fileno()

    def read(self) -> set[End]:
        """Ends of links whose sandbox lost a gateway since the last call; what the kernel had no room for is lost."""
        gateways = frozenset(POD_GATEWAYS.values())
        found = set()
        for _ in range(_MOST_AT_ONCE):
            try:
                data, extra, _, _ = self._socket.recvmsg(_RECEIVE_BYTES, socket.CMSG_SPACE(4))
            except OSError as error:
                if error.errno == ENOBUFS:
                    continue
                if error.errno == EAGAIN:
                    break
                raise KernelError("hear of the neighbours of every sandbox", error.errno or 0) from None
            netns = _namespace_of(extra)
            for kind, _, _, body in rtnetlink.messages(data):
                lost = rtnetlink.neighbour_of(body) if kind == RTM_DELNEIGH else None
                if lost and lost[0] in gateways and netns >= 0:
                    found.add(End(netns, lost[2]))
        return found


def _namespace_of(extra: list[tuple[int, int, bytes]]) -> int:
    for level, kind, value in extra:
        if (level, kind) == (_SOL_NETLINK, _LISTEN_ALL_NSID):
            return int.from_bytes(value[:4], "little", signed=True)
    return -1


def _only_lost_gateways(listener: socket.socket) -> None:
    """Have the kernel leave out all else: every link that goes loses entries (socket(7), SO_ATTACH_FILTER)."""
    # The filter loads in network order what a netlink header has in the machine's own.
    kind = socket.htons(RTM_DELNEIGH)
    first_words = [int.from_bytes(gateway.packed[:4], "big") for gateway in POD_GATEWAYS.values()]
    words = len(first_words)
    program = [
        (_LOAD_HALF, 0, 0, _TYPE_OFFSET),
        (_JUMP_EQUAL, 0, words + 1, kind),
        (_LOAD_WORD, 0, 0, _ADDRESS_OFFSET),
        *((_JUMP_EQUAL, words - place, 0, word) for place, word in enumerate(first_words)),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, 0xFFFF),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
