"""Keeps pods' wiring as their ADDs made it, and collects what no DEL will come for.

Passes read the kernel and name suspects; each is looked at again under its attachment's lock
(`netmgr/suspects.py`), and a request that holds the lock decides about its attachment itself.

MACs, which the plugin `tuning` and whoever administers a pod may change, are followed: both ends of
a pod's link have permanent neighbour entries, so a pod with another MAC would neither hear nor be
heard. The kernel reports a change at once, in whatever sandbox it happens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from functools import partial

from cni.request import Request
from netmgr.agent.cni.node import FOLLOW_SECONDS, Node
from netmgr.agent.core.components import Agent, Component, Remnants
from netmgr.agent.core.scheduler import Task, spaced
from netmgr.agent.health.diagnosis import DELETED_LINKS
from netmgr.api.snapshot import Snapshot
from netmgr.dataplane.drift import Foreign
from netmgr.dataplane.wiring import Dataplane
from netmgr.documents.node import POD_GATEWAYS
from netmgr.errors import KernelError, SetupError, StateError
from netmgr.kernel import netns
from netmgr.kernel.losses import LinkEnd, NeighbourLosses
from netmgr.kernel.routes import Route
from netmgr.model import Attachment
from netmgr.suspects import Suspects, unlocked

# One change is several messages.
_GATHERING_SECONDS, _DOWN_SECONDS = 0.01, 0.5

# How many intervals may pass between two passes over all MACs while the kernel reports changes.
_RARELY = 6

# Attempt and thread: one of its own, so that readings and repairs do not delay it.
_NEIGHBOURS = "neighbours"

log = logging.getLogger(__name__)


class Repairs(Component):
    """The passes over all attachments of a node whose pods this agent wires."""

    vital = ("wiring",)

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._node = agent.get(Node)
        self._leases, self._dataplane = self._node.leases, self._node.dataplane
        self._faults: list[str] = []
        self._losses: NeighbourLosses | None = None
        self._down: set[LinkEnd] = set()
        """Links of sandboxes that lost their entries and are down yet."""
        self._has_missed = True
        """Whether any sandbox may have lost some unreported: so far, no agent listened."""
        try:
            self._losses = agent.stack.enter_context(NeighbourLosses(POD_GATEWAYS.values()))
        except KernelError as error:
            # Without CAP_NET_BROADCAST the kernel refuses; the pass over all pods still follows
            # them.
            log.warning("pod-mac-changes-seen-late error=%s", error)

    def reconcile(self) -> None:
        health = self._agent.health
        health.attempt("links", self.collect_vanished)
        health.repair("wiring", self.repair_wiring)
        health.attempt("mtu", self._dataplane.refresh_mtu)

    def tasks(self) -> Iterable[Task]:
        # What the kernel reports needs no pass over every pod, which is the costliest look. A pass
        # finds what it could not report: the agent was away, or too much happened at once.
        rounds = _RARELY if self._losses else 1
        seconds = rounds * self._agent.document.reconcile_seconds
        yield Task(self._follow_unreported_macs, seconds, name=_NEIGHBOURS, thread=_NEIGHBOURS)
        if self._losses:
            # It pauses before it reads, which empties the socket: the rest of a change comes
            # meanwhile. A CHECK waits longer than the longest pause for another pod's change.
            reported = partial(self._follow_reported_macs, self._losses)
            follow = spaced(reported, _GATHERING_SECONDS, FOLLOW_SECONDS / 2)
            wakes = self._losses.fileno()
            yield Task(follow, name=_NEIGHBOURS, wakes=wakes, thread=_NEIGHBOURS)

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["wiring_faults"] = self._faults

    def _holding(
        self, attachment: Attachment, seconds: float = 0.0
    ) -> AbstractContextManager[object]:
        return self._node.locks.holding(attachment.key, seconds)

    def _is_current(self, attachment: Attachment) -> bool:
        # The list of a pass is older, and the key or the address may be another sandbox's by now.
        return self._leases.get(attachment.key) == attachment

    def collect_garbage(self, request: Request, started_at: float) -> None:
        """GC: detach what is not in `cni.dev/valid-attachments`, unless a request is under way.

        `started_at` is when the launcher began, in seconds since boot. Raises if one could not be
        detached; all the others were.
        """
        valid = request.valid_attachments
        # cnitool sends no list. Taken for an empty one, it would cost every pod its network.
        if valid is None:
            self.collect_vanished()
            return
        unlisted = [attachment for attachment in self._leases.all() if attachment.key not in valid]
        self._collect(
            Suspects(tuple(unlisted)),
            lambda _: "the runtime no longer lists it",
            # What an ADD made since then cannot be listed.
            lambda attachment: attachment.started_at < started_at,
        )

    def collect_vanished(self) -> None:
        """Collect attachments whose sandbox went without a DEL; their links went with it."""
        self._collect(
            self._dataplane.vanished(self._leases.all),
            self._why_vanished,
            lambda attachment: not self._dataplane.is_attached(attachment.host_link),
        )

    def _collect(
        self,
        suspects: Suspects[Attachment],
        why: Callable[[Attachment], str],
        still: Callable[[Attachment], bool],
    ) -> None:
        """Detach what no DEL will come for, if under its lock `still` says that that holds."""

        def detach(attachment: Attachment) -> None:
            self._node.detach(attachment)
            log.info(
                "collected container=%s ifname=%s pod=%s why=%s",
                attachment.key.container_id,
                attachment.key.ifname,
                attachment.pod,
                why(attachment),
            )

        suspects.resolve(
            self._holding,
            lambda attachment: self._is_current(attachment) and still(attachment),
            detach,
        )

    def _why_vanished(self, attachment: Attachment) -> str:
        if not netns.is_one(attachment.netns):
            return "its sandbox is gone"
        # The pod runs on without a network, and no runtime looks for that: somebody has to be told.
        deletion = (
            f"link {attachment.host_link} of pod {attachment.pod} was deleted, "
            f"its sandbox {attachment.netns} lives without a network until it is made anew"
        )
        self._agent.health.repaired(DELETED_LINKS, [deletion])
        return "its link was deleted"

    def repair_wiring(self) -> list[str]:
        """Repair links and routes that another program altered; describes each repair.

        What cannot be repaired is in the snapshot, by pod.
        """
        faults: list[str] = []

        def rewire(attachment: Attachment) -> list[str]:
            # One pod's fault keeps no other from the network, nor new ones.
            try:
                return self._dataplane.rewire(attachment)
            except (KernelError, SetupError) as error:
                faults.append(f"pod {attachment.pod}: {error}")
                return []

        # The list is passed as a function, since it must be read after the kernel.
        drift = self._dataplane.drift(self._leases.all)
        # First, since the kernel drops a link's routes with its last address (fib_disable_ip).
        done = self._remove_foreign(drift.addresses)
        if done:
            drift = self._dataplane.drift(self._leases.all)
        try:
            done += drift.broken.resolve(self._holding, self._is_current, rewire)
            for fault in sorted(set(faults) - set(self._faults)):
                log.error("not-repaired what=%s", fault)
            self._faults = faults
        finally:
            # Last, so that a pod whose route another replaces is not without any meanwhile.
            done += self._remove_foreign(drift.routes)
        return done

    def _remove_foreign(self, suspects: Suspects[Foreign]) -> list[str]:
        def holding(foreign: Foreign) -> AbstractContextManager[object]:
            # Whatever comes, it does not make a route to an address that nobody holds right: the
            # kernel does not give the link's index out again.
            holder = self._holder(foreign)
            return self._holding(holder) if holder else unlocked(foreign)

        def is_foreign(foreign: Foreign) -> bool:
            return self._dataplane.is_foreign(foreign, self._holder(foreign))

        return suspects.resolve(holding, is_foreign, self._dataplane.remove_foreign)

    def _holder(self, foreign: Foreign) -> Attachment | None:
        """The attachment that has the address which a route leads to."""
        if isinstance(foreign, Route) and foreign.destination.is_address:
            for attachment in self._leases.all():
                if foreign.destination.network in attachment.addresses:
                    return attachment
        return None

    def follow_all_macs(self) -> None:
        """Update the neighbour entries of pods that have another MAC by now."""
        # The list is passed as a function, since it must be read after the kernel.
        self._follow_macs(self._dataplane.neighbours.outdated(self._leases.all))

    def _follow_unreported_macs(self) -> None:
        if self._has_missed:
            # A MAC that was changed and changed back has left its traces in the sandbox alone,
            # and asking each takes long.
            self._follow_macs(Suspects(tuple(self._leases.all())))
            self._has_missed = False
        else:
            self.follow_all_macs()

    def _follow_reported_macs(self, losses: NeighbourLosses) -> float:
        lost = losses.read()
        if lost is None:
            self._has_missed = True
            self._follow_unreported_macs()
        ends = self._down | (lost or set())
        names, self._down = self._dataplane.neighbours.host_links_of(ends)
        if names:
            listed = self._leases.all()
            changed = [attachment for attachment in listed if attachment.host_link in names]
            self._follow_macs(Suspects(tuple(changed)))
        # Entries cannot be made before the link is up, of which nobody tells.
        return _DOWN_SECONDS if self._down else math.inf

    def _follow_macs(self, outdated: Suspects[Attachment]) -> None:
        # If another request holds it for longer, the next pass comes back to it.
        outdated.resolve(
            lambda attachment: self._holding(attachment, FOLLOW_SECONDS),
            self._is_current,
            lambda attachment: self._dataplane.neighbours.follow(attachment, attachment.netns),
        )

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        """Remove the links of pods; StateError, and no change, while pods still need them."""
        with closing(Dataplane()) as dataplane:
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
                yield from suspects.resolve(
                    unlocked,
                    lambda foreign: dataplane.is_foreign(foreign, None),
                    dataplane.remove_foreign,
                )
