"""Why an address is what it is: which key of which document made it a pod's, internal or internet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from netmgr.config import PRIVATE_USE, SPECIAL_USE, NodeDocument
from netmgr.model import Attachment
from netmgr.prefixes import Address, PrefixTable


class Explanation(TypedDict):
    """The answer, for people and programs.

    `role` is "pod", "range", "internal", "special-use" or "internet"; `because` says which
    prefix of which key decided it; `pod` is the holder, or empty.
    """

    address: str
    role: str
    prefix: str
    because: str
    pod: str
    counted: bool
    masqueraded: bool


def explain(document: NodeDocument, address: Address, attachments: Iterable[Attachment]) -> Explanation:
    """Explain one address as seen from this node's pods: `counted` and `masqueraded` say what happens toward it."""
    holder = next((a for a in attachments if address in a.addresses), None)
    match = _table(document).match(address)
    role, because = match[1] if match else ("internet", "no prefix of node.yaml holds it")
    internet = role == "internet"
    return {
        "address": str(address),
        "role": "pod" if holder else role,
        "prefix": str(match[0]) if match else "",
        "because": because,
        "pod": str(holder.pod) if holder else "",
        "counted": internet,
        "masqueraded": internet and document.masquerade and document.cni,
    }


def _table(document: NodeDocument) -> PrefixTable[tuple[str, str]]:
    """Every prefix that is not internet, later entries winning over earlier ones of the same prefix."""
    source = "the default of internal" if document.internal == PRIVATE_USE else "internal"
    entries = [(prefix, ("special-use", "special-use prefixes are never internet")) for prefix in SPECIAL_USE]
    entries += [(p, ("internal", f"{source}[{place}] of node.yaml")) for place, p in enumerate(document.internal)]
    entries += [(p, ("range", f"ranges[{place}] of node.yaml")) for place, p in enumerate(document.ranges)]
    return PrefixTable(entries)
