"""Counts the pods of a node that another plugin wires (`cni: off`), and does nothing else.

It looks whenever the runtime's result cache changes, and every `reconcile_seconds` all the same.

What a pod sends from the end of its plugin's ADD until that look is not in its totals, but in the
counter of what has no pod (or in those of the pod that had its address until then). With inotify
that is some milliseconds, in which a runtime has not yet started the program. Where it was more
than `PROMPT_SECONDS`, since the agent was away or busy, one gap "late" records it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import closing

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import Snapshot
from netmgr.clock import Stamps
from netmgr.kernel.inotify import Watch
from netmgr.ledger.tables import Gap
from netmgr.model import Attachment, AttachmentKey
from netmgr.observer import reconcile_plan
from netmgr.observer.cached_results import CacheListing, IgnoreReason, ResultCache
from netmgr.observer.kernel_check import KernelCheck
from netmgr.observer.reconcile_plan import CountedAddress, ReconcilePlan, ResultState
from netmgr.prefixes import Address

PROMPT_SECONDS = 0.02
"""A counter that begins later than this after its pod was wired may have missed something."""

log = logging.getLogger(__name__)


class Observation(Component):
    """What is counted and for whom, in step with cache and kernel. Readable from any thread."""

    vital = ("watch", "pods")

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        accounting = agent.get(NodeAccounting)
        self._accounts, self._ledger = accounting.accounts, accounting.ledger
        directory = agent.document.cni_results_dir
        self._cache = ResultCache(directory)
        self._watch = agent.stack.enter_context(closing(Watch(directory)))
        if not self._watch.complete:
            log.warning("results-dir-missing cni_results_dir=%s", directory)
        self._kernel = agent.stack.enter_context(closing(KernelCheck()))
        # A predecessor knew of what came before it read last.
        self._stamps = Stamps(agent.clock, agent.clock.monotonic() - self._ledger.read_at)
        # The very first agent finds pods that ran before it: they are not late.
        self._reports_late = not self._ledger.is_new
        self._counted: dict[Address, CountedAddress] = {}
        self._files: dict[str, int] = {}
        self._longest = 0.0
        for counter, owner in self._ledger.counters().items():
            if isinstance(counter.subject, Address) and owner is not None:
                # Of what a predecessor counted, the ledger has addresses and owners alone.
                pod = Attachment(AttachmentKey("", ""), owner, (counter.subject,), "", netns="")
                self._counted[counter.subject] = CountedAddress(pod)
        if self._accounts.is_rebuilt:
            # Whoever is there now was counted by the predecessor; a look after the start would
            # begin them at zero.
            self._counted = dict(self._plan()[1].counted)

    def start(self) -> None:
        # As early as possible: pods that came while no agent ran are not counted yet.
        self.reconcile()

    def reconcile(self) -> None:
        # In this order: what happens after the queue was emptied is in it when the look is over.
        self._watch.drain()
        self._agent.health.attempt("watch", self._watch.renew)
        self._agent.health.attempt("pods", self._look)

    def tasks(self) -> Iterable[Task]:
        yield Task(self.reconcile, wakes=self._watch.fileno())

    def attachments(self) -> list[Attachment]:
        return list(reconcile_plan.attachments(tuple(self._counted.values())))

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["result_files"] = [
            {"state": state, "count": count} for state, count in self._files.items()
        ]
        snapshot["longest_delay"] = self._longest

    def _look(self) -> None:
        """Compare once, and carry out what follows; what is counted goes on if that fails."""
        listing, plan = self._plan()
        self._carry_out(plan)
        self._files = {str(reason): listing.unusable.get(reason, 0) for reason in IgnoreReason}
        self._files |= {str(state): plan.states[state] for state in ResultState}
        self._reports_late = True

    def _plan(self) -> tuple[CacheListing, ReconcilePlan]:
        # The cache before the kernel: what the kernel takes away in between is counted until the
        # next look, at most.
        listing = self._cache.list()
        named = {address for result in listing.results for address in result.addresses}
        kernel = self._kernel.look(named | self._counted.keys())
        return listing, reconcile_plan.plan(
            listing.results, kernel, self._counted, self._agent.clock.monotonic()
        )

    def _carry_out(self, plan: ReconcilePlan) -> None:
        """Pod by pod, so that what failed in the middle is known and taken up by the next look."""
        # The first look finds pods of the time without an agent, whose delay is the agent's
        # absence.
        looked_before, latest = bool(self._files), 0.0
        # Ends before begins, so that an address that changes hands begins at zero.
        for pod in reconcile_plan.attachments(plan.ends):
            self._accounts.end(pod)
            for address in pod.addresses:
                del self._counted[address]
            log.info("pod-ended pod=%s addresses=%s", pod.pod, _shown(pod))
        for pod in reconcile_plan.attachments(plan.begins):
            self._accounts.begin(pod)
            self._counted |= {address: plan.counted[address] for address in pod.addresses}
            delay = self._stamps.age(plan.written_at[pod.addresses[0]])
            log.info(
                "pod-found pod=%s addresses=%s link=%s seconds=%.3f",
                pod.pod,
                _shown(pod),
                pod.host_link,
                delay,
            )
            self._longest = max(self._longest, delay if looked_before else 0.0)
            if self._reports_late and delay > PROMPT_SECONDS:
                log.warning("pod-noticed-late effect=some-bytes-uncounted pod=%s", pod.pod)
                # One event for all that one look finds, as long as the longest.
                since = self._agent.clock.monotonic() - max(0.0, delay - latest)
                self._ledger.note(Gap.LATE, since, goes_on=latest > 0)
                latest = max(latest, delay)
        # Also what neither began nor ended: `unconfirmed_since` may have changed.
        self._counted = dict(plan.counted)


def _shown(pod: Attachment) -> str:
    return ",".join(map(str, pod.addresses))
