"""The agent's recurring work: one thread, whose steps are due at intervals or when a file descriptor has news."""

from __future__ import annotations

import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from netmgr.agent.telemetry import Telemetry
from netmgr.errors import NetmgrError

LONG_SECONDS, LARGEST_SHARE = 0.25, 0.1
"""A step that takes this much processor time (on a router of many spokes) gets no more than this share of it."""

Step = Callable[[], None]

log = logging.getLogger(__name__)


class Steps:
    """Takes steps of which a failure is told and tried again with the next, and never ends the agent."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def attempt(self, name: str, step: Step) -> None:
        """Take a step; while it fails, `Telemetry.failing` says why."""
        try:
            step()
        except (NetmgrError, OSError, sqlite3.Error) as error:
            log.error("step-failed step=%s error=%s", name, error)  # noqa: TRY400  expected kinds only
            self._telemetry.failing[name] = str(error)
        else:
            self._telemetry.failing.pop(name, None)

    def repair(self, area: str, step: Callable[[], Iterable[str]]) -> None:
        """Take a step that puts right what another program altered; count and log the sentences it returns."""

        def told() -> None:
            sentences = list(step())
            self._telemetry.repaired(area, sentences)
            for sentence in sentences:
                log.warning("repaired area=%s what=%s", area, sentence)

        self.attempt(area, told)


class Rhythm:
    """One thread.

    Args:
        every: steps and the seconds between two of each, more for one that takes long; all are due at once.
        watched: what to do when a file descriptor becomes readable.
    """

    def __init__(
        self,
        name: str,
        every: Iterable[tuple[float, Step]],
        watched: Mapping[int, Step] = MappingProxyType({}),
    ) -> None:
        self._every = tuple(every)
        self._watched = watched
        self._waking, self._awake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

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
        for descriptor in (self._waking, *self._watched):
            waiting.register(descriptor, select.POLLIN)
        due = [time.monotonic()] * len(self._every)
        while True:
            pause = max(0.0, min(due) - time.monotonic())
            ready = {descriptor for descriptor, _ in waiting.poll(pause * 1000)}
            if self._waking in ready:
                return
            for descriptor in ready:
                self._watched[descriptor]()
            for place, (seconds, step) in enumerate(self._every):
                if (now := time.monotonic()) >= due[place]:
                    due[place] = now + max(seconds, _rest(step))


def _rest(step: Step) -> float:
    """Take a step; how many seconds from its begin to the next it needs to stay within its share."""
    began = time.thread_time()
    step()
    spent = time.thread_time() - began
    return spent / LARGEST_SHARE if spent > LONG_SECONDS else 0.0
