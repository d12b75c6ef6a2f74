"""Asks the kernel for what `evidence` weighs: links into other namespaces, and its own routing decision.

Routes are looked up one address at a time, as a packet's would be (policy rules included),
instead of listed: a node may have a route for every other node, but has few pods.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Sequence

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import Operation
from netmgr.errors import KernelError
from netmgr.observer.evidence import HostEnd, Kernel, OnLinkRoute
from netmgr.prefixes import Address, Family

_IFINFO, _RTMSG = struct.Struct("=BxHiII"), struct.Struct("=BBBBBBBBI")
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINK_NETNSID = 3, 10, 37
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_VIA = 1, 4, 5, 18
_RTM_F_FIB_MATCH = 0x2000
_AF = {Family.V4: 2, Family.V6: 10}
_LOOKUPS_AT_ONCE = 64
_RECEIVE_BYTES = 1 << 17
_RECEIVE_SECONDS = 10.0


class KernelView:
    """Two netlink sockets in the namespace they were opened in. For one thread."""

    def __init__(self) -> None:
        self._links = Netlink()
        self._routes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._routes.settimeout(_RECEIVE_SECONDS)
        self._sequence = 0

    def close(self) -> None:
        """Close the sockets."""
        self._links.close()
        self._routes.close()

    def look(self, addresses: Iterable[Address]) -> Kernel:
        """What there is now of these addresses.

        Raises:
            KernelError: the kernel refused to list its links, or does not answer.
        """
        found = [end for end in self._links.dump(rtnetlink.dump_links(), _end_of) if end]
        routes: dict[Address, OnLinkRoute] = {}
        listed = iter(dict.fromkeys(addresses))
        while batch := list(itertools.islice(listed, _LOOKUPS_AT_ONCE)):
            routes |= self._look_up(batch)
        return Kernel(dict(found), routes)

    def _look_up(self, addresses: Sequence[Address]) -> dict[Address, OnLinkRoute]:
        first, pending = self._sequence + 1, dict(enumerate(addresses, self._sequence + 1))
        self._sequence += len(addresses)
        found: dict[Address, OnLinkRoute] = {}
        try:
            self._routes.send(b"".join(rtnetlink.encode(_lookup(a), n) for n, a in enumerate(addresses, first)))
            while pending:
                for kind, _, sequence, body in rtnetlink.messages(self._routes.recv(_RECEIVE_BYTES)):
                    # An answer, or an error for an address that there is no way to.
                    address = pending.pop(sequence, None)
                    if address and kind == rtnetlink.RTM_NEWROUTE and (route := _on_link(body, address)):
                        found[address] = route
        except OSError as error:
            raise KernelError("look up routes", error.errno or 0, "the kernel does not answer") from None
        except struct.error as error:
            raise KernelError("look up routes", details=f"an answer is cut off: {error}") from None
        return found


def _lookup(address: Address) -> Operation:
    """Ask which entry of the routing tables decides about packets to an address (`ip route get fibmatch`)."""
    body = _RTMSG.pack(_AF[address.family], address.family.width, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    return Operation(
        f"route get {address}", rtnetlink.RTM_GETROUTE, 0, body + rtnetlink.attribute(_RTA_DST, address.packed)
    )


def _on_link(body: bytes, address: Address) -> OnLinkRoute | None:
    _, length, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(body)
    found = rtnetlink.attributes(body, _RTMSG.size)
    if kind != rtnetlink.RTN_UNICAST or _RTA_OIF not in found or _RTA_GATEWAY in found or _RTA_VIA in found:
        return None
    return OnLinkRoute(int.from_bytes(found[_RTA_OIF], "little"), own=length == address.family.width)


def _end_of(body: bytes) -> tuple[str, HostEnd] | None:
    _, _, number, _, _ = _IFINFO.unpack_from(body)
    found = rtnetlink.attributes(body, _IFINFO.size)
    if _IFLA_LINK_NETNSID not in found:
        return None
    name = found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
    return name, HostEnd(number, int.from_bytes(found.get(_IFLA_MASTER, b""), "little"))
