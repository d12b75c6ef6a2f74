"""Where a node's ranges come from when not from its document, and which of them can be used.

A new source is a module of this room and a line in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.prefixes import Address, Prefix

RangeReader = Callable[[], tuple[Prefix, ...]]
"""Reads which addresses pods of this node may have, blocks and single ones; asked now and then.

Raises RangesUnknown where there is no answer just now, ConfigError where a document is wrong.
"""


def _azure() -> tuple[Prefix, ...]:
    # Imported here: the HTTP that it needs takes memory on every node that has no use for it.
    from netmgr.ranges import azure  # noqa: PLC0415  see above

    return azure.read()


SOURCES: Mapping[RangeSource, RangeReader] = {RangeSource.AZURE: _azure}
"""The readers of all sources but the node's own document."""


@dataclass(frozen=True, slots=True)
class ValidRanges:
    """What can be used, and why each other block cannot."""

    ranges: tuple[Prefix, ...]
    refused: tuple[Diagnostic, ...]


def validate(
    blocks: Iterable[Prefix], document: NodeDocument, on_links: Mapping[Address, str]
) -> ValidRanges:
    """Leave out the blocks that pods of this node cannot have, and use the others.

    Args:
        blocks: what the source answered.
        document: the node's document, with its sites and its own addresses.
        on_links: addresses of the node's own links, and the link of each.
    """
    used: list[Prefix] = []
    refused: list[Diagnostic] = []
    for block in blocks:
        refusal = _refusal(block, used, document, on_links)
        if refusal is None:
            used.append(block)
        else:
            refused.append(replace(refusal, message=f"{block} is not used: {refusal.message}"))
    return ValidRanges(tuple(used), tuple(refused))


def _refusal(
    block: Prefix, used: Iterable[Prefix], document: NodeDocument, on_links: Mapping[Address, str]
) -> Diagnostic | None:
    is_of_cloud = document.range_source is not RangeSource.FILE
    key: KeyPath = ("range_source",) if is_of_cloud else ("ranges",)
    outside = _outside_site(block, document, key)
    if outside is not None:
        return outside
    for special in SPECIAL_USE:
        if block.overlaps(special):
            return error(f"it lies in the special-use prefix {special}", key)
    own = _own_address(block, document, on_links, key)
    if own is not None:
        return own
    # Of overlapping blocks the first one is kept, as the source lists them.
    for other in used:
        if other.overlaps(block):
            return error(f"{other} has it already", key)
    return None


def _own_address(
    block: Prefix, document: NodeDocument, on_links: Mapping[Address, str], key: KeyPath
) -> Diagnostic | None:
    for number, address in enumerate(document.node.addresses):
        if block.holds(address):
            message = f"it holds the node's own address {address}"
            return error(message, key, ("node", "addresses", number))
    # By default cloud-init sets all addresses of Azure's metadata on the link, the pods' included.
    for address, link in on_links.items():
        if block.holds(address):
            return error(
                f"{address} is set on {link}, so that the node takes its packets for its own",
                key,
                remedy="have cloud-init set the first address alone "
                "(datasource: {Azure: {apply_network_config: false}})",
            )
    return None


def _outside_site(block: Prefix, document: NodeDocument, key: KeyPath) -> Diagnostic | None:
    for number, site in enumerate(document.sites):
        if site.name != document.site or any(prefix.covers(block) for prefix in site.prefixes):
            continue
        known = ", ".join(map(str, site.prefixes))
        return error(
            f"it lies outside the prefixes of site {site.name} ({known})",
            key,
            ("sites", number, "prefixes"),
            f"the plan and the {'Node' if key == ('ranges',) else 'cloud'} disagree",
        )
    return None
