"""Where a node's ranges come from when not from its document, and which of them can be used.

A new source is a module of this room with its name, and a remedy here.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module

from netmgr.documents.diagnostics import Diagnostic, KeyPath, error
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.documents.special_use import SPECIAL_USE
from netmgr.errors import RangesUnknown
from netmgr.prefixes import Prefix
from netmgr.printable import shortened
from netmgr.ranges.answers import RangeOffer

RangeReader = Callable[[], RangeOffer]
"""Reads which addresses pods of this node may have; asked now and then.

Raises RangesUnknown where there is no answer just now, ConfigError where a document is wrong.
"""


def reader(source: RangeSource) -> RangeReader:
    """What asks the metadata service of a source: `read` of the module with its name."""
    # Imported here: the HTTP that it needs takes memory on every node that has no use for it.
    read: RangeReader = import_module(f"netmgr.ranges.{source}").read
    return read


# Of a block that the node takes for its own: which program of the cloud's images sets it.
_REMEDIES = {
    # By default cloud-init sets all addresses of the metadata on the link, the pods' included.
    RangeSource.AZURE: "have cloud-init set the first address alone "
    "(datasource: {Azure: {apply_network_config: false}})",
    RangeSource.AWS: "have cloud-init set the first address alone (datasource: "
    "{Ec2: {apply_full_imds_network_config: false}}), and amazon-ec2-net-utils "
    "(systemctl mask --now refresh-policy-routes@LINK.timer policy-routes@LINK.service) or "
    "nm-cloud-setup none; or give the interface prefixes instead of addresses",
    RangeSource.GCP: "have google-guest-agent leave alias ranges alone ([IpForwarding] "
    "ip_aliases = false in /etc/default/instance_configs.cfg), and restart it",
}


MOST_BLOCKS = 2048
"""As many addresses as Azure's eight interfaces have, 256 each."""


@dataclass(frozen=True, slots=True)
class ValidRanges:
    """What can be used, sorted, and why each other block cannot."""

    ranges: tuple[Prefix, ...]
    refused: tuple[Diagnostic, ...]


def validate(offer: RangeOffer, document: NodeDocument, own: Mapping[Prefix, str]) -> ValidRanges:
    """Leave out the blocks that pods of this node cannot have, and use the others.

    Args:
        offer: what the source answered.
        document: the node's document, with its sites and its own addresses.
        own: what the node takes for its own, and by what.

    Raises:
        RangesUnknown: there are too many.
    """
    if len(offer.ranges) > MOST_BLOCKS:
        raise RangesUnknown(f"{len(offer.ranges)} blocks are too many; {MOST_BLOCKS} can be used")
    used: list[Prefix] = []
    refused = [
        error(
            f"{shortened([*map(str, blocks)])} of {interface} is not used: pods have addresses of "
            "the first interface alone",
            ("range_source",),
            remedy="give them to that one",
        )
        for interface, blocks in offer.elsewhere.items()
    ]
    for block in dict.fromkeys(offer.ranges):
        refusal = _refusal(block, used, document, own)
        if refusal is None:
            insort(used, block)
        else:
            refused.append(replace(refusal, message=f"{block} is not used: {refusal.message}"))
    return ValidRanges(tuple(used), tuple(refused))


def _refusal(
    block: Prefix, used: Sequence[Prefix], document: NodeDocument, own: Mapping[Prefix, str]
) -> Diagnostic | None:
    is_of_cloud = document.range_source is not RangeSource.FILE
    key: KeyPath = ("range_source",) if is_of_cloud else ("ranges",)
    outside = _outside_site(block, document, key)
    if outside is not None:
        return outside
    for special in SPECIAL_USE:
        if block.overlaps(special):
            return error(f"it lies in the special-use prefix {special}", key)
    taken = _own_address(block, document, own, key)
    if taken is not None:
        return taken
    # Of overlapping blocks the first one is kept, as the source lists them. Those before and behind
    # its place are enough: those used are disjoint.
    place = bisect(used, block)
    for other in used[max(place - 1, 0) : place + 1]:
        if other.overlaps(block):
            return error(f"{other} has it already", key)
    return None


def _own_address(
    block: Prefix, document: NodeDocument, own: Mapping[Prefix, str], key: KeyPath
) -> Diagnostic | None:
    for number, address in enumerate(document.node.addresses):
        if block.holds(address):
            message = f"it holds the node's own address {address}"
            return error(message, key, ("node", "addresses", number))
    for prefix, by in own.items():
        if block.overlaps(prefix):
            what = prefix.network if prefix.is_address else prefix
            message = f"{what} is {by}, so that the node takes its packets for its own"
            remedy = _REMEDIES.get(document.range_source, "take it away there")
            return error(message, key, remedy=remedy)
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
