"""Deletes the connection table's entries of UDP clients whose endpoint is gone.

A TCP client learns that its endpoint is gone, and connects anew. A UDP client that keeps its
source port is sent to the vanished endpoint for as long as it keeps sending, since the kernel
decides about translation only for the first packet of a connection.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping

from netmgr.kernel import conntrack
from netmgr.kernel.conntrack import UdpConnection
from netmgr.kernel.netlink import NETLINK_NETFILTER, Netlink, Operation
from netmgr.services.model import Endpoint, Protocol, ServicePort

_LOOKS_BY_PORT = 16
"""Beyond this many ServicePorts, listing all UDP connections once costs less than a walk for
each."""


def forget(gone: Mapping[ServicePort, Collection[Endpoint]]) -> int:
    """Delete the UDP connections to these ServicePorts that these endpoints answer; how many.

    Raises:
        KernelError: the kernel refused.
    """
    wanted = {
        vip: frozenset(them) for vip, them in gone.items() if them and vip.protocol is Protocol.UDP
    }
    if not wanted:
        return 0
    with Netlink(NETLINK_NETFILTER) as channel:
        connections: list[UdpConnection] = []
        for request in _requests(wanted):
            connections += channel.dump(request, conntrack.udp_of)
        deletions = [
            conntrack.delete_connection(one) for one in connections if _is_gone(one, wanted)
        ]
        for failure in channel.attempt(deletions).values():
            # It may have ended by itself meanwhile.
            if failure.errno != errno.ENOENT:
                raise failure
    return len(deletions)


def _requests(wanted: Collection[ServicePort]) -> list[Operation]:
    if len(wanted) <= _LOOKS_BY_PORT:
        return [conntrack.list_udp(vip.family, (vip.address, vip.port)) for vip in wanted]
    return [conntrack.list_udp(family) for family in {vip.family for vip in wanted}]


def _is_gone(connection: UdpConnection, wanted: Mapping[ServicePort, frozenset[Endpoint]]) -> bool:
    vip = ServicePort(connection.address, Protocol.UDP, connection.port)
    # Compared again here: an IPv6 listing is filtered by port only.
    return Endpoint(connection.endpoint, connection.endpoint_port) in wanted.get(vip, ())
