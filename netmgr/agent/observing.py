"""The agent of a node whose pods another plugin wires (`cni: off`): it counts, and does nothing else.

One thread looks whenever the runtime's result cache changes, and every `reconcile_seconds`
all the same. The order of a look is what makes it safe: the cache before the kernel, so that
what the kernel has taken away meanwhile is missed for one look at most, and ends before begins,
so that an address that changes hands begins at zero.

What can be lost: a plugin's ADD is over, and its file written, before the runtime starts the
pod's program; what the pod sends until the look that begins its counter is not in its totals
(or, if the address was another pod's until then, in that one's). With inotify that is some
milliseconds, in which a runtime has not yet started the program. Where it was more than
`PROMPT_SECONDS`, one gap "late" tells of it: the agent was away or busy. Either way the bytes
are in the node's FORWARD rules, so what these have more than all pods is what was missed.
"""

from __future__ import annotations

import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from netmgr.agent.accounts import Accounts
from netmgr.agent.opening import open_accounts
from netmgr.agent.queries import Queries
from netmgr.agent.server import UnixServer
from netmgr.agent.telemetry import Telemetry
from netmgr.clock import Clock
from netmgr.config import NodeDocument
from netmgr.errors import NetmgrError, NotReady
from netmgr.ipam.pool import Occupancy
from netmgr.ledger.book import Gap
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.observer import judge
from netmgr.observer.cache import Cache
from netmgr.observer.claims import Reason
from netmgr.observer.inotify import Watch
from netmgr.observer.judge import Held, Standing, Verdict
from netmgr.observer.kernel import KernelView
from netmgr.prefixes import Address, Family
from netmgr.snapshot import ResultFiles

PROMPT_SECONDS = 0.02
"""A counter that begins later than this after its pod was wired may have missed something."""

VITAL_STEPS = ("watch", "pods", "rules")
"""Without these pods are not counted as they should be."""

log = logging.getLogger(__name__)


class Observation:
    """What is counted and for whom, kept in step with cache and kernel. Questions may come from any thread."""

    def __init__(
        self, cache: Cache, kernel: KernelView, accounts: Accounts, clock: Clock, failing: Mapping[str, str]
    ) -> None:
        self._cache = cache
        self._kernel = kernel
        self._accounts = accounts
        self._clock = clock
        self._failing = failing
        self._tells_late = not accounts.is_new
        self._held: dict[Address, Held] = {}
        self._files: dict[str, int] = {}
        self._longest = 0.0

    def start(self) -> None:
        """Take over what a predecessor counted."""
        remembered = self._accounts.remembered()
        self._held = {address: _remembered(address, pod) for address, pod in remembered.items()}
        for sentence in self._accounts.start(one.attachment for one in self._held.values()):
            log.info("rules %s", sentence)

    def look(self) -> None:
        """Compare once, and carry out what follows.

        Raises:
            NetmgrError: the cache or the kernel cannot be read; what is counted goes on.
        """
        listing = self._cache.list()
        named = {address for claim in listing.claims for address in claim.addresses}
        kernel = self._kernel.look(named | self._held.keys())
        verdict = judge.judge(listing.claims, kernel, self._held, self._clock.monotonic())
        self._carry_out(verdict)
        self._files = {str(reason): listing.unusable.get(reason, 0) for reason in Reason}
        self._files |= {str(standing): verdict.standings[standing] for standing in Standing}
        self._tells_late = True

    def _carry_out(self, verdict: Verdict) -> None:
        """Pod by pod, so that what failed in the middle is known and taken up by the next look."""
        looked_before = bool(self._files)
        for pod in judge.attachments(verdict.ends):
            self._accounts.end(pod)
            for address in pod.addresses:
                del self._held[address]
            log.info("pod ended pod=%s addresses=%s", pod.pod, _shown(pod))
        for pod in judge.attachments(verdict.begins):
            self._accounts.begin(pod)
            self._held |= {address: verdict.held[address] for address in pod.addresses}
            delay = self._clock.now() - verdict.began[pod.addresses[0]]
            log.info("pod found pod=%s addresses=%s link=%s after=%.3fs", pod.pod, _shown(pod), pod.host_link, delay)
            self._longest = max(self._longest, delay if looked_before else 0.0)
            if self._tells_late and delay > PROMPT_SECONDS:
                log.warning("pod was noticed late, what it sent before is not in its totals pod=%s", pod.pod)
                self._accounts.note(Gap.LATE)
        self._held = dict(verdict.held)

    def attachments(self) -> list[Attachment]:
        """What is counted."""
        return list(judge.attachments(tuple(self._held.values())))

    def occupancy(self) -> dict[Family, Occupancy]:
        """No addresses are handed out here."""
        return {}

    def files(self) -> list[ResultFiles]:
        """What became of the cache's files at the last look."""
        return [{"state": state, "count": count} for state, count in self._files.items()]

    def longest_delay(self) -> float:
        """The longest a pod went uncounted since the agent is here, in seconds."""
        return self._longest

    def status(self) -> None:
        """Say nothing when ready.

        Raises:
            NotReady: pods could not be looked for, or rules not be put right, the last time.
        """
        for step in VITAL_STEPS:
            if step in self._failing:
                raise NotReady(f"{step}: {self._failing[step]}")


def _remembered(address: Address, pod: PodRef) -> Held:
    return Held(Attachment(AttachmentKey("", ""), pod, (address,), "", netns=""))


def _shown(pod: Attachment) -> str:
    return ",".join(map(str, pod.addresses))


class Observing:
    """The thread that looks, reads and reconciles."""

    def __init__(
        self, observation: Observation, accounts: Accounts, telemetry: Telemetry, watch: Watch, document: NodeDocument
    ) -> None:
        self._observation = observation
        self._accounts = accounts
        self._telemetry = telemetry
        self._watch = watch
        self._reading_seconds = document.accounting.reading_seconds
        self._reconcile_seconds = document.reconcile_seconds
        self._waking, self._awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="observing", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the work under way."""
        os.write(self._awake, b"\0")
        self._thread.join()
        for descriptor in (self._waking, self._awake):
            os.close(descriptor)

    def _run(self) -> None:
        waiting = select.poll()
        for descriptor in (self._watch.fileno(), self._waking):
            waiting.register(descriptor, select.POLLIN)
        next_reading = next_reconcile = time.monotonic()
        while True:
            pause = max(0.0, min(next_reading, next_reconcile) - time.monotonic())
            ready = {descriptor for descriptor, _ in waiting.poll(pause * 1000)}
            if self._waking in ready:
                return
            now = time.monotonic()
            if now >= next_reconcile:
                next_reconcile = now + self._reconcile_seconds
                self.look()
                self._attempt("rules", self._repair_rules)
                self._attempt("ledger", self._accounts.tidy)
            elif ready:
                self.look()
            if now >= next_reading:
                next_reading = now + self._reading_seconds
                self._attempt("reading", self._accounts.read)

    def look(self) -> None:
        """Have the observation look at whatever happened so far."""
        # In this order: what happens after the queue was emptied is in it when the look is over.
        self._watch.drain()
        self._attempt("watch", self._watch.renew)
        self._attempt("pods", self._observation.look)

    def _repair_rules(self) -> None:
        repairs = self._accounts.reconcile()
        self._telemetry.repaired("rules", repairs)
        for sentence in repairs:
            log.warning("repaired area=rules what=%r", sentence)

    def _attempt(self, name: str, step: Callable[[], None]) -> None:
        try:
            step()
            self._telemetry.failing.pop(name, None)
        except (NetmgrError, OSError, sqlite3.Error) as error:
            self._telemetry.failing[name] = str(error)
            log.error("step failed step=%s error=%s", name, error)  # noqa: TRY400  expected kinds only


class Observer:
    """The parts of an observing agent, put together. Nothing runs before `start`."""

    def __init__(self, document: NodeDocument, clock: Clock, stack: ExitStack) -> None:
        self._document = document
        telemetry = Telemetry()
        self._watch = Watch(document.cni_results_dir)
        stack.callback(self._watch.close)
        kernel = KernelView()
        stack.callback(kernel.close)
        accounts, self.backend = open_accounts(document, clock, telemetry, stack)
        self._observation = Observation(Cache(document.cni_results_dir), kernel, accounts, clock, telemetry.failing)
        self._queries = Queries(document, accounts, telemetry, self.backend, clock, self._observation)
        self._observing = Observing(self._observation, accounts, telemetry, self._watch, document)

    def start(self, stack: ExitStack) -> None:
        """Take over from a predecessor, then begin to count and to answer readers."""
        if not self._watch.complete:
            log.warning("no pod was wired here yet, or cni_results_dir is another: %s", self._document.cni_results_dir)
        self._observation.start()
        self._observing.look()
        self._observing.start()
        stack.callback(self._observing.stop)
        readers = UnixServer(
            self._document.run_dir / "ledger.sock",
            self._queries.answer,
            mode=0o660,
            group=self._document.reader_group,
            line=True,
        )
        readers.start()
        stack.callback(readers.stop)
