"""Keeps rules and ledger in step: what the kernel counts is what the ledger has."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from errno import ENOENT
from typing import TYPE_CHECKING, Protocol

import netmgr
from netmgr.agent.accounting.audit import AuditReport, Passed, link_audits, through
from netmgr.api.snapshot import AuditRatio, UsageRow
from netmgr.clock import Clock
from netmgr.errors import KernelError, LinkRefused, NetmgrError
from netmgr.kernel import links
from netmgr.kernel.links import Carried
from netmgr.ledger.history import By, Period
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.mark import MENDED
from netmgr.ledger.tables import Gap
from netmgr.ledger.totals import Totals
from netmgr.model import Attachment, Counter, PodRef, Sample, Traffic, by_address
from netmgr.prefixes import Address, Prefix
from netmgr.rules.engine import Rules
from netmgr.rules.model import Count
from netmgr.rules.policy import INTERNAL_SETS, Policy
from netmgr.rules.transaction import (
    CountAtLinks,
    FillChain,
    Operation,
    ReplaceElements,
    Transaction,
)

POLICY = "policy"
"""Key in the ledger: a digest of what the rules were made from."""

if TYPE_CHECKING:
    from netmgr.agent.accounting.changeover import Changeover

log = logging.getLogger(__name__)


class CgroupReadings(Protocol):
    """Counters of host-network pods (`HostPods`), posted with the rules' own under one lock."""

    def samples(self) -> list[Sample]: ...

    def follow(self, internal: Iterable[Prefix]) -> None:
        """Treat these prefixes as internal from the next look on."""

    def look(self) -> None:
        """Begin counting new pods and end those that are gone."""

    def close(self) -> None:
        """Leave the counters to the next agent."""


class Accounts:
    """The accounting of one node. Thread-safe.

    Args:
        min_reading_seconds: the kernel is read no more often than this, however often it is asked.
        changeover: a change of backend that `start` makes.
        uplinks: their names as of now.
    """

    def __init__(
        self,
        rules: Rules,
        ledger: Ledger,
        clock: Clock,
        min_reading_seconds: float,
        changeover: Changeover | None = None,
        uplinks: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._rules = rules
        self._uplinks = uplinks
        self._first: dict[str, Passed] = {}
        self._changeover = changeover
        self._ledger = ledger
        self._clock = clock
        self._min_reading_seconds = min_reading_seconds
        # Orders every reading before its posting: one that was posted after a later one would look
        # like a counter that somebody had reset. And a plan made from an older list of pods would
        # take new ones out of the kernel's sets.
        # Reentrant: `start`, `change_policy` and `_admit` hold it while they reconcile.
        self._lock = threading.RLock()
        self._attached: dict[Address, Attachment] = {}
        self.ratios: list[AuditRatio] = []
        """The audit's figures as of the last tidying."""
        self._read_at = -math.inf
        # Begun in the ledger, and still to be made in the kernel: that they are missing is no loss.
        self._announced: set[Counter] = set()
        # A predecessor may have been killed before it made these in the kernel.
        self._unmade: frozenset[Counter] = frozenset()
        # The recorded gap goes on from here until the repair has succeeded.
        self._gap_since: float | None = None
        # When the rules were last seen whole; None where the next difference may be our own.
        self._sound_at: float | None = None
        self._syncing: threading.Thread | None = None
        self._host_pods: CgroupReadings | None = None

    @property
    def backends(self) -> set[str]:
        """Names of the backends that hold rules: two of them until `start` has changed over."""
        former = self._changeover.rules if self._changeover else ()
        return {str(rules.backend.name) for rules in (self._rules, *former)}

    def start(self, attachments: Iterable[Attachment]) -> list[str]:
        """Take over from a predecessor, and end counters of pods that ended meanwhile."""
        with self._lock:
            listed = tuple(attachments)
            self._attached = by_address(listed)
            for attachment in listed:
                self._know(attachment)
            known = self._ledger.counters()
            made_from = f"{netmgr.__version__} {self._rules.policy}"
            policy = hashlib.sha256(made_from.encode()).hexdigest()
            self._compare_with_predecessor(policy, known)
            self._unmade |= self._unused()
            self._begin_owned(known)
            # Only counters of pods that are gone. Those of former classes end in `_end_former`,
            # when no rule counts them any more.
            wanted = frozenset([*self._rules.counters(self._attached), *self._rules.former(known)])
            gone = frozenset(
                counter for counter in known if counter.is_pod and counter not in wanted
            )
            self._post_readings(closing=gone)
            # After the posting: a mark in the kernel that is ahead of the ledger would make the
            # ledger pass for an older copy of itself.
            self._mark()
            self._look_for_host_pods()
            repairs = self._make_rules()
            # After the kernel has lost them, as in `end`: it counts nothing that the ledger lacks.
            self._ledger.end(gone)
            self._announced.clear()
            self._unmade = frozenset()
            if self._changeover is not None:
                self._changeover.finish()
                self._changeover = None
                # What counted for the former one may be in a table of the successor's.
                self._sound_at = None
                repairs += self.reconcile()
            self._end_former()
            self._ledger.remember(POLICY, policy)
            return repairs

    def _make_rules(self) -> list[str]:
        """Have the kernel hold the rules, but for links that are refused."""
        try:
            return self.reconcile()
        except LinkRefused:
            # The former backend goes on counting, on that link, too.
            if self._changeover is not None:
                raise
            # Other links count, and pods come and go meanwhile. Each pass tries again, and says so.
            return []

    def _compare_with_predecessor(self, policy: str, known: Iterable[Counter]) -> None:
        """Find out what its rules were made for."""
        former = self._ledger.recall(POLICY)
        if former is None:
            # No start was ever finished: no pod came, and what was begun may not have been made.
            self._unmade = frozenset(known)
        elif former != policy:
            # It may have been killed before it made the rules of a new class.
            self._unmade = frozenset(
                counter for counter in known if counter.traffic not in tuple(Traffic)
            )
        elif self._changeover is None:
            self._sound_at = self._ledger.read_at

    def _unused(self) -> frozenset[Counter]:
        """Counters of pods whose links have carried nothing: an ADD was killed on its way."""
        carried = links.read_carried()
        unused = (
            address
            for address, attachment in self._attached.items()
            if attachment.host_link in carried and not any(carried[attachment.host_link])
        )
        return frozenset(self._rules.counters(unused))

    def _begin_owned(self, known: Mapping[Counter, PodRef | None]) -> None:
        """Begin what the pods need, before anything is posted."""
        for address, attachment in self._attached.items():
            counters = self._rules.counters([address])
            self._ledger.begin(counters, attachment.pod)
            # The kernel does not have these yet, which is no loss.
            self._announced.update(counter for counter in counters if counter not in known)

    def _post_readings(self, closing: Collection[Counter]) -> None:
        """Post every counter's reading, the last one of `closing`."""
        # Before the reading, which takes time: a gap must not begin too late.
        taken_at = self._ledger.moment()
        samples = self._samples()
        known = self._ledger.counters()
        # A new ledger does not have all of the node's own counters.
        new = {sample.counter for sample in samples if not sample.counter.is_pod} - known.keys()
        self._ledger.begin(new, None)
        # One that shows nothing yet may be in a map that goes with this process if it is killed.
        shown = [sample for sample in samples if sample.packets or sample.counter not in new]
        self._ledger.post(shown, taken_at, closing)
        if self._changeover:
            # Right after the posting: what passes before the removal is in no reading.
            self._changeover.make_way()
            if self._changeover.former:
                # The successor does not have these yet, which is no loss either.
                self._announced.update(sample.counter for sample in samples)

    def _samples(self) -> list[Sample]:
        """Every counter that the ledger reads: the former backend's until `start` has succeeded."""
        return self._changeover.read() if self._changeover else self._rules.read()

    def count_host_pods(self, host_pods: CgroupReadings) -> None:
        """Count these as well; called before `start`."""
        self._host_pods = host_pods

    @property
    def is_rebuilt(self) -> bool:
        """Whether the ledger lacked something: the kernel may have counters unknown to it."""
        return self._ledger.books_state in MENDED

    def begin(self, attachment: Attachment) -> None:
        """Count for an attachment from now on; called before any of its packets can pass."""
        with self._lock:
            # Before the admission, which gives addresses of an excepted namespace other elements.
            self._know(attachment)
            # The ledger before the kernel: killed in between, an agent leaves a counter that the
            # next start makes. The other way round it would leave one without an owner.
            self._ledger.begin(self._rules.counters(attachment.addresses), attachment.pod)
            self._admit(attachment.addresses)
            self._attached.update(dict.fromkeys(attachment.addresses, attachment))

    def end(self, attachment: Attachment) -> None:
        """Take the last reading and stop counting; called after its last packet has passed."""
        with self._lock:
            self._prolong_gap()
            counters, taken_at = self._rules.counters(attachment.addresses), self._ledger.moment()
            self._ledger.post(
                self._rules.read_pods(attachment.addresses), taken_at, closing=counters
            )
            mark = self._ledger.mark
            # In one step with the mark of the ledger that has their last reading: killed in
            # between, an agent would leave counters that the ledger has ended, or a mark that is
            # ahead of it.
            self._rules.expel(attachment.addresses, mark and mark.address)
            self._ledger.end(counters)
            # Neither its link nor an exception of its namespace is the next holder's.
            self._rules.know(attachment.addresses, "", "")
            for address in attachment.addresses:
                self._attached.pop(address, None)

    def read(self, *, at_once: bool = False) -> None:
        """Post a reading of every counter, unless there was one just now; `at_once`, even then."""
        with self._lock:
            now = self._clock.monotonic()
            if at_once or now - self._read_at >= self._min_reading_seconds:
                self._prolong_gap()
                taken_at = self._ledger.moment()
                # In one posting with the node's hooks, since the ledger audits what is read
                # together.
                host_pods = self._host_pods.samples() if self._host_pods else ()
                self._ledger.post([*self._samples(), *host_pods], taken_at)
                self._read_at = now

    def reconcile(self) -> list[str]:
        """Repair our rules; describes each repair."""
        with self._lock:
            # Before the look, so that what is altered while it runs falls into the next gap.
            looked_at = self._clock.monotonic()
            self._prolong_gap()
            transaction = self._rules.plan(list(self._attached))
            if transaction:
                # The ledger before the kernel, as in `begin`.
                self._announce(transaction.created - self._announced)
                self._record_altered_rules(transaction)
                # An element takes its counter with it: what is no longer counted is read before it
                # is removed.
                self._rules.apply(transaction, before_removals=self._end_former)
                self._announced.clear()
            if self._gap_since is not None:
                # A gap that was recorded before the repair lasts until the rules count again.
                self._ledger.note(Gap.REMOVED, self._gap_since, goes_on=True)
                self._gap_since = None
            if transaction.created and self._changeover is None:
                # So that the ledger knows the new counters from any that somebody puts back.
                self.read(at_once=True)
            # Only after the repair: if it fails, the gap must reach back to the last sound look.
            self._sound_at = looked_at
            self._mark()
            return list(transaction.repairs)

    def _mark(self) -> None:
        if mark := self._ledger.mark:
            self._rules.mark(mark.address)

    def _end_former(self) -> None:
        """Take the last readings of classes of traffic that are no longer counted."""
        if self._changeover is not None:
            return  # they are in the former backend, which is still to be read
        known = self._ledger.counters()
        if former := self._rules.former(known):
            taken_at = self._ledger.moment()
            self._ledger.post(self._rules.read_former(former), taken_at)
            self._ledger.end(former)

    def _record_altered_rules(self, transaction: Transaction) -> None:
        """Record a gap if rules that count were altered, although every counter is still there."""
        # `_sound_at` is None at the first look after a change of version or document: what differs
        # then was right until now.
        if (
            self._sound_at is not None
            and not transaction.created
            and any(map(_counts, transaction.operations))
        ):
            self._gap_since = self._clock.monotonic()
            self._ledger.note(Gap.REMOVED, self._sound_at)
            self._sound_at = None  # recorded once, even if applying must be tried again

    def _prolong_gap(self) -> None:
        """Write down that a gap whose repair has failed so far lasts until now.

        Before whatever is next, and before each reading: a successor takes all for counted that
        passed before the last one.
        """
        if self._gap_since is not None:
            self._gap_since = self._ledger.prolong(Gap.REMOVED, self._gap_since)

    def change_policy(self, policy: Policy) -> list[str]:
        with self._lock:
            self._rules.change_policy(policy)
            # The difference that the next look finds is ours, not another program's.
            self._sound_at = None
            repairs = self.reconcile()
            self._look_for_host_pods()
            return repairs

    def _announce(self, created: frozenset[Counter]) -> None:
        """Open counters in the ledger before the kernel has them; once, also if it is retried."""
        known = self._ledger.counters()
        now = self._clock.monotonic()
        begun = [counter for counter in created if counter in known]
        if self._ledger.restart(begun, self._unmade):
            self._gap_since = now
        for counter in created:
            if counter not in known:
                subject = counter.subject
                owner = self._attached[subject].pod if isinstance(subject, Address) else None
                self._ledger.begin([counter], owner)
        self._announced |= created

    def check(self, attachment: Attachment) -> list[str]:
        """Describes what of an attachment's accounting is missing in the kernel."""
        return self._rules.check(attachment.addresses)

    def await_turn(self) -> None:
        """Wait until no reading, repair or write is under way. If one hangs, so does the caller."""
        with self._lock:
            # The ledger's lock as well: a write to a disk that hangs holds it.
            self._ledger.recall(POLICY)

    def usage(self, period: Period, by: Sequence[By]) -> list[UsageRow]:
        """What pods exchanged in a period, up to now where it is still going on."""
        try:
            self.read()
        except NetmgrError as error:
            # The history up to the last reading is better than no answer.
            log.warning("counters-unread error=%s", error)
        return self._ledger.usage(period, by)

    def audit(self) -> AuditReport:
        """What was counted compared with what passed, as of now."""
        with self._lock:
            self.read()
            # Counters before links: what passes in between can only be missing from the counters.
            readings = self._ledger.readings()
            carried = links.read_carried()
            totals = self._ledger.totals()
            return AuditReport(
                totals,
                link_audits(set(self._attached.values()), readings, carried),
                self._through_uplinks(carried, totals),
            )

    def _through_uplinks(self, carried: Mapping[str, Carried], totals: Totals) -> dict[str, Passed]:
        """What passed the uplinks since the first look, or since their counters were made anew."""
        present = (carried[name] for name in self._uplinks() if name in carried)
        now = through(present, totals, link_layer=self._rules.policy.link_layer)
        passed = {
            traffic: latest.since(self._first.get(traffic, latest))
            for traffic, latest in now.items()
        }
        is_anew = any(min(difference) < 0 for difference in passed.values())
        self._first = now if is_anew else now | self._first
        return {} if is_anew else passed

    def tidy(self) -> None:
        """Drop series that have lingered, audit the links, and write the ledger's log back."""
        self._ledger.sweep()
        if self._syncing is None or not self._syncing.is_alive():
            # Not in this thread, which has pods to look for: fsync may take seconds.
            self._syncing = threading.Thread(
                target=self._ledger.checkpoint, name="ledger-sync", daemon=True
            )
            self._syncing.start()
        self._look_for_host_pods()
        self.ratios = self.audit().ratios()

    def _look_for_host_pods(self) -> None:
        if self._host_pods is None:
            return
        with self._lock:
            try:
                self._host_pods.follow(self._rules.policy.known)
                self._host_pods.look()
            except NetmgrError as error:
                log.warning("host-pods-uncounted error=%s", error)

    def close(self) -> None:
        """Post a last reading and close the ledger; rules and counters stay for the next agent."""
        if self._syncing is not None:
            # Its thread looks at the file, so it has to end before the ledger closes the file.
            self._syncing.join()
        with self._lock:
            # Even if there was a reading just now: this is the last one.
            self.read(at_once=True)
            self._ledger.close()
            if self._host_pods is not None:
                self._host_pods.close()

    def _know(self, attachment: Attachment) -> None:
        self._rules.know(attachment.addresses, attachment.pod.namespace, attachment.host_link)

    def _admit(self, addresses: Collection[Address]) -> None:
        try:
            self._rules.admit(addresses)
        except KernelError as error:
            if error.errno != ENOENT:
                raise
            # Another program has flushed our rules; the pod cannot wait for the next reconcile.
            for repair in self.reconcile():
                log.warning("repaired area=rules what=%s", repair)
            self._rules.admit(addresses)


def _counts(operation: Operation) -> bool:
    """Whether an operation repairs something that decides what is counted."""
    if isinstance(operation, CountAtLinks):
        return operation.loses
    if isinstance(operation, FillChain):
        return any(isinstance(rule.action, Count) for rule in operation.rules)
    return isinstance(operation, ReplaceElements) and operation.spec.name in INTERNAL_SETS
