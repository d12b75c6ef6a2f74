"""Hears of blackholes that are deleted (rtnetlink(7))."""

from __future__ import annotations

import socket
from errno import EAGAIN, ENOBUFS

from netmgr.errors import KernelError
from netmgr.kernel.netlink import SOL_NETLINK, Netlink, messages
from netmgr.kernel.routes import RTM_DELROUTE, RTN_BLACKHOLE

_ADD_MEMBERSHIP, _ROUTE_GROUPS = 1, (7, 11)
"""RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE."""
_RECEIVE_BYTES, _MOST_AT_ONCE = 1 << 13, 4096


class BlackholeLosses(Netlink):
    """Of a protocol, in this namespace."""

    def __init__(self, protocol: int) -> None:
        super().__init__()
        self._lost = protocol, RTN_BLACKHOLE
        # Without a port of its own the socket would be taken for the kernel's, and skipped.
        self._socket.bind((0, 0))
        for group in _ROUTE_GROUPS:
            self._socket.setsockopt(SOL_NETLINK, _ADD_MEMBERSHIP, group)

    def fileno(self) -> int:
        """The descriptor that is readable when a route has changed."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Whether there was one since the last call, or there may have been."""
        has_losses = False
        for _ in range(_MOST_AT_ONCE):
            try:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except OSError as error:
                if error.errno == EAGAIN:
                    break
                if error.errno != ENOBUFS:
                    raise KernelError("hear of routes", error.errno or 0) from None
                has_losses = True
            else:
                has_losses |= any(self._is_loss(kind, body) for kind, _, _, body in messages(data))
        return has_losses

    def _is_loss(self, kind: int, body: bytes) -> bool:
        # The sixth and the eighth byte of struct rtmsg.
        return kind == RTM_DELROUTE and (body[5], body[7]) == self._lost
