"""The ranges that a source gave last, kept in `ranges.json` for the next start.

No answer, or one that cannot be used, leaves the last good answer in force.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from netmgr import durable
from netmgr.dataplane.node_routes import local_routes
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.errors import RangesUnknown, StateError
from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.prefixes import Prefix
from netmgr.ranges import assigned
from netmgr.ranges.answers import RangeOffer
from netmgr.ranges.sources import ValidRanges, reader, validate

RANGES = "ranges"
"""Name of the attempt to learn them."""

FILE_NAME = "ranges.json"

log = logging.getLogger(__name__)


def resolved(document: NodeDocument) -> NodeDocument:
    """The document with the ranges that its source has now, else those of last time, or none."""
    # Asked once: an agent that starts must soon answer for the pods that run.
    try:
        answer = ask(document)
        if answer == RangeOffer(document.ranges):
            return document
        valid = validate(answer, document, taken_by_node())
    except RangesUnknown as error:
        ranges = _recall(document)
        log.warning("ranges-recalled count=%s error=%s", len(ranges), error)
        return document.model_copy(update={"ranges": ranges})
    for refused in valid.refused:
        log.error("range-refused reason=%s", refused)
    # model_copy validates nothing, which `validate` has done.
    known = document.model_copy(update={"ranges": valid.ranges})
    remember(known, valid)
    return known


def ask(document: NodeDocument) -> RangeOffer:
    """What the source of the document's ranges says now; RangesUnknown if it does not answer."""
    if document.range_source is RangeSource.FILE:
        return RangeOffer(assigned.current(document))
    return reader(document.range_source)()


def taken_by_node() -> Mapping[Prefix, str]:
    """What the node takes for its own, and by what; nothing of it can be a pod's."""
    with Netlink() as kernel:
        local = local_routes(kernel)
        held = links.read_holders(kernel)
    return local | {address.prefix: f"set on {link}" for address, link in held.items()}


def remember(document: NodeDocument, valid: ValidRanges) -> None:
    """Keep the ranges for the next start; if all of them are refused, the last good ones stay."""
    if document.range_source is RangeSource.FILE or (valid.refused and not valid.ranges):
        return
    try:
        write(document)
    except StateError as error:
        log.warning("ranges-not-kept error=%s", error)


def write(document: NodeDocument) -> None:
    content = {"source": document.range_source, "ranges": [str(block) for block in document.ranges]}
    durable.write(document.state_dir / FILE_NAME, json.dumps(content).encode(), 0o600)


def _recall(document: NodeDocument) -> tuple[Prefix, ...]:
    def parse(text: str) -> tuple[Prefix, ...]:
        content = json.loads(text)
        return tuple(
            Prefix.parse(block)
            for block in content["ranges"]
            # After a change of range_source the file still has what another source said.
            if content["source"] == document.range_source
        )

    try:
        return durable.read(document.state_dir / FILE_NAME, parse) or ()
    except StateError as error:
        log.warning("ranges-not-recalled error=%s", error)
        return ()
