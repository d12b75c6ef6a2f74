"""Follows the hardware addresses of pods, which the plugin `tuning` and whoever administers a pod may change.

Both ends of a pod's link have permanent neighbour entries, so a pod with another MAC would hear nothing any
more, and say nothing. The kernel tells at once, in whatever sandbox it happens; what it could not tell
(the agent was away, too much happened at once, or it may not listen) is found with the next pass.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

from netmgr.agent.node import Node
from netmgr.agent.rhythm import Rhythm, Steps
from netmgr.agent.telemetry import Telemetry
from netmgr.dataplane.neighbours import GatewayLosses
from netmgr.errors import KernelError

_GATHERING_SECONDS = 0.01
"""One change is several messages, and one pod must not keep the agent busy by changing without an end."""

log = logging.getLogger(__name__)


class Following:
    """One thread beside the others, so that no reading or repair holds it up. Listens from the beginning.

    Args:
        seconds: between two passes over every pod.
    """

    def __init__(self, node: Node, telemetry: Telemetry, seconds: float, stack: ExitStack) -> None:
        self._node = node
        self._steps = Steps(telemetry)
        self._losses = _listening(stack)
        watched = {self._losses.fileno(): self._follow_news} if self._losses else {}
        self._rhythm = Rhythm("neighbours", ((seconds, self._follow_all),), watched)

    def start(self) -> None:
        """Begin, with a look at every pod."""
        self._rhythm.start()

    def stop(self) -> None:
        """End after the work under way."""
        self._rhythm.stop()

    def _follow_all(self) -> None:
        self._steps.attempt("neighbours", self._look_at_all)

    def _look_at_all(self) -> None:
        self._node.follow(self._node.dataplane.neighbours.outdated(self._node.leases.all))

    def _follow_news(self) -> None:
        self._steps.attempt("neighbours", self._read_news)

    def _read_news(self) -> None:
        if self._losses is None:
            return
        time.sleep(_GATHERING_SECONDS)
        names = self._node.dataplane.neighbours.host_links_of(self._losses.read())
        if names:
            self._node.follow(each for each in self._node.leases.all() if each.host_link in names)


def _listening(stack: ExitStack) -> GatewayLosses | None:
    try:
        return stack.enter_context(GatewayLosses())
    except KernelError as error:
        log.warning("pod-mac-changes-seen-late error=%s", error)
        return None
