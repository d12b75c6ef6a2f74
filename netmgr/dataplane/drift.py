"""Compares the host's side of pods' links with what it should be, and does nothing about it.

A pod's link is netmgr's alone, and so is the way to a pod's address. Any other route that leads
there, of whatever protocol, and any address on such a link is foreign: it takes traffic from a pod,
or gives it another's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from netmgr.dataplane import desired, settings
from netmgr.kernel.links import Link
from netmgr.kernel.routes import LAST_METRIC, RTN_BLACKHOLE, RTN_UNICAST, Route
from netmgr.model import LINK_GROUP, ROUTE_PROTOCOL, Attachment
from netmgr.prefixes import Address, Prefix
from netmgr.suspects import Suspects

Foreign = Route | tuple[Prefix, int]
"""A route, or an address and its link's index."""

# Left alone, since it means nothing beyond its link.
_LINK_SCOPE = Prefix.parse("fe80::/10")


class Drift(NamedTuple):
    """What the kernel has otherwise than it should."""

    broken: Suspects[Attachment]
    addresses: Suspects[Foreign]
    routes: Suspects[Foreign]


class Host(NamedTuple):
    """What one look at the kernel found.

    `links` are all that do not wait to be deleted, by name, pods' by the one they were made with;
    `routes` are those of the main table; `addresses` come with their link's index.
    """

    links: Mapping[str, Link]
    routes: Sequence[Route]
    addresses: Sequence[tuple[Prefix, int]]

    def faults(self, attachment: Attachment) -> list[str]:
        """What an attachment lacks on the host's side."""
        return self._faults(attachment, self._routed())

    def _routed(self) -> Mapping[int, set[Address]]:
        """The addresses that our routes send into each link, by its index."""
        routed: dict[int, set[Address]] = defaultdict(set)
        for route in filter(is_own, self.routes):
            routed[route.oif].add(route.destination.network)
        return routed

    def _faults(self, attachment: Attachment, routed: Mapping[int, set[Address]]) -> list[str]:
        link = self.links.get(attachment.host_link)
        if link is None:
            return [f"host link {attachment.host_link} is missing"]
        faults = [] if link.up else [f"host link {link.name} is down"]
        if link.name != attachment.host_link:
            faults.append(f"host link {attachment.host_link} is called {link.name}")
        if desired.identity_of(link) is None:
            faults.append(f"host link {link.name} has lost its alias")
        if link.group != LINK_GROUP:
            faults.append(f"host link {link.name} has lost its group")
        lacking = settings.lacking(link, attachment.families)
        faults += [f"host link {link.name} lacks {setting}" for setting in lacking]
        present = routed.get(link.number, set())
        return faults + [
            f"host route to {address} is missing"
            for address in attachment.addresses
            if address not in present
        ]

    def drift(self, attachments: Sequence[Attachment]) -> Drift:
        """What differs from what these attachments need, and what is foreign."""
        wired = [attachment for attachment in attachments if attachment.host_link in self.links]
        expected: dict[Address, int] = {}
        for attachment in wired:
            index = self.links[attachment.host_link].number
            expected |= dict.fromkeys(attachment.addresses, index)
        own = {link.number for link in self.links.values() if desired.identity_of(link)}
        # No address belongs on a pod's link.
        astray = (
            (address, index)
            for address, index in self.addresses
            if index in own and not _LINK_SCOPE.covers(address)
        )
        # Once for all attachments: a node may have hundreds of pods, each with its routes.
        routed = self._routed()
        return Drift(
            Suspects(tuple(attachment for attachment in wired if self._faults(attachment, routed))),
            Suspects(tuple(astray)),
            Suspects(tuple(route for route in self.routes if _is_foreign(route, own, expected))),
        )


def is_own(route: Route) -> bool:
    """Whether a route is one that this agent writes for a pod's address."""
    # With another metric it is a second route beside ours, which survives it and takes over when
    # ours goes.
    return _is_of_a_pod(route) and route.metric == desired.HOST_METRIC[route.destination.family]


def _is_of_a_pod(route: Route) -> bool:
    is_ours = route.protocol == ROUTE_PROTOCOL and route.kind == RTN_UNICAST
    return is_ours and route.gateway is None and route.destination.is_address


def _is_of_a_range(route: Route) -> bool:
    """Whether a route is our blackhole of a range, which may be a single address."""
    is_ours = route.protocol == ROUTE_PROTOCOL and route.kind == RTN_BLACKHOLE
    return is_ours and route.metric == LAST_METRIC


def _is_foreign(route: Route, own: Collection[int], expected: Mapping[Address, int]) -> bool:
    """Whether a route leads into a pod's link or to a pod's address, and is not the right one.

    `own` are the pods' links, `expected` the link of each pod's address.
    """
    destination = route.destination
    if _is_of_a_range(route):
        return False
    # Whoever made it: the pod would not get its packets, or another one would.
    if destination.is_address and destination.network in expected:
        return not is_own(route) or route.oif != expected[destination.network]
    # One of ours to an address without a pod would lead packets past the range's blackhole.
    return _is_of_a_pod(route) or (route.oif in own and not _LINK_SCOPE.covers(destination))


def described(foreign: Foreign) -> str:
    """A log line about something foreign that was removed."""
    if isinstance(foreign, Route):
        return f"route to {foreign.destination} on link {foreign.oif} belonged to no pod"
    held, index = foreign
    return f"address {held} on link {index} of a pod belonged to nobody"
