"""Keeps rules and ledger in step: what the kernel counts is what the books say.

One lock orders every reading before its posting. Without it a reading taken before another,
but posted after it, would look like a counter that somebody had reset; and a plan made of
yesterday's pods would take today's out of the kernel's sets.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from errno import ENOENT
from typing import TYPE_CHECKING

import netmgr
from netmgr.agent.audit import Report, link_checks
from netmgr.clock import Clock
from netmgr.dataplane import link_counters
from netmgr.errors import KernelError
from netmgr.ledger.book import Gap
from netmgr.ledger.history import By, Period, Usage
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.mark import MENDED
from netmgr.ledger.totals import Totals
from netmgr.model import Attachment, Counter, PodRef
from netmgr.prefixes import Address
from netmgr.rules.engine import Rules
from netmgr.rules.model import Hook
from netmgr.rules.policy import INTERNAL_SETS, Policy
from netmgr.rules.transaction import FillChain, Operation, ReplaceElements, Transaction
from netmgr.snapshot import AuditRatio

POLICY = "policy"
"""Fact of the ledger: a digest of what the rules were made from."""

if TYPE_CHECKING:
    from netmgr.agent.changeover import Changeover
    from netmgr.agent.host_pods import HostPods

log = logging.getLogger(__name__)


class Accounts:
    """The accounting of one node. Thread-safe.

    Args:
        min_reading_seconds: the kernel is read no more often than this, however often it is asked.
        changeover: a change of backend that `start` makes.
    """

    def __init__(
        self,
        rules: Rules,
        ledger: Ledger,
        clock: Clock,
        min_reading_seconds: float,
        changeover: Changeover | None = None,
    ) -> None:
        self._rules = rules
        self._changeover = changeover
        self._ledger = ledger
        self._clock = clock
        self._min_reading_seconds = min_reading_seconds
        self._lock = threading.RLock()
        self._owners: dict[Address, PodRef] = {}
        self._attached: dict[Address, Attachment] = {}
        self._ratios: list[AuditRatio] = []
        self._read_at = float("-inf")
        self._announced: set[Counter] = set()
        self._gap_since: float | None = None
        self._sound_at: float | None = None
        self._syncing: threading.Thread | None = None
        self._host_pods: HostPods | None = None

    def start(self, attachments: Iterable[Attachment]) -> list[str]:
        """Take over from a predecessor: its counters go on, those of pods that went meanwhile end."""
        with self._lock:
            self._attached = {address: a for a in attachments for address in a.addresses}
            self._owners = {address: a.pod for address, a in self._attached.items()}
            for address, pod in self._owners.items():
                self._rules.know([address], pod.namespace)
            known = self._ledger.counters()
            policy = hashlib.sha256(f"{netmgr.__version__} {self._rules.policy}".encode()).hexdigest()
            if self._ledger.recall(POLICY) == policy and self._changeover is None:
                self._sound_at = self._ledger.read_at
            self._begin_owned(known)
            found = self._post_found()
            self._mark()
            # Those of pods that are gone; what is of a former class ends once no rule counts it any more.
            wanted = frozenset([*self._rules.counters(self._owners), *self._rules.former(known)])
            self._end_gone([c for c in known if isinstance(c.subject, Address) and c not in wanted], found)
            self._look_for_host_pods()
            repairs = self.reconcile()
            self._announced.clear()
            if self._changeover is not None:
                self._changeover.finish()
                self._changeover = None
            self._end_former()
            self._ledger.remember(POLICY, policy)
            return repairs

    def _begin_owned(self, known: Mapping[Counter, PodRef | None]) -> None:
        """Begin what the pods need, before anything is posted.

        Where the books are an older copy, an address may have been another pod's when they were written.
        """
        for address, pod in self._owners.items():
            counters = self._rules.counters([address])
            self._ledger.begin(counters, pod)
            # That the kernel does not have these yet is no loss.
            self._announced.update(c for c in counters if c not in known)

    def _end_gone(self, gone: Iterable[Counter], found: Collection[Counter]) -> None:
        """End counters of pods that are gone; of those that went before they were read, something is lost.

        Unless the books are an older copy, which was told of as a whole.
        """
        if not self.is_rebuilt:
            unread = [counter for counter in gone if counter not in found]
            self._ledger.restart(unread, unlinked=unread)
        self._ledger.end(gone)

    def _post_found(self) -> frozenset[Counter]:
        """Post what counters show, and say which; the books may have lost those of the node that they do not know."""
        taken_at = self._ledger.moment()
        samples = self._changeover.read() if self._changeover else self._rules.read()
        known = self._ledger.counters()
        self._ledger.begin([s.counter for s in samples if not s.counter.is_pod and s.counter not in known], None)
        self._ledger.post(samples, taken_at)
        if self._changeover:
            self._changeover.make_way()
        if self._changeover and self._changeover.is_former_read:
            # That the other backend does not have these yet is no loss either.
            self._announced.update(sample.counter for sample in samples)
        return frozenset(sample.counter for sample in samples)

    def count_host_pods(self, host_pods: HostPods) -> None:
        """Count these as well; called before `start`."""
        self._host_pods = host_pods

    @property
    def is_new(self) -> bool:
        """Whether accounting begins here: no earlier agent left its books."""
        return self._ledger.is_new

    @property
    def unread_seconds(self) -> float:
        """How long ago counters were read last, by a predecessor perhaps."""
        return self._clock.monotonic() - self._ledger.read_at

    @property
    def is_rebuilt(self) -> bool:
        """Whether the books lacked something, and the kernel may have counters of pods that they do not know."""
        return self._ledger.found in MENDED

    def remembered(self) -> dict[Address, PodRef]:
        """Whose counters the books hold open, a predecessor's included."""
        live = self._ledger.counters().items()
        return {c.subject: owner for c, owner in live if isinstance(c.subject, Address) and owner is not None}

    def note(self, gap: Gap, seconds: float) -> None:
        """Tell that bytes of so long may be missing from the totals for a reason that no counter shows."""
        self._ledger.note(gap, seconds)

    def begin(self, attachment: Attachment) -> None:
        """Count for an attachment from now on; called before any of its packets can pass."""
        with self._lock:
            self._rules.know(attachment.addresses, attachment.pod.namespace)
            self._ledger.begin(self._rules.counters(attachment.addresses), attachment.pod)
            self._admit(attachment.addresses)
            self._owners.update(dict.fromkeys(attachment.addresses, attachment.pod))
            self._attached.update(dict.fromkeys(attachment.addresses, attachment))

    def end(self, attachment: Attachment) -> None:
        """Take the last reading and stop counting; called after the last of its packets has passed."""
        with self._lock:
            counters, taken_at = self._rules.counters(attachment.addresses), self._ledger.moment()
            self._ledger.post(self._rules.read_pods(attachment.addresses), taken_at, closing=counters)
            mark = self._ledger.mark
            # The counters go with the mark of books that have their last reading.
            self._rules.expel(attachment.addresses, mark and mark.address)
            self._ledger.end(counters)
            self._rules.know(attachment.addresses, "")
            for address in attachment.addresses:
                self._owners.pop(address, None)
                self._attached.pop(address, None)

    def read(self) -> None:
        """Post one reading of every counter, unless there was one just now."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._read_at >= self._min_reading_seconds:
                taken_at = self._ledger.moment()
                host_pods = self._host_pods.samples() if self._host_pods else ()
                self._ledger.post([*self._rules.read(), *host_pods], taken_at)
                self._read_at = now

    def reconcile(self) -> list[str]:
        """Put right whatever of our rules is not as it should be; a sentence for each thing done."""
        with self._lock:
            looked_at = self._clock.monotonic()
            transaction = self._rules.plan(list(self._owners))
            if transaction:
                self._announce(transaction.created - self._announced)
                self._tell_of_lost_rules(transaction)
                self._rules.apply(transaction, before_removals=self._end_former)
                self._announced.clear()
            self._prolong_gap()
            self._sound_at = looked_at
            self._mark()
            return list(transaction.repairs)

    def _mark(self) -> None:
        """Have the kernel know how far the books have come."""
        if mark := self._ledger.mark:
            self._rules.mark(mark.address)

    def _prolong_gap(self) -> None:
        """Have a gap that was told of before the rules were put back last until they count again."""
        if self._gap_since is not None:
            self._ledger.note(Gap.REMOVED, self._clock.monotonic() - self._gap_since, count=0)
            self._gap_since = None

    def _end_former(self) -> None:
        """Take the last readings of classes of traffic that are no longer told apart."""
        if self._changeover is not None:
            return  # they are the former backend's, which is still to be read
        known = self._ledger.counters()
        if former := self._rules.former(known):
            taken_at = self._ledger.moment()
            self._ledger.post(self._rules.read_former(former), taken_at)
            self._ledger.end(former)

    def _tell_of_lost_rules(self, transaction: Transaction) -> None:
        """Tell of rules that count and were not as they should be, though every counter is still there.

        Not for what the first look of another version or of another document finds: rules that were right then.
        """
        if self._sound_at is not None and not transaction.created and any(map(_counts, transaction.operations)):
            now = self._clock.monotonic()
            self._ledger.note(Gap.REMOVED, now - self._sound_at)
            self._sound_at = None  # told once, even if applying must be tried again
            self._gap_since = now

    def change_policy(self, policy: Policy) -> list[str]:
        """Have the rules follow another policy; a sentence for each thing done."""
        with self._lock:
            self._rules.change_policy(policy)
            # What is not as it should be now, nobody took away.
            self._sound_at = None
            repairs = self.reconcile()
            self._look_for_host_pods()
            return repairs

    def _announce(self, created: frozenset[Counter]) -> None:
        """Tell the ledger of counters that are about to begin, once even if applying must be tried again."""
        known = self._ledger.counters()
        now = self._clock.monotonic()
        if self._ledger.restart([counter for counter in created if counter in known]):
            self._gap_since = now
        for counter in created:
            if counter not in known:
                self._ledger.begin([counter], self._owner(counter))
        self._announced |= created

    def check(self, attachment: Attachment) -> list[str]:
        """What of an attachment's accounting is missing in the kernel, a sentence each."""
        return self._rules.check(attachment.addresses)

    def await_turn(self) -> None:
        """Return once no reading, repair or write is under way: one that hangs keeps the caller waiting."""
        with self._lock:
            self._ledger.recall(POLICY)

    def totals(self) -> Totals:
        """The books as of the last reading."""
        return self._ledger.totals()

    def usage(self, period: Period, by: Sequence[By]) -> list[Usage]:
        """What pods exchanged in a period that is past or still going on, if possible up to this moment."""
        try:
            self.read()
        except KernelError as error:
            log.warning("counters-unread error=%s", error)
        return self._ledger.usage(period, by)

    def audit(self) -> Report:
        """What was counted held against what passed, as of now."""
        with self._lock:
            self.read()
            readings = self._ledger.readings()
            links = link_counters.read()
            return Report(self._ledger.totals(), link_checks(set(self._attached.values()), readings, links))

    def ratios(self) -> list[AuditRatio]:
        """The audit's figures as of the last tidying."""
        return self._ratios

    def tidy(self) -> None:
        """Drop series that have lingered, hold the books against the links, and let the ledger tidy its log."""
        self._ledger.sweep()
        if self._syncing is None or not self._syncing.is_alive():
            # Not in this thread, which has pods to look for: a disk may take seconds.
            self._syncing = threading.Thread(target=self._ledger.checkpoint, name="ledger-sync", daemon=True)
            self._syncing.start()
        self._look_for_host_pods()
        self._ratios = self.audit().ratios()

    def _look_for_host_pods(self) -> None:
        if self._host_pods is None:
            return
        with self._lock:
            try:
                self._host_pods.follow(self._rules.policy.known)
                self._host_pods.look()
            except KernelError as error:
                log.warning("host-pods-uncounted error=%s", error)

    def close(self) -> None:
        """Post a last reading and close the books; rules and counters stay for the next agent."""
        if self._syncing is not None:
            self._syncing.join()
        with self._lock:
            self._read_at = float("-inf")
            self.read()
            self._ledger.close()

    def _admit(self, addresses: Iterable[Address]) -> None:
        try:
            self._rules.admit(addresses)
        except KernelError as error:
            if error.errno != ENOENT:
                raise
            # Another program has flushed our rules; they are put back now, not with the next reconcile.
            for sentence in self.reconcile():
                log.warning("repaired area=rules what=%s", sentence)
            self._rules.admit(addresses)

    def _owner(self, counter: Counter) -> PodRef | None:
        return self._owners.get(counter.subject) if isinstance(counter.subject, Address) else None


def _counts(operation: Operation) -> bool:
    """Whether an operation puts right something that decides what is counted."""
    match operation:
        case FillChain(hook):
            return hook in (Hook.INPUT, Hook.FORWARD, Hook.OUTPUT)
        case ReplaceElements(spec):
            return spec.name in INTERNAL_SETS
        case _:
            return False
