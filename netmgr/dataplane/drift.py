"""What of the host's side of pods' links is not as it should be: compared, and nothing done.

A pod's link is netmgr's alone, and so is the way to a pod's address. Whatever else leads there took traffic from a pod
or gives it some that is not its own, so it is foreign: a route of any protocol, and an address on such a link.
Link-local ones mean nothing beyond their link, and are nobody's concern.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from netmgr.dataplane import desired
from netmgr.dataplane.links import Link
from netmgr.dataplane.rtnetlink import Route
from netmgr.model import ROUTE_PROTOCOL, Attachment
from netmgr.prefixes import Address, Prefix

Foreign = Route | tuple[Prefix, int]
"""A route, or an address and its link's index."""

_LINK_SCOPE = Prefix.parse("fe80::/10")


class Drift(NamedTuple):
    """What the kernel has otherwise than it should."""

    broken: list[Attachment]
    foreign: list[Foreign]


class Host(NamedTuple):
    """What one look at the kernel found.

    `links` are all that are not about to be deleted, by name, `lacking` the settings that a link does not have, by
    its index, `routes` those of the main table, `addresses` each with its link's index.
    """

    links: Mapping[str, Link]
    lacking: Mapping[int, tuple[str, ...]]
    routes: Sequence[Route]
    addresses: Sequence[tuple[Prefix, int]]

    def faults(self, attachment: Attachment) -> list[str]:
        """What an attachment lacks on the host's side, a sentence each."""
        link = self.links.get(attachment.host_link)
        if link is None:
            return [f"host link {attachment.host_link} is missing"]
        faults = [] if link.up else [f"host link {link.name} is down"]
        faults += [] if desired.identity_of(link) else [f"host link {link.name} has lost its alias"]
        faults += [f"host link {link.name} lacks {setting}" for setting in self.lacking.get(link.number, ())]
        present = {route.destination.network for route in self.routes if is_own(route) and route.oif == link.number}
        return faults + [f"host route to {one} is missing" for one in attachment.addresses if one not in present]

    def drift(self, attachments: Sequence[Attachment]) -> Drift:
        """What differs from what these attachments need, and what is foreign."""
        own = {link.number for link in self.links.values() if desired.identity_of(link)}
        owners = {address: attachment.host_link for attachment in attachments for address in attachment.addresses}
        expected = {address: self.links[name].number for address, name in owners.items() if name in self.links}
        foreign: list[Foreign] = [route for route in self.routes if _is_foreign(route, own, expected)]
        foreign += [(held, index) for held, index in self.addresses if index in own and not _LINK_SCOPE.covers(held)]
        return Drift([a for a in attachments if a.host_link in self.links and self.faults(a)], foreign)


def is_own(route: Route) -> bool:
    """Whether a route is one that this agent writes for a pod's address."""
    return _is_of_a_pod(route) and route.metric == desired.HOST_METRIC[route.destination.family]


def _is_of_a_pod(route: Route) -> bool:
    is_single = route.destination.length == route.destination.family.width
    return is_single and route.protocol == ROUTE_PROTOCOL and route.gateway is None


def _is_foreign(route: Route, own: Collection[int], expected: Mapping[Address, int]) -> bool:
    """Whether a route leads into a pod's link, or to a pod's address, and is not the one that should.

    `own` are the pods' links, `expected` the link of each pod's address. A route of ours for no pod is foreign, too.
    """
    destination = route.destination
    if destination.length == destination.family.width and destination.network in expected:
        return not is_own(route) or route.oif != expected[destination.network]
    return _is_of_a_pod(route) or (route.oif in own and not _LINK_SCOPE.covers(destination))


def described(foreign: Foreign) -> str:
    """A sentence about something foreign that was removed."""
    if isinstance(foreign, Route):
        return f"route to {foreign.destination} on link {foreign.oif} belonged to no pod"
    held, index = foreign
    return f"address {held} on link {index} of a pod belonged to nobody"
