"""The node as the CNI verbs see it: attach, detach, and the parts they need.

The order of steps is what makes every crash harmless:

- attach: hold the address, begin to count, wire. A crash leaves a held address without a
  link, which the next start collects; nothing was counted that is not in the ledger.
- detach: unwire, read for the last time, stop counting, release the address. A crash leaves
  an attachment whose link is gone; the runtime, unanswered, or the launcher's spool repeats
  the DEL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Self

from netmgr.agent.accounting.accounting import Accounting
from netmgr.agent.accounting.accounts import Accounts
from netmgr.agent.accounting.connections import ConnectionLimits
from netmgr.agent.accounting.limits import Limits
from netmgr.agent.cni.requests import AttachmentLocks, Requests
from netmgr.agent.core.components import Agent, Component, Health, Remnants
from netmgr.agent.health.diagnosis import DELETED_LINKS
from netmgr.agent.network.pool import Pool
from netmgr.api.snapshot import Snapshot
from netmgr.dataplane import desired
from netmgr.dataplane.drift import Foreign
from netmgr.dataplane.wiring import Dataplane
from netmgr.errors import KernelError, NetmgrError, SetupError, StateError
from netmgr.ipam.leases import Leases
from netmgr.kernel import netns
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.routes import Route
from netmgr.model import NOTHING_REQUESTED, Attachment, AttachmentKey, PodRef, Requested
from netmgr.prefixes import Family
from netmgr.suspects import Suspects, unlocked

LOCK_SECONDS = 20.0
"""How long a request waits for another one of the same attachment."""

FOLLOW_SECONDS = 1.0
"""How long a change of a pod's hardware address waits for a request of the same attachment."""

_FOLLOW_POLL_SECONDS = 0.01

log = logging.getLogger(__name__)


class Node(Component):
    """The parts of one node whose pods this agent wires."""

    vital = ("wiring",)

    def __init__(
        self,
        network: str,
        leases: Leases,
        dataplane: Dataplane,
        accounts: Accounts,
        limits: Limits | None,
        connections: ConnectionLimits | None,
        health: Health,
    ) -> None:
        self.network = network
        self.leases = leases
        self.dataplane = dataplane
        self.accounts = accounts
        self._limits = limits
        self._connections = connections
        self.locks = AttachmentLocks()
        self.requests = Requests()
        self._health = health
        self._faults: list[str] = []

    @classmethod
    def open(cls, agent: Agent) -> Self:
        pool, accounts, limits = agent.get(Pool), agent.get(Accounting).accounts, agent.find(Limits)
        network, leases, dataplane = agent.document.network, pool.leases, pool.dataplane
        connections = agent.find(ConnectionLimits)
        return cls(network, leases, dataplane, accounts, limits, connections, agent.health)

    @property
    def honours_annotations(self) -> bool:
        """Whether pods may limit themselves."""
        return self._limits is not None and self._limits.honours_annotations

    def capabilities(self) -> Iterable[Capability]:
        """Entering sandboxes, also those that are named by a process of another user."""
        return (Capability.SYS_ADMIN, Capability.SYS_PTRACE)

    def reconcile(self) -> None:
        """Collect attachments whose sandbox is gone, and repair the others."""
        self._health.attempt("links", self.collect_vanished)
        self._health.repair("wiring", self.repair_wiring)
        self._health.attempt("mtu", self.dataplane.refresh_mtu)

    def attach(
        self,
        key: AttachmentKey,
        pod: PodRef,
        netns: str,
        started_at: float,
        requested: Requested = NOTHING_REQUESTED,
    ) -> Attachment:
        """Give a sandbox its addresses, counters and link; a failure leaves nothing behind.

        What cannot be undone now is an attachment without a link; the next reconcile collects it.
        """
        attachment = self.leases.reserve(
            key, pod, desired.host_link_name(key), netns, started_at, requested
        )
        try:
            # Before the wiring: the pod's first packet is counted.
            self.accounts.begin(attachment)
            self.dataplane.attach(attachment, requested.mac)
            # The link has to be there first. The pod's program is not started before the answer.
            if self._connections:
                self._connections.begin(attachment)
            if self._limits:
                self._limits.begin(attachment)
        # A fault of ours, too, must leave neither a held address nor a link.
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
            log.error(  # noqa: TRY400  the message says all there is
                "failed-add-not-undone container=%s ifname=%s error=%s",
                key.container_id,
                key.ifname,
                error,
            )

    def detach(self, attachment: Attachment, netns: str = "") -> None:
        """Undo `attach`, as far as it got. `netns` is where the sandbox is, if it moved."""
        self.dataplane.detach(attachment.host_link, netns or attachment.netns, attachment.key)
        # After the link is gone, so that the last reading misses nothing. The address goes last:
        # until it is released, a DEL that is repeated finds the attachment.
        self.accounts.end(attachment)
        self.leases.release(attachment)

    def _holding(
        self, attachment: Attachment, seconds: float = 0.0
    ) -> AbstractContextManager[object]:
        # Not waited for: the request that holds the lock decides about this attachment.
        return self.locks.holding(attachment.key, seconds)

    def _is_current(self, attachment: Attachment) -> bool:
        # Again under the lock: the list of a pass is older, and the key or the address may be
        # another sandbox's by now.
        return self.leases.get(attachment.key) == attachment

    def collect(
        self,
        suspects: Suspects[Attachment],
        why: Callable[[Attachment], str],
        still: Callable[[Attachment], bool],
    ) -> None:
        """Detach attachments for which no DEL will come, but for those with a request under way.

        `still` checks under the attachment's lock whether the reason still holds.

        Raises:
            NetmgrError: one could not be detached; all the others were.
        """

        def detach(attachment: Attachment) -> None:
            self.detach(attachment)
            log.info(
                "collected container=%s ifname=%s pod=%s why=%s",
                attachment.key.container_id,
                attachment.key.ifname,
                attachment.pod,
                why(attachment),
            )

        suspects.settle(
            self._holding,
            lambda attachment: self._is_current(attachment) and still(attachment),
            detach,
        )

    def collect_vanished(self) -> None:
        """Collect attachments whose sandbox went without a DEL; their links went with it."""
        self.collect(
            self.dataplane.vanished(self.leases.all), self._why_vanished, self._has_vanished
        )

    def _why_vanished(self, attachment: Attachment) -> str:
        if not netns.is_one(attachment.netns):
            return "its sandbox is gone"
        deletion = (
            f"link {attachment.host_link} of pod {attachment.pod} was deleted, "
            f"its sandbox {attachment.netns} "
        )
        self._health.repaired(
            DELETED_LINKS, [deletion + "lives without a network until it is made anew"]
        )
        return "its link was deleted"

    def _has_vanished(self, attachment: Attachment) -> bool:
        return not self.dataplane.is_attached(attachment.host_link)

    def repair_wiring(self) -> list[str]:
        """Repair links and routes that another program altered; describes each repair.

        What cannot be repaired is in the snapshot, by pod.
        """
        faults: list[str] = []

        def rewire(attachment: Attachment) -> list[str]:
            # One pod's fault keeps no other from the network, nor new ones.
            try:
                return self.dataplane.rewire(attachment)
            except (KernelError, SetupError) as error:
                faults.append(f"pod {attachment.pod}: {error}")
                return []

        # The list is passed as a function, since it must be read after the kernel.
        drift = self.dataplane.drift(self.leases.all)
        # First, since the kernel drops a link's routes with its last address (fib_disable_ip).
        done = self._remove_foreign(drift.addresses)
        if done:
            drift = self.dataplane.drift(self.leases.all)
        try:
            done += drift.broken.settle(self._holding, self._is_current, rewire)
            self._note(faults)
        finally:
            # Last, so that a pod whose route another replaces is not without any meanwhile.
            done += self._remove_foreign(drift.routes)
        return done

    def _note(self, faults: list[str]) -> None:
        for fault in sorted(set(faults) - set(self._faults)):
            log.error("not-repaired what=%s", fault)
        self._faults = faults

    def snapshot(self, snapshot: Snapshot) -> None:
        """Which pods' wiring could not be repaired, and why."""
        snapshot["wiring_faults"] = self._faults

    def _remove_foreign(self, suspects: Suspects[Foreign]) -> list[str]:
        def holding(foreign: Foreign) -> AbstractContextManager[object]:
            # Whatever comes, it does not make a route to an address that nobody holds right: the
            # kernel does not give the link's index out again.
            holder = self._holder(foreign)
            return self._holding(holder) if holder else unlocked(foreign)

        def is_foreign(foreign: Foreign) -> bool:
            return self.dataplane.is_foreign(foreign, self._holder(foreign))

        return suspects.settle(holding, is_foreign, self.dataplane.remove_foreign)

    def _holder(self, foreign: Foreign) -> Attachment | None:
        """The attachment that has the address which a route leads to."""
        if not isinstance(foreign, Route) or not foreign.destination.is_address:
            return None
        address = foreign.destination.network
        return next(
            (attachment for attachment in self.leases.all() if address in attachment.addresses),
            None,
        )

    def check(
        self, attachment: Attachment, netns: str, moved: Collection[Family] = ()
    ) -> list[str]:
        """Describes the drift of an attachment's wiring.

        The sandbox may lack the default routes of families that are `moved`.
        """
        return self.dataplane.check(attachment, netns, moved)

    def await_followed(self, key: AttachmentKey) -> None:
        """Wait a moment until entries follow a MAC that the chain has just changed.

        That takes the attachment's lock, which the caller must not hold.
        """
        deadline = time.monotonic() + FOLLOW_SECONDS
        while (attachment := self.leases.get(key)) and self.dataplane.lags_behind(attachment):
            if time.monotonic() > deadline:
                return
            time.sleep(_FOLLOW_POLL_SECONDS)

    def follow(self, outdated: Suspects[Attachment]) -> None:
        """Update neighbour entries to the MACs that these pods have now.

        Raises:
            KernelError: one could not be updated; all the others were tried.
        """
        # If another request holds it for longer, the next pass comes back to it.
        outdated.settle(
            lambda attachment: self._holding(attachment, FOLLOW_SECONDS),
            self._is_current,
            lambda attachment: self.dataplane.neighbours.follow(attachment, attachment.netns),
        )

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        """Remove the links of pods.

        Raises:
            StateError: pods still need their network; nothing was changed then.
        """
        dataplane = Dataplane()
        try:
            pods = sorted(f"{identity.pod}" for identity in dataplane.attached())
            if pods and not remnants.with_pods:
                raise StateError(
                    f"{len(pods)} pods still have their network from netmgr "
                    f"({', '.join(pods[:3])} …); "
                    "drain the node first, or cut them off with --with-pods"
                )
            yield from (
                f"link {name} of a pod was removed" for name in dataplane.detach_orphans(tuple)
            )
            drift = dataplane.drift(tuple)
            for suspects in (drift.addresses, drift.routes):
                yield from suspects.settle(
                    unlocked,
                    lambda foreign: dataplane.is_foreign(foreign, None),
                    dataplane.remove_foreign,
                )
        finally:
            dataplane.close()
