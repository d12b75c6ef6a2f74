"""Decides which Nodes the agents of a flat network have routes to (pure).

Any kubelet can register its own Node with podCIDRs of its choice, which never change afterwards. So
of two Nodes with overlapping podCIDRs the older one is listed, whose age nobody can choose; and one
Node cannot keep many others out by a large podCIDR. Addresses decide nothing here: a kubelet
changes its Node's at any time, and only an agent knows what is on its links
(`dataplane/routes_to_nodes.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from netmgr.documents.node_list import ListedNode
from netmgr.kube.controller.assigning import Refusal, RefusalReason
from netmgr.kube.controller.nodes import NodeView
from netmgr.prefixes import Address, Family, Prefix

# Every change is sent to every node, so that the traffic grows with the square of their number.
MOST_NODES = 500

SHORTEST = {Family.V4: 20, Family.V6: 64}
"""Prefix length of the largest podCIDR; kube-controller-manager's defaults are /24 and /64."""


def choose(views: Iterable[NodeView]) -> tuple[list[ListedNode], list[Refusal]]:
    """The Nodes to list, oldest first, and those that have podCIDRs and are not listed."""
    listed: list[ListedNode] = []
    refusals = []
    taken = _Taken()
    for view in sorted(filter(_is_complete, views), key=lambda view: (view.created, view.name)):
        if len(listed) == MOST_NODES:
            refusals.append(Refusal(view, RefusalReason.TOO_MANY, _TOO_MANY))
        elif message := taken.objection_to(view.cidrs):
            refusals.append(Refusal(view, RefusalReason.NO_ROUTE, message))
        else:
            taken.add(view)
            listed.append(ListedNode(view.name, _addresses(view.addresses), view.cidrs))
    return listed, refusals


def _is_complete(view: NodeView) -> bool:
    # A kubelet reports its addresses some time after it has registered its Node.
    return bool(view.runs_pods and view.cidrs and _addresses(view.addresses))


_TOO_MANY = (
    f"no other node gets a route to this Node's pods: --routes nodes serves the {MOST_NODES} "
    "oldest Nodes; have the network deliver each node's podCIDRs instead (a route table, or BGP)"
)

_REGISTER = "no other node gets a route to it; drain and delete the Node, and restart its kubelet"


class _Taken:
    """Disjoint prefixes, and the Nodes that have them."""

    def __init__(self) -> None:
        self._prefixes: dict[Family, list[tuple[int, Prefix, str]]] = {f: [] for f in Family}

    def add(self, view: NodeView) -> None:
        for cidr in view.cidrs:
            known = self._prefixes[cidr.family]
            known.insert(bisect_left(known, (cidr.value,)), (cidr.value, cidr, view.name))

    def objection_to(self, cidrs: Iterable[Prefix]) -> str:
        """Why there must be no routes to these; empty if there may."""
        for cidr in cidrs:
            if cidr.length < (shortest := SHORTEST[cidr.family]):
                return f"podCIDR {cidr} is larger than a /{shortest}: {_REGISTER}"
            known = self._prefixes[cidr.family]
            position = bisect_left(known, (cidr.value,))
            # Disjoint prefixes in order: only the neighbours can overlap.
            for _, other, owner in known[max(position - 1, 0) : position + 1]:
                if other.overlaps(cidr):
                    whose = f"{other} of Node {owner}, an older one"
                    return f"podCIDR {cidr} overlaps {whose}: {_REGISTER}"
        return ""


def _addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """The first of each family; the API server takes any text."""
    addresses_by_family: dict[Family, Address] = {}
    for text in texts:
        try:
            address = Address.parse(text)
        except ValueError:
            continue
        addresses_by_family.setdefault(address.family, address)
    return tuple(addresses_by_family.values())
