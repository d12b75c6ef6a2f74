"""A hub and its spokes, and the documents that its machines would be given."""

from __future__ import annotations

from typing import Any

from netmgr.documents.node import NodeDocument
from tests.builders import NODE_KEYS

SITES = [
    {"name": "hub", "prefixes": ["10.0.0.0/16", "fd00::/48"]},
    {
        "name": "spoke-a",
        "prefixes": ["10.1.0.0/16", "fd00:1::/48"],
        "services": ["100.64.1.0/24", "fd64:1::/120"],
    },
    {
        "name": "spoke-b",
        "prefixes": ["10.2.0.0/16", "10.130.0.0/16", "fd00:2::/48"],
        "services": ["100.64.2.0/24", "fd64:2::/120"],
    },
    {"name": "spoke-c", "prefixes": ["10.3.0.0/16", "fd00:3::/48"]},
]
"""The third spoke opens no Services. All spokes have the Service ranges 10.96.0.0/24 and fd96::/120
inside.
"""

SERVICES = [
    {"vip_range": "100.64.1.0/24", "service_cidr": "10.96.0.0/24"},
    {"vip_range": "fd64:1::/120", "service_cidr": "fd96::/120"},
]
"""What the first spoke's NAT host opens."""


def star(spokes: int, **prefixes: list[str]) -> list[dict[str, Any]]:
    """A hub, so many spokes with prefixes of both families, and those with the given prefixes."""
    made = {
        f"s{number}": [f"10.{number}.0.0/16", f"fd00:{number:x}::/48"] for number in range(spokes)
    }
    named = {"hub": ["10.255.0.0/16"], **made, **prefixes}
    return [{"name": name, "prefixes": texts} for name, texts in named.items()]


def document(role: str = "node", **keys: Any) -> NodeDocument:
    """The document of one machine; a node is of the first spoke, and so is a NAT host."""
    own: dict[str, dict[str, Any]] = {
        "node": {"site": "spoke-a", "ranges": ["10.1.0.0/24", "fd00:1::/112"]},
        "hub-router": {"site": "hub"},
        "nat-host": {"site": "spoke-a", "nat": {"services": SERVICES, **keys.pop("nat", {})}},
    }
    told = {
        **NODE_KEYS,
        "node": {"name": "machine-1", "addresses": ["10.1.255.1", "fd00:1:0:ff::1"]},
        "role": role,
        "sites": SITES,
        "accounting": {"rule_owner": "openai"},
    }
    return NodeDocument.model_validate({**told, **own[role], **keys})
