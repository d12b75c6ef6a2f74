"""From a planned node to the document its agent reads."""

from __future__ import annotations

from typing import Any

from netmgr.config import PRIVATE_USE
from netmgr.plan.document import PlanDocument
from netmgr.plan.nodes import PlannedNode
from netmgr.prefixes import Prefix, merge


def node_document(plan: PlanDocument, node: PlannedNode, reader_group: str | None = None) -> dict[str, Any]:
    """`node.yaml` as a mapping, in the order of a reader's questions; keys at their defaults are left out."""
    document: dict[str, Any] = {
        "apiVersion": "netmgr.io/v1alpha1",
        "kind": "Node",
        "node": {"name": node.name, "addresses": [str(address) for address in node.hosts]},
        "ranges": [str(prefix) for prefix in merge(node.blocks)],
        "internal": [str(prefix) for prefix in internal(plan)],
        "masquerade": True,
        "accounting": {"rule_owner": plan.rule_owner},
    }
    if reader_group is not None:
        document["reader_group"] = (
            int(reader_group) if reader_group.isascii() and reader_group.isdigit() else reader_group
        )
    return document


def internal(plan: PlanDocument) -> tuple[Prefix, ...]:
    """What is not internet to any node of the plan: its pools, what it pins or shares, and private ranges."""
    pinned = (prefix for prefixes in plan.pinned.values() for prefix in prefixes)
    shared = (plan.shared_services,) if plan.shared_services else ()
    return tuple(merge((*PRIVATE_USE, *plan.pools.nodes, *plan.pools.services, *pinned, *shared)))
