"""Keeps a node's ranges as their source says, while its pods live.

- What the source says new joins without a restart: the rules know an address before a pod gets it.
- What it withdraws is given to nobody any more. A pod that holds such an address keeps it, its
  masquerading included, and is told of; when it ends the address is gone.
- No answer, or one that cannot be used, changes nothing; `Telemetry.failing` says why. The last
  good answer outlives the agent in `ranges.json`.
- A block that contradicts the plan or the node is left out and told; the others are used.
"""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from netmgr import documents, durable
from netmgr.agent.files import Made
from netmgr.agent.node import Node
from netmgr.agent.telemetry import Telemetry
from netmgr.config import NodeDocument
from netmgr.config import RangeSource as Kind
from netmgr.dataplane import forwarding, links, rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import ConfigError, NetmgrError, RangesUnknown, SetupError, StateError
from netmgr.prefixes import Address, Family, Prefix, merge
from netmgr.ranges.pace import Pace
from netmgr.ranges.source import DocumentRanges, RangeSource
from netmgr.ranges.vetting import Vetted, vet
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy

Follow = Callable[[NodeDocument], None]
"""Has whoever else needs it know the document with other ranges."""

STEP = "ranges"
"""Name in `Telemetry.failing`."""

_REMEMBERED = "ranges.json"

log = logging.getLogger(__name__)


def resolved(document: NodeDocument) -> NodeDocument:
    """The document with the ranges that its source tells now, else those it told last, else none.

    The source is asked once: an agent that starts must soon answer for the pods that run.
    """
    if document.range_source is Kind.FILE:
        return document
    try:
        vetted = vet(_azure().read(), document, _on_links())
    except RangesUnknown as error:
        ranges = _recall(document)
        log.warning("ranges-recalled count=%s error=%s", len(ranges), error)
        return document.model_copy(update={"ranges": ranges})
    for sentence in vetted.refused:
        log.error("range-refused reason=%s", sentence)
    known = document.model_copy(update={"ranges": vetted.ranges})
    _remember(known, vetted)
    return known


class Ranging:
    """One thread that asks the source, and brings pool and rules to what it says.

    Args:
        config: where the node document stands.
        document: the document as the agent started with it, its ranges resolved.
        follow: is given it anew whenever its ranges changed.
    """

    def __init__(
        self, config: Path, document: NodeDocument, node: Node, rules: Rules, follow: Follow, telemetry: Telemetry
    ) -> None:
        self._document = document
        self._node = node
        self._rules = rules
        self._follow_document = follow
        self._telemetry = telemetry
        self._source, interval = _source(config, document)
        self._pace = Pace(interval, random.uniform)
        self._said = document.ranges
        self._vetted = Vetted(document.ranges, ())
        self._reported: set[Address] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ranges", daemon=True)

    def prepare(self) -> None:
        """Have the rules know the withdrawn addresses that are held, before they are applied the first time."""
        self._rules.change_policy(self._policy(self._in_use()))

    @property
    def kept(self) -> Made:
        """The file that keeps the ranges for the next start."""
        path = self._document.state_dir / _REMEMBERED
        return Made(
            path,
            lambda: _write(self._document),
            lambda: self._document.range_source is not Kind.FILE and bool(self._document.ranges),
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the work under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0 if not self._document.ranges else self._pace.after_success()
        while not self._stopping.wait(pause):
            pause = self.refresh()

    def refresh(self) -> float:
        """Ask the source once and do what it says; returns the seconds until the next time."""
        try:
            self._vet(self._source.read())
            self._apply(self._vetted.ranges)
        except (NetmgrError, OSError, sqlite3.Error) as error:
            self._tell(str(error))
            return self._pace.after_failure(error.retry_after if isinstance(error, RangesUnknown) else 0.0)
        self._tell("; ".join(self._vetted.refused))
        return self._pace.after_success()

    def _vet(self, said: tuple[Prefix, ...]) -> None:
        """Look again at what was accepted before only where the cloud says it: a document was held against the node."""
        if self._document.range_source is Kind.FILE and said == self._said and not self._vetted.refused:
            return
        self._vetted = _forwarded(vet(said, self._document, _on_links()), self._document)
        self._said = said

    def _tell(self, failing: str) -> None:
        if failing and self._telemetry.failing.get(STEP) != failing:
            log.error("ranges-failing error=%s", failing)
        if failing:
            self._telemetry.failing[STEP] = failing
        elif self._telemetry.failing.pop(STEP, None):
            log.info("ranges-known-again")

    def _apply(self, ranges: tuple[Prefix, ...]) -> None:
        before = self._document.ranges
        if ranges != before:
            self._follow((*before, *ranges))
            self._node.leases.set_ranges(ranges)
            self._document = self._document.model_copy(update={"ranges": ranges})
            self._follow_document(self._document)
            _remember(self._document, self._vetted)
            gone, come = sorted(set(before) - set(ranges)), sorted(set(ranges) - set(before))
            log.info("ranges-changed new=%s withdrawn=%s", _listed(come), _listed(gone))
        # Also without a change: a pod that held a withdrawn address may have ended.
        self._follow(self._in_use())
        self._report()

    def _in_use(self) -> tuple[Prefix, ...]:
        return (*self._document.ranges, *(address.prefix for address in self._node.leases.withdrawn()))

    def _follow(self, ranges: Iterable[Prefix]) -> None:
        policy = self._policy(ranges)
        if policy != self._rules.policy:
            for sentence in self._node.accounts.change_policy(policy):
                log.debug("rules-changed what=%s", sentence)

    def _policy(self, ranges: Iterable[Prefix]) -> Policy:
        return Policy.of(self._document.model_copy(update={"ranges": tuple(merge(ranges))}))

    def _report(self) -> None:
        withdrawn = self._node.leases.withdrawn()
        for address in withdrawn.keys() - self._reported:
            pod = withdrawn[address].pod
            log.warning("withdrawn-address-held address=%s pod=%s", address, pod)
        self._reported = set(withdrawn)


def _source(config: Path, document: NodeDocument) -> tuple[RangeSource, float]:
    """The source, and the seconds between two looks at it."""
    if document.range_source is Kind.AZURE:
        return _azure(), document.range_refresh_seconds
    return DocumentRanges(_Reader(config, document).read), document.reconcile_seconds


def _azure() -> RangeSource:
    """Imported here: the HTTP that it needs takes memory on every node that has no use for it."""
    from netmgr.ranges.azure import AzureRanges  # noqa: PLC0415  see above

    return AzureRanges()


class _Reader:
    """Reads the ranges of a node document again whenever its file is another, or was written."""

    def __init__(self, path: Path, document: NodeDocument) -> None:
        self._path = path
        self._document = document
        self._version: object = None

    def read(self) -> tuple[Prefix, ...]:
        """The ranges, as of now.

        Raises:
            ConfigError: the file is wrong or gone.
        """
        try:
            status = self._path.stat()
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._version:
            document = documents.load(self._path, NodeDocument)
            self._version = version
            changed = [key for key, value in document if key != "ranges" and value != getattr(self._document, key)]
            if changed:
                log.warning("document-changed action=restart-the-agent file=%s keys=%s", self._path, ", ".join(changed))
            self._document = document
        return self._document.ranges


def _forwarded(vetted: Vetted, document: NodeDocument) -> Vetted:
    """Have the kernel forward what will have addresses; a family that it cannot forward is left out."""
    refused = list(vetted.refused)
    ranges = vetted.ranges
    for family in sorted({block.family for block in ranges}.difference(document.families)):
        try:
            forwarding.enable([family], document.node.uplink)
        except SetupError as error:
            refused.append(f"no range of IPv{family.value} is used: {error}")
            ranges = tuple(block for block in ranges if block.family is not family)
    return Vetted(ranges, tuple(refused))


def _on_links() -> Mapping[Address, str]:
    """Addresses of the node's own links; pods' addresses are on none."""
    with Netlink() as kernel:
        names = {link.number: link.name for link in kernel.dump(rtnetlink.dump_links(), links.link_of)}
        return {
            Address(held.family, held.value): names.get(number, "a link that has gone")
            for family in Family
            for held, number in kernel.dump(rtnetlink.dump_addresses(family), rtnetlink.address_of)
        }


def _remember(document: NodeDocument, vetted: Vetted) -> None:
    """Keep the ranges for the next start; where all that was said is refused, those before stay the last good ones."""
    if document.range_source is Kind.FILE or (vetted.refused and not vetted.ranges):
        return
    try:
        _write(document)
    except StateError as error:
        log.warning("ranges-not-kept error=%s", error)


def _write(document: NodeDocument) -> None:
    content = {"source": document.range_source, "ranges": [str(block) for block in document.ranges]}
    durable.write(document.state_dir / _REMEMBERED, json.dumps(content).encode())


def _recall(document: NodeDocument) -> tuple[Prefix, ...]:
    def parse(text: str) -> tuple[Prefix, ...]:
        content = json.loads(text)
        return tuple(Prefix.parse(block) for block in content["ranges"] if content["source"] == document.range_source)

    try:
        return durable.read(document.state_dir / _REMEMBERED, parse) or ()
    except StateError as error:
        log.warning("ranges-not-recalled error=%s", error)
        return ()


def _listed(blocks: Iterable[Prefix]) -> str:
    return ",".join(map(str, blocks)) or "none"
