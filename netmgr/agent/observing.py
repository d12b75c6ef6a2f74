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
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from netmgr.agent import files
from netmgr.agent.accounts import Accounts
from netmgr.agent.files import Files
from netmgr.agent.opening import open_accounts
from netmgr.agent.queries import Queries
from netmgr.agent.rhythm import Rhythm, Steps
from netmgr.agent.router import Router
from netmgr.agent.server import readers
from netmgr.agent.telemetry import Telemetry, require
from netmgr.clock import Clock, Stamps
from netmgr.config import NodeDocument
from netmgr.inotify import Watch
from netmgr.ipam.pool import Occupancy
from netmgr.ledger.book import Gap
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.observer import judge
from netmgr.observer.cache import Cache, Listing
from netmgr.observer.claims import Reason
from netmgr.observer.judge import Held, Standing, Verdict
from netmgr.observer.kernel import KernelView
from netmgr.prefixes import Address, Family
from netmgr.snapshot import ResultFiles

PROMPT_SECONDS = 0.02
"""A counter that begins later than this after its pod was wired may have missed something."""

VITAL_STEPS = (files.STEP, "watch", "pods", "rules")
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
        # A predecessor knew of what came before it read last.
        self._stamps = Stamps(clock, accounts.unread_seconds)
        self._failing = failing
        self._tells_late = not accounts.is_new
        self._held: dict[Address, Held] = {}
        self._files: dict[str, int] = {}
        self._longest = 0.0

    def start(self) -> None:
        """Take over what a predecessor counted."""
        remembered = self._accounts.remembered()
        self._held = {address: _remembered(address, pod) for address, pod in remembered.items()}
        if self._accounts.is_rebuilt:
            # Whoever is there now was counted by the predecessor; a look after the start would begin them at zero.
            self._held = dict(self._verdict()[1].held)
        for sentence in self._accounts.start(one.attachment for one in self._held.values()):
            log.info("rules-begin what=%s", sentence)

    def look(self) -> None:
        """Compare once, and carry out what follows.

        Raises:
            NetmgrError: the cache or the kernel cannot be read; what is counted goes on.
        """
        listing, verdict = self._verdict()
        self._carry_out(verdict)
        self._files = {str(reason): listing.unusable.get(reason, 0) for reason in Reason}
        self._files |= {str(standing): verdict.standings[standing] for standing in Standing}
        self._tells_late = True

    def _verdict(self) -> tuple[Listing, Verdict]:
        listing = self._cache.list()
        named = {address for claim in listing.claims for address in claim.addresses}
        kernel = self._kernel.look(named | self._held.keys())
        return listing, judge.judge(listing.claims, kernel, self._held, self._clock.monotonic())

    def _carry_out(self, verdict: Verdict) -> None:
        """Pod by pod, so that what failed in the middle is known and taken up by the next look."""
        looked_before = bool(self._files)
        for pod in judge.attachments(verdict.ends):
            self._accounts.end(pod)
            for address in pod.addresses:
                del self._held[address]
            log.info("pod-ended pod=%s addresses=%s", pod.pod, _shown(pod))
        for pod in judge.attachments(verdict.begins):
            self._accounts.begin(pod)
            self._held |= {address: verdict.held[address] for address in pod.addresses}
            delay = self._stamps.age(verdict.began[pod.addresses[0]])
            log.info("pod-found pod=%s addresses=%s link=%s seconds=%.3f", pod.pod, _shown(pod), pod.host_link, delay)
            self._longest = max(self._longest, delay if looked_before else 0.0)
            if self._tells_late and delay > PROMPT_SECONDS:
                log.warning("pod-noticed-late effect=some-bytes-uncounted pod=%s", pod.pod)
                self._accounts.note(Gap.LATE, delay)
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
        require(VITAL_STEPS, self._failing)


def _remembered(address: Address, pod: PodRef) -> Held:
    return Held(Attachment(AttachmentKey("", ""), pod, (address,), "", netns=""))


def _shown(pod: Attachment) -> str:
    return ",".join(map(str, pod.addresses))


class Observing:
    """What is done again and again: looking, reading and reconciling."""

    def __init__(
        self,
        document: NodeDocument,
        observation: Observation,
        accounts: Accounts,
        router: Router,
        telemetry: Telemetry,
        watch: Watch,
        kept: Files,
    ) -> None:
        self._observation = observation
        self._accounts = accounts
        self._router = router
        self._steps = Steps(telemetry)
        self._watch = watch
        self._files = kept
        self._rhythm = Rhythm(
            "observing",
            ((document.reconcile_seconds, self._reconcile), (document.accounting.reading_seconds, self._read)),
            {watch.fileno(): self.look},
        )

    def start(self) -> None:
        """Begin."""
        self._rhythm.start()

    def stop(self) -> None:
        """End after the work under way."""
        self._rhythm.stop()

    def look(self) -> None:
        """Have the observation look at whatever happened so far."""
        # In this order: what happens after the queue was emptied is in it when the look is over.
        self._watch.drain()
        self._steps.attempt("watch", self._watch.renew)
        self._steps.attempt("pods", self._observation.look)

    def _reconcile(self) -> None:
        self._steps.repair(files.STEP, self._files.restore)
        self.look()
        self._steps.repair("rules", self._accounts.reconcile)
        self._router.reconcile(self._steps)
        self._steps.attempt("ledger", self._accounts.tidy)

    def _read(self) -> None:
        self._steps.attempt("reading", self._accounts.read)


class Observer:
    """The parts of an observing agent, put together. Nothing runs before `start`."""

    def __init__(self, config: Path, document: NodeDocument, clock: Clock, kept: Files, stack: ExitStack) -> None:
        self._document = document
        self._files = kept
        telemetry = Telemetry()
        self._watch = Watch(document.cni_results_dir)
        stack.callback(self._watch.close)
        kernel = KernelView()
        stack.callback(kernel.close)
        books = open_accounts(document, clock, telemetry, kept, stack)
        accounts, self.backend, self._tagged = books.accounts, books.rules.backend.name, books.tagged
        self._observation = Observation(Cache(document.cni_results_dir), kernel, accounts, clock, telemetry.failing)
        self._queries = Queries(config, document, books, telemetry, clock, self._observation)
        self._router = Router(document, stack)
        self._observing = Observing(document, self._observation, accounts, self._router, telemetry, self._watch, kept)

    def start(self, stack: ExitStack) -> None:
        """Take over from a predecessor, then begin to count and to answer readers."""
        if not self._watch.complete:
            log.warning("results-dir-missing cni_results_dir=%s", self._document.cni_results_dir)
        self._router.start()
        self._observation.start()
        self._observing.look()
        self._observing.start()
        stack.callback(self._observing.stop)
        self._tagged.start(stack)
        server = readers(self._document, self._queries.answer)
        self._files.keep(server)
        server.start()
        stack.callback(server.stop)
