"""Keeps a node's ranges as their source says, while its pods live.

- What the source says new joins without a restart: the rules know an address before a pod gets it.
- What it withdraws is given to no pod any more. A pod that holds it keeps it, and is reported.
- No answer, or one that cannot be used, changes nothing; `Health.failing` says why.
- A block that contradicts the plan or the node is left out and reported; the others are used.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.checking import DocumentCheck
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.files import Files, Made
from netmgr.agent.core.scheduler import Task
from netmgr.agent.network.known_ranges import FILE_NAME, RANGES, remember, taken_by_node, write
from netmgr.agent.network.pool import NodeAddresses
from netmgr.agent.network.router import Router
from netmgr.api.snapshot import Fault, Problem, Snapshot, WithdrawnAddress
from netmgr.backoff import Backoff, regular
from netmgr.dataplane import settings
from netmgr.documents.diagnostics import Diagnostic, Location
from netmgr.documents.node import NodeDocument, RangeSource
from netmgr.errors import NetmgrError, RangesUnknown, SetupError
from netmgr.file_version import ReadAgain
from netmgr.prefixes import Address, Prefix, merge
from netmgr.printable import shortened
from netmgr.ranges import assigned
from netmgr.ranges.answers import RangeOffer
from netmgr.ranges.sources import RangeReader, ValidRanges, reader, validate
from netmgr.rules.policy import Policy

# Seconds at most, and half of it at least: Azure allows five requests a second.
FIRST_RETRY = 2.0

LONGEST_RETRY = 120.0

# How often the file with the Node's ranges is read, which decides how long a range that is no
# longer the Node's is given out.
RANGES_FILE_SECONDS = 2.0

log = logging.getLogger(__name__)


class Ranges(Component):
    """Asks the source, and updates pool, rules and routes to its answer."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        # It asked the source already, for the ranges to start with.
        self._leases = agent.get(NodeAddresses).leases
        self._source, self._interval = _source(agent.config, agent.document)
        self._wakes: int | None = None
        if agent.document.range_source is RangeSource.GCP:
            from netmgr.ranges.gcp import ChangeWatch  # noqa: PLC0415  as in `sources`

            watch = ChangeWatch()
            self._source, self._wakes = watch.read, watch.fileno()
        self._backoff = Backoff(FIRST_RETRY, max(LONGEST_RETRY, self._interval))
        self._native = agent.document.native
        self._said = RangeOffer(agent.document.ranges)
        self._valid = ValidRanges(agent.document.ranges, ())
        self._reported: set[Address] = set()
        if agent.document.range_source is not RangeSource.FILE:
            path = agent.document.state_dir / FILE_NAME
            agent.get(Files).keep(
                Made(path, lambda: write(agent.document), lambda: bool(agent.document.ranges))
            )

    def start(self) -> None:
        # What the document does not have, before rules are first applied: other nodes, and
        # withdrawn addresses that pods hold.
        self._follow_nodes()
        self._agent.get(NodeAccounting).rules.change_policy(self._policy(self._in_use()))

    def tasks(self) -> Iterable[Task]:
        # With jitter: the nodes of a cluster that boot together do not ask in step.
        is_known = self._agent.document.ranges and self._wakes is None
        delay = regular(self._interval) if is_known else 0.0
        # In a thread of its own: an answer may take seconds.
        yield Task(self.refresh, 0.0, delay, wakes=self._wakes, thread=RANGES)

    def refresh(self) -> float:
        """Ask the source once and do what it says; returns the seconds until the next time."""
        self._follow_nodes()
        try:
            self._validate(self._source())
            self._apply(self._valid.ranges)
        except (NetmgrError, OSError, sqlite3.Error) as error:
            self._report_failure(str(error))
            return self._backoff.next(
                error.retry_after if isinstance(error, RangesUnknown) else 0.0
            )
        self._report_failure(shortened([*map(str, self._valid.refused)], separator="; "))
        self._backoff.reset()
        return regular(self._interval)

    def _follow_nodes(self) -> None:
        """Have pods keep their addresses toward the nodes with whose pods they have routes."""
        if self._native is not None:
            native = (*self._native, *self._agent.get(Router).nodes)
            self._agent.document = self._agent.document.model_copy(update={"native": native})

    def _validate(self, offer: RangeOffer) -> None:
        # A document is looked at every few seconds, and its ranges seldom change.
        if (
            self._agent.document.range_source is RangeSource.FILE
            and offer == self._said
            and not self._valid.refused
        ):
            return
        document = self._agent.document
        self._valid = _forwarded(validate(offer, document, taken_by_node()), document)
        self._said = offer

    def _report_failure(self, failure: str) -> None:
        failing = self._agent.health.failing
        if failure and failing.get(RANGES) != failure:
            log.error("ranges-failing error=%s", failure)
        if failure:
            failing[RANGES] = failure
        elif failing.pop(RANGES, None):
            log.info("ranges-known-again")

    def _apply(self, ranges: tuple[Prefix, ...]) -> None:
        before = self._agent.document.ranges
        if ranges != before:
            # The rules first, so that no pod gets an address that they do not know.
            self._follow((*before, *ranges))
            self._leases.set_ranges(ranges)
            document = self._agent.document.model_copy(update={"ranges": ranges})
            self._agent.document = document
            self._agent.get(Router).follow(document)
            remember(document, self._valid)
            gone, come = sorted(set(before) - set(ranges)), sorted(set(ranges) - set(before))
            log.info("ranges-changed new=%s withdrawn=%s", _listed(come), _listed(gone))
        # Also without a change: a pod that held a withdrawn address may have ended.
        self._follow(self._in_use())
        withdrawn = self._leases.withdrawn()
        for address in withdrawn.keys() - self._reported:
            pod = withdrawn[address].pod
            log.warning("withdrawn-address-held address=%s pod=%s", address, pod)
        self._reported = set(withdrawn)

    def problems(self) -> Iterable[Problem]:
        if failing := self._agent.health.failing.get(RANGES):
            yield {"reason": Fault.RANGES, "message": f"ranges cannot be followed: {failing}"}
        if withdrawn := self._leases.withdrawn():
            held = [f"{address} of {holder.pod}" for address, holder in sorted(withdrawn.items())]
            message = (
                "pods hold addresses of no range of this node any more, which the network may "
                f"deliver elsewhere: {shortened(held)}; delete these pods to have them replaced"
            )
            yield {"reason": Fault.WITHDRAWN, "message": message}

    def snapshot(self, snapshot: Snapshot) -> None:
        withdrawn: list[WithdrawnAddress] = [
            {"address": str(address), "namespace": holder.pod.namespace, "pod": holder.pod.name}
            for address, holder in self._leases.withdrawn().items()
        ]
        changed = self._source.changed if isinstance(self._source, _Reader) else ""
        snapshot["ranges"] = {
            "source": self._agent.document.range_source,
            "failing": self._agent.health.failing.get(RANGES, ""),
            "withdrawn": withdrawn,
            # It concerns nobody once no pod has former ones.
            "changed": changed if withdrawn or not self._agent.document.ranges else "",
        }

    def _in_use(self) -> tuple[Prefix, ...]:
        return (
            *self._agent.document.ranges,
            *(address.prefix for address in self._leases.withdrawn()),
        )

    def _follow(self, ranges: Iterable[Prefix]) -> None:
        policy, accounting = self._policy(ranges), self._agent.get(NodeAccounting)
        if policy != accounting.rules.policy:
            for change in accounting.accounts.change_policy(policy):
                log.debug("rules-changed what=%s", change)

    def _policy(self, ranges: Iterable[Prefix]) -> Policy:
        return Policy.of(self._agent.document.model_copy(update={"ranges": tuple(merge(ranges))}))


def _source(config: Path, document: NodeDocument) -> tuple[RangeReader, float]:
    """The source, and the seconds between two looks at it."""
    if document.range_source is RangeSource.FILE:
        longest = RANGES_FILE_SECONDS if document.ranges_file else document.reconcile_seconds
        return _Reader(config, document), min(longest, document.reconcile_seconds)
    return reader(document.range_source), document.range_refresh_seconds


class _Reader:
    """Reads the ranges of a node document again whenever its file was replaced or written.

    Where the document names a file with the Node's ranges, newer ones replace them.
    """

    def __init__(self, path: Path, document: NodeDocument) -> None:
        self._document = document
        self._file = ReadAgain(path, self._load)
        self.changed = ""
        """What the Node's ranges changed in those of the document."""

    def __call__(self) -> RangeOffer:
        """The ranges, as of now."""
        document = self._file.value()
        newer = assigned.read(document)
        reason = assigned.describe_change(newer, document.ranges)
        if reason and reason != self.changed:
            log.warning("node-ranges-changed reason=%s", reason)
        self.changed = reason
        return RangeOffer(document.ranges if newer is None else newer.in_force)

    def _load(self, path: Path) -> NodeDocument:
        document, former = DocumentCheck(path).document(), self._document
        # Of a document that was changed only the ranges are followed.
        changed = [
            key for key, value in document if key != "ranges" and value != getattr(former, key)
        ]
        if changed:
            log.warning(
                "document-changed action=restart-the-agent file=%s keys=%s",
                path,
                ", ".join(changed),
            )
        self._document = document
        return document


def _forwarded(valid: ValidRanges, document: NodeDocument) -> ValidRanges:
    """Switch on forwarding for new families, and refuse those that the kernel cannot forward."""
    refused = list(valid.refused)
    ranges = valid.ranges
    for family in sorted({block.family for block in ranges}.difference(document.families)):
        try:
            # A range may bring the first address of a family while the agent runs.
            settings.enable_forwarding([family], document.node.uplink)
        except SetupError as fault:
            message = f"no range of IPv{family.value} is used: {fault}"
            refused.append(Diagnostic(message, Location(("ranges",))))
            ranges = tuple(block for block in ranges if block.family is not family)
    return ValidRanges(ranges, tuple(refused))


def _listed(blocks: Iterable[Prefix]) -> str:
    return ",".join(map(str, blocks)) or "none"
