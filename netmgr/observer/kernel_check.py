"""Whether the kernel confirms a cached result. A file alone proves nothing: it survives reboots.

An address is confirmed when all of this holds:

1. The kernel has a route to it without a gateway: the address is on a link of this node. (So no
   default route ever confirms an address, nor a route to another node's pods.)
2. That link is the host end of a pod's link, that is a link whose peer is in another network
   namespace (IFLA_LINK_NETNSID); or it is a bridge, and the host end is one of its ports.
3. The cached result names that host end. If it names none, the route must be a host route (full
   length) into such a link: then the kernel itself says that the address lives there.

When the sandbox goes, the kernel removes the pair, and with it the port or the route. Neighbour
entries confirm and refute nothing: they are missing before the pod's first packet and outlive its
last. Nor does the sandbox's path: an agent in a container does not see it.

Routes are looked up one address at a time, as for a packet (policy rules included), instead of
being listed: a node may have a route for every other node, but has few pods.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from netmgr.kernel.links import read_links
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.routes import RTN_UNICAST, Route, look_up, route_of
from netmgr.prefixes import Address

# Their answers have to fit into the socket's buffer.
_LOOKUPS_AT_ONCE = 64


class HostEnd(NamedTuple):
    """A link of the host with its peer in another namespace. `master` is its bridge, or 0."""

    number: int
    master: int


class OnLinkRoute(NamedTuple):
    """The kernel's route to an address, without a gateway; `own` if it is a host route."""

    oif: int
    own: bool


class KernelState(NamedTuple):
    """What the kernel has: host ends by name, and routes to the addresses that were looked up."""

    ends: Mapping[str, HostEnd]
    routes: Mapping[Address, OnLinkRoute]

    def host_end(self, address: Address, named: Iterable[str]) -> str:
        """Name of the host end that confirms the address; empty if none does."""
        route = self.routes.get(address)
        if route is None:
            return ""
        candidates = tuple(named) or (self.ends if route.own else ())
        for name in candidates:
            end = self.ends.get(name)
            # A bridge holds the route for all its ports, so there the route leads to the master.
            if end and route.oif in {end.number, end.master}:
                return name
        return ""


class KernelCheck:
    """Asks the kernel of the namespace in which it was made. For one thread."""

    def __init__(self) -> None:
        self._netlink = Netlink()

    def close(self) -> None:
        self._netlink.close()

    def look(self, addresses: Iterable[Address]) -> KernelState:
        """Read the host ends, and the routes to these addresses.

        Raises:
            KernelError: the kernel refused to list its links, or does not answer.
        """
        ends = {
            link.name: HostEnd(link.number, link.master)
            for link in read_links(self._netlink)
            # A peer in this namespace has no such id: a veth pair of the host's own.
            if link.peer_netns >= 0
        }
        routes: dict[Address, OnLinkRoute] = {}
        listed = iter(dict.fromkeys(addresses))
        while batch := list(itertools.islice(listed, _LOOKUPS_AT_ONCE)):
            # An address without a route has no answer but an error.
            answers = self._netlink.query_each([look_up(address) for address in batch], route_of)
            for address, route in zip(batch, answers, strict=True):
                if route is not None and _is_on_link(route):
                    routes[address] = OnLinkRoute(route.oif, own=route.destination.is_address)
        return KernelState(ends, routes)


def _is_on_link(route: Route) -> bool:
    has_gateway = route.gateway is not None or route.has_foreign_gateway
    return route.kind == RTN_UNICAST and not has_gateway and route.oif != 0
