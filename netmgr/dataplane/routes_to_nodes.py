"""Which routes lead to the other nodes' pods on a flat network, and which must not be (pure).

Any kubelet can register its own Node with podCIDRs and an InternalIP of its choice. What it says
may therefore lead packets to itself that were for other nodes' pods, for machines of the nodes' own
network, or for anything else. So each route is compared with what this machine knows:

1. The prefix is internal: packets to it are not counted as internet, and it is no public address.
2. It overlaps nothing that this machine has or reaches directly: its own ranges and addresses,
   protected addresses, and every network on one of its links.
3. The next hop is a neighbour on such a network, and not this machine.

That no two nodes have one prefix is ensured by `netmgr controller`, which knows who was first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from netmgr.documents.node import NodeDocument
from netmgr.documents.node_list import ListedNode
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.kernel.routes import Route
from netmgr.prefixes import Address, Family, Prefix

Way = tuple[Prefix, Address]
"""A destination and its next hop."""


def decide(
    nodes: Iterable[ListedNode], document: NodeDocument, foreign: Iterable[Route]
) -> tuple[dict[Way, str], list[str]]:
    """Each route with the name of its node, and a line for each that is refused.

    `foreign` are the main table's unicast routes that are not netmgr's.
    """
    machine = _Machine.of(document, foreign)
    accepted: dict[Way, str] = {}
    refused = []
    for name, to, via in _candidates(nodes):
        if name == document.node.name:
            continue
        reason = machine.objection_to(to) or machine.objection_to_hop(to.family, via)
        if via is None or reason:
            refused.append(f"no route to {to} of Node {name}: {reason}")
        else:
            accepted[to, via] = name
    return accepted, refused


def _candidates(nodes: Iterable[ListedNode]) -> Iterator[tuple[str, Prefix, Address | None]]:
    """A node's name, one of its ranges, and its first address of that family."""
    for node in nodes:
        # From the last to the first, so that the first of a family stays.
        hops = {address.family: address for address in reversed(node.addresses)}
        for to in node.ranges:
            yield node.name, to, hops.get(to.family)


@dataclass(frozen=True, slots=True)
class _Machine:
    addresses: tuple[Address, ...]
    networks: tuple[Prefix, ...]
    """On its links, pods' links not among them."""
    taken: tuple[tuple[Prefix, str], ...]
    """What no other node's pods may have, and what it is."""
    internal: tuple[Prefix, ...]
    site: tuple[Prefix, ...] | None
    """The prefixes of its site; None without sites."""

    @classmethod
    def of(cls, document: NodeDocument, foreign: Iterable[Route]) -> _Machine:
        networks = tuple(_networks(foreign))
        taken = [
            *((own, "this node's own range") for own in document.ranges),
            *((address.prefix, "this node's address") for address in document.node.addresses),
            *((network, "the network of a link,") for network in networks),
            *((special, "the special-use prefix") for special in SPECIAL_USE),
            *((protected, "the protected prefix") for protected in document.protect),
        ]
        site = next((site for site in document.sites if site.name == document.site), None)
        return cls(
            document.node.addresses,
            networks,
            tuple(taken),
            document.internal_prefixes,
            site.prefixes if site else None,
        )

    def objection_to(self, to: Prefix) -> str:
        """Why no route may lead to this prefix; empty if one may."""
        for prefix, description in self.taken:
            if prefix.overlaps(to):
                return f"it overlaps {description} {prefix}"
        if self.site is not None and not any(prefix.covers(to) for prefix in self.site):
            return "it lies in no prefix of this node's site"
        if not any(prefix.covers(to) for prefix in self.internal):
            return "it would count as internet; add the pod network to internal in node.yaml"
        return ""

    def objection_to_hop(self, family: Family, via: Address | None) -> str:
        """Why no route may use this next hop; empty if one may."""
        if via is None:
            return f"it has no InternalIP of IPv{family.value}"
        if via in self.addresses:
            return f"its InternalIP {via} is this node's own"
        if not any(network.holds(via) for network in self.networks):
            return (
                f"its InternalIP {via} is on no network of this node's links; `routes: nodes` is "
                "for nodes on one network, others need routes in the network between them"
            )
        return ""


def _networks(foreign: Iterable[Route]) -> Iterator[Prefix]:
    for route in foreign:
        to = route.destination
        # A route with several next hops has no link of its own, and its gateways are among them.
        is_on_link = route.oif and not route.gateway and not route.has_foreign_gateway
        # A default route is no network, and overlaps what is special, too.
        is_special = any(special.overlaps(to) for special in SPECIAL_USE)
        if is_on_link and not to.is_address and not is_special:
            yield to
