"""The links by which a machine reaches the others."""

from __future__ import annotations

import socket
from contextlib import closing

from netmgr.documents.node import NodeDocument
from netmgr.kernel.links import Links
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import read_routes
from netmgr.model import LINK_PREFIX


class OtherLinks:
    """Those that are no pod's."""

    def __init__(self) -> None:
        self._channel = Netlink()
        self._links = Links(self._channel)
        self._last: frozenset[tuple[int, bool, int]] = frozenset()

    def have_changed(self) -> bool:
        """Whether one has come, gone, risen or fallen since the last look."""
        last, self._last = (
            self._last,
            frozenset(
                (link.number, link.up, link.master)
                for link in self._links.read()
                if not link.name.startswith(LINK_PREFIX)
            ),
        )
        return self._last != last

    def close(self) -> None:
        self._channel.close()


def uplinks(document: NodeDocument) -> frozenset[str]:
    """The link that the document names, or else those of default routes, by name."""
    if document.node.uplink:
        return frozenset([document.node.uplink])
    with closing(Netlink()) as channel:
        numbers = {route.oif for route in read_routes(channel) if route.destination.length == 0}
    return frozenset(name for number, name in socket.if_nameindex() if number in numbers)
