"""Whether the kernel bears a claim out. A file of the cache alone proves nothing: it survives reboots.

An address is borne out when all of this holds:

1. The kernel, asked for the route to it, knows one, and it is no gateway's: the address is on
   a link of this node. (So no default route ever bears anything out, nor a route that another
   node's pods are reached by.)
2. That link is the host's end of a pod's link, which is a link whose peer lies in another
   network namespace (IFLA_LINK_NETNSID); or it is a bridge, and the end is a port of it.
3. The end is one that the claim's result names. If the result names none, the route must be
   the address's very own (full length) and lead into such an end: then the kernel itself says
   that the address lives there.

When the sandbox goes, the kernel takes the pair, and with it the port or the route. Neighbour
entries are no evidence in either direction: they are missing before the pod's first packet and
stay behind after its last. Nor is the sandbox's own path: an agent in a container does not see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from netmgr.prefixes import Address


class HostEnd(NamedTuple):
    """A link of the host whose peer lies in another namespace. `master` is its bridge's number, or 0."""

    number: int
    master: int


class OnLinkRoute(NamedTuple):
    """The kernel's route to an address: out of the link `oif`, without a gateway; `own` if for it alone."""

    oif: int
    own: bool


class Kernel(NamedTuple):
    """What the kernel was seen to have: host ends by name, and routes to the addresses asked for."""

    ends: Mapping[str, HostEnd]
    routes: Mapping[Address, OnLinkRoute]

    def host_end(self, address: Address, named: Iterable[str]) -> str:
        """Name of the host's end that bears the address out; empty if nothing does."""
        route = self.routes.get(address)
        if route is None:
            return ""
        listed = tuple(named) or (self.ends if route.own else ())
        for name in listed:
            end = self.ends.get(name)
            if end and route.oif in {end.number, end.master}:
                return name
        return ""
