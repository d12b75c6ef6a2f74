"""The links by which a machine reaches the others."""

from __future__ import annotations

import socket
from contextlib import closing

from netmgr.documents.node import NodeDocument
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import read_routes


def uplinks(document: NodeDocument) -> frozenset[str]:
    """The link that the document names, or else those of default routes, by name."""
    if document.node.uplink:
        return frozenset([document.node.uplink])
    with closing(Netlink()) as channel:
        numbers = {route.oif for route in read_routes(channel) if route.destination.length == 0}
    return frozenset(name for number, name in socket.if_nameindex() if number in numbers)
