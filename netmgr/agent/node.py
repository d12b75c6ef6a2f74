"""The node as the verbs see it: attach, detach, and the parts they need.

The order of steps is what makes every crash harmless:

- attach: hold the address, begin to count, wire. A crash leaves a held address without a
  link, which the next start collects; nothing was counted that is not in the ledger.
- detach: unwire, read for the last time, stop counting, release the address. A crash leaves
  an attachment whose link is down; the runtime, unanswered, or the launcher's spool repeats
  the DEL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from netmgr.agent.accounts import Accounts
from netmgr.agent.locks import AttachmentLocks
from netmgr.agent.reaper import Reaper
from netmgr.dataplane import desired
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import KernelError, NetmgrError, SetupError, TryAgainLater
from netmgr.ipam.leases import Leases
from netmgr.model import NOTHING_REQUESTED, Attachment, AttachmentKey, PodRef, Requested

LOCK_SECONDS = 20.0
"""How long a request waits for another one of the same attachment."""

FOLLOW_SECONDS = 1.0
"""How long a change of a pod's hardware address waits for a request of the same attachment."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """The parts of one node."""

    network: str
    leases: Leases
    dataplane: Dataplane
    accounts: Accounts
    locks: AttachmentLocks
    reaper: Reaper

    def attach(
        self, key: AttachmentKey, pod: PodRef, netns: str, started_at: float, requested: Requested = NOTHING_REQUESTED
    ) -> Attachment:
        """Give a sandbox its addresses, counters and link; on failure nothing of it remains.

        What cannot be undone just now is an attachment without a link: the next reconcile collects it.
        """
        attachment = self.leases.reserve(key, pod, desired.host_link_name(key), netns, started_at, requested)
        try:
            self.accounts.begin(attachment)
            self.dataplane.attach(attachment, requested.mac)
        except BaseException:
            self._undo(attachment)
            raise
        return attachment

    def _undo(self, attachment: Attachment) -> None:
        try:
            self.detach(attachment)
        except NetmgrError as error:
            # The answer to the runtime is why the ADD failed, not why it could not be undone.
            key = attachment.key
            log.error("failed-add-not-undone container=%s ifname=%s error=%s", key.container_id, key.ifname, error)  # noqa: TRY400  the message says all there is

    def detach(self, attachment: Attachment, netns: str = "") -> None:
        """Undo `attach`, whatever of it there is. `netns` is where the sandbox is now, if not where it was then."""
        self.dataplane.detach(attachment.host_link, netns or attachment.netns)
        self.accounts.end(attachment)
        self.leases.release(attachment)
        self.reaper.wake()

    def collect(self, key: AttachmentKey, why: str, still: Callable[[Attachment], bool] = lambda _: True) -> bool:
        """Detach an attachment nobody will send a DEL for, unless a request for it is under way.

        `still` is asked under the attachment's lock whether the reason holds.
        """
        try:
            with self.locks.holding(key, 0):
                attachment = self.leases.get(key)
                if attachment is None or not still(attachment):
                    return False
                self.detach(attachment)
        except TryAgainLater:
            return False
        log.info(
            "collected container=%s ifname=%s pod=%s why=%s",
            key.container_id,
            key.ifname,
            attachment.pod,
            why,
        )
        return True

    def collect_vanished(self) -> None:
        """Collect attachments whose sandbox went without a DEL: the kernel took their links with it."""
        present = self.dataplane.attached_links()
        for attachment in self.leases.all():
            if attachment.host_link not in present:
                self.collect(attachment.key, "its sandbox is gone", self._has_vanished)

    def _has_vanished(self, attachment: Attachment) -> bool:
        return attachment.host_link not in self.dataplane.attached_links()

    def repair_wiring(self) -> list[str]:
        """Put right links and routes that another program altered; a sentence for each.

        Raises:
            KernelError: one could not be put right; all the others were tried.
        """
        drift = self.dataplane.drift(self.leases.all)
        done: list[str] = []
        failure: NetmgrError | None = None
        for attachment in drift.broken:
            try:
                done += self._rewire(attachment)
            except (KernelError, SetupError) as error:
                failure = error
        # Last, so that a pod whose route another replaces is not without any meanwhile.
        done += self.dataplane.remove_foreign(drift.foreign)
        if failure:
            raise failure
        return done

    def check(self, attachment: Attachment, netns: str) -> list[str]:
        """What of an attachment's wiring is not as it should be, a sentence each.

        What the chain changed a moment ago is followed first: the news of it may still be on the way.
        """
        self.dataplane.neighbours.follow(attachment, netns)
        return self.dataplane.check(attachment, netns)

    def follow(self, attachments: Iterable[Attachment]) -> None:
        """Have neighbour entries fit the hardware addresses that these pods have now.

        Raises:
            KernelError: of one it was not possible; all the others were tried.
        """
        failure: KernelError | None = None
        for attachment in attachments:
            try:
                self._follow(attachment)
            except KernelError as error:
                failure = error
        if failure:
            raise failure

    def _follow(self, attachment: Attachment) -> None:
        # Whatever holds it for longer, the next pass comes back to it.
        with suppress(TryAgainLater), self.locks.holding(attachment.key, FOLLOW_SECONDS):
            if self.leases.get(attachment.key) == attachment:
                self.dataplane.neighbours.follow(attachment, attachment.netns)

    def _rewire(self, attachment: Attachment) -> list[str]:
        with suppress(TryAgainLater), self.locks.holding(attachment.key, 0):
            if self.leases.get(attachment.key) == attachment:
                return self.dataplane.rewire(attachment)
        return []
