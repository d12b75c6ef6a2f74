"""Follows the MACs of pods, which the plugin `tuning` and whoever administers a pod may change.

Both ends of a pod's link have permanent neighbour entries, so a pod with another MAC would neither
hear nor be heard. The kernel reports a change at once, in whatever sandbox it happens. A pass over
all pods finds what it could not report: the agent was away, too much happened at once, or it may
not listen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Self

from netmgr.agent.cni.node import Node
from netmgr.agent.core.components import Agent, Component, Health
from netmgr.agent.core.scheduler import Task
from netmgr.documents.node import POD_GATEWAYS
from netmgr.errors import KernelError
from netmgr.kernel.losses import NeighbourLosses
from netmgr.suspects import Suspects

_GATHERING_SECONDS = 0.01
"""One change is several messages, and a pod that changes all the time must not cost much."""

_RARELY = 6
"""How many intervals may pass between two passes while the kernel reports changes."""

_THREAD = "neighbours"
"""A thread of its own, so that readings and repairs do not delay it."""

log = logging.getLogger(__name__)


class MacFollower(Component):
    """Keeps neighbour entries in step with the MACs that pods have.

    Args:
        losses: the kernel's reports; None if the agent may not listen to them.
        seconds: between two passes over every pod, where the kernel reports nothing.
    """

    def __init__(
        self, node: Node, health: Health, losses: NeighbourLosses | None, seconds: float
    ) -> None:
        self._node = node
        self._health = health
        self._losses = losses
        self._seconds = seconds

    @classmethod
    def open(cls, agent: Agent) -> Self:
        """Listen for sandboxes that lose the entry of their gateway."""
        losses = None
        try:
            losses = agent.stack.enter_context(NeighbourLosses(POD_GATEWAYS.values()))
        except KernelError as error:
            # Without CAP_NET_BROADCAST the kernel refuses; the pass over all pods still follows
            # them.
            log.warning("pod-mac-changes-seen-late error=%s", error)
        return cls(agent.get(Node), agent.health, losses, agent.document.reconcile_seconds)

    def tasks(self) -> Iterable[Task]:
        """Check all pods at intervals, and immediately those whose MAC changed."""
        if self._losses is None:
            yield Task(self._look_at_all, self._seconds, thread=_THREAD)
        else:
            # For what nobody thought of: the kernel reports the rest, and asking it about every pod
            # is the costliest look.
            yield Task(self._look_at_all, _RARELY * self._seconds, thread=_THREAD)
            yield Task(self._take_news, wakes=self._losses.fileno(), thread=_THREAD)

    def _look_at_all(self) -> None:
        self._health.attempt("neighbours", self._follow_all)

    def _follow_all(self) -> None:
        # The list is passed as a function, since it must be read after the kernel.
        self._node.follow(self._node.dataplane.neighbours.outdated(self._node.leases.all))

    def _take_news(self) -> None:
        self._health.attempt("neighbours", self._follow_news)

    def _follow_news(self) -> None:
        if self._losses is None:
            return
        # Before the reading, which empties the socket: the rest of the change comes meanwhile.
        time.sleep(_GATHERING_SECONDS)
        lost = self._losses.read()
        if lost is None:
            self._follow_all()
        elif names := self._node.dataplane.neighbours.host_links_of(lost):
            listed = self._node.leases.all()
            self._node.follow(
                Suspects(
                    tuple(attachment for attachment in listed if attachment.host_link in names)
                )
            )
