"""Holds what a source said against what is known otherwise: the plan's sites and the node's own addresses.

A block that contradicts is left out and told; the others are used. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from netmgr.config import SPECIAL_USE, NodeDocument, RangeSource
from netmgr.prefixes import Address, Prefix


@dataclass(frozen=True, slots=True)
class Vetted:
    """What can be used, and a sentence for each block that cannot."""

    ranges: tuple[Prefix, ...]
    refused: tuple[str, ...]


def vet(blocks: Iterable[Prefix], document: NodeDocument, on_links: Mapping[Address, str]) -> Vetted:
    """Sort out what pods of this node cannot have.

    Args:
        blocks: what the source said.
        document: the node's document, with its sites and its own addresses.
        on_links: the addresses that the node's own links carry, and the link's name of each.
    """
    used: list[Prefix] = []
    refused: list[str] = []
    for block in blocks:
        reason = _refusal(block, used, document, on_links)
        if reason:
            refused.append(f"{block} is not used: {reason}")
        else:
            used.append(block)
    return Vetted(tuple(used), tuple(refused))


def _refusal(
    block: Prefix, used: Iterable[Prefix], document: NodeDocument, on_links: Mapping[Address, str]
) -> str | None:
    site = next((site for site in document.sites if site.name == document.site), None)
    elsewhere = document.range_source is not RangeSource.FILE  # a document's ranges and sites are of one plan
    if elsewhere and site is not None and not any(prefix.covers(block) for prefix in site.prefixes):
        known = ", ".join(map(str, site.prefixes))
        return f"it lies outside the prefixes of site {site.name} ({known}); the plan and the cloud disagree"
    for special in SPECIAL_USE:
        if block.overlaps(special):
            return f"it lies in the special-use prefix {special}"
    for address in document.node.addresses:
        if block.holds(address):
            return f"it holds the node's own address {address}"
    for address, link in on_links.items():
        if block.holds(address):
            return (
                f"{address} is set on {link}, so that the node takes its packets for its own; "
                "have cloud-init set the first address alone (datasource: {Azure: {apply_network_config: false}})"
            )
    other = next((other for other in used if other.overlaps(block)), None)
    return f"{other} has it already" if other else None
