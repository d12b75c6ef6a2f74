"""Recurring work, and the share of time it may take.

A task is due at an interval or when a file descriptor becomes readable. One that takes long (on a
router of many spokes) is due less often, so that it never takes more than its share of the time.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from netmgr.clock import Clock
from netmgr.errors import NetmgrError

Reading = TypeVar("Reading")

LONG_SECONDS = 0.25
"""Work that takes less is never throttled."""

TASK_SHARE, READING_SHARE = 0.1, 0.05
"""Largest share of a processor for a task, and of the time for a reading that readers wait for."""

log = logging.getLogger(__name__)


def throttled(interval: float, spent: float, share: float) -> float:
    """Seconds from the start of work that took `spent` seconds until it may start again."""
    return max(interval, spent / share) if spent > LONG_SECONDS else interval


Action = Callable[[], float | None]


def spaced(action: Action, least: float, most: float) -> Action:
    """An action that pauses before each run, for a task that others can wake at will.

    It pauses for `least` seconds, or so long that it takes no more than `TASK_SHARE` of a
    processor, but never for more than `most` seconds after its last run.
    """
    resume_at = -math.inf

    def run() -> float | None:
        nonlocal resume_at
        time.sleep(max(least, resume_at - time.monotonic()))
        began = time.thread_time()
        try:
            return action()
        finally:
            spent = time.thread_time() - began
            resume_at = time.monotonic() + min(spent / TASK_SHARE - spent, most)

    return run


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    action: Action
    """May return the seconds until it is due again, instead of `seconds`."""
    seconds: float = math.inf
    """The interval; infinite for a task that only its file descriptor wakes."""
    delay: float = 0.0
    """Seconds until it is due for the first time."""
    name: str = ""
    """Of the attempt that it is (`Health.attempt`); without, it handles errors and may wait."""
    wakes: int | None = None
    """A file descriptor; the task is due whenever it is readable."""
    thread: str = "main"
    """Tasks of one thread run in their order, and wait for each other."""
    share: float = TASK_SHARE
    """The largest share of a processor for a task at an interval; see `spaced` for others."""


class Scheduler:
    """One thread that runs tasks when they are due."""

    def __init__(self, name: str, tasks: Iterable[Task]) -> None:
        self._tasks = tuple(tasks)
        # A pipe, because the thread waits in poll(2), which an Event would not wake.
        self._stop_read, self._stop_write = os.pipe()
        self._waiting = select.poll()
        for descriptor in (self._stop_read, *(task.wakes for task in self._tasks)):
            if descriptor is not None:
                self._waiting.register(descriptor, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.write(self._stop_write, b"\0")
        self._thread.join()
        for descriptor in (self._stop_read, self._stop_write):
            os.close(descriptor)

    def _wait(self, until: float) -> set[int]:
        """The file descriptors that became readable until then."""
        # Not below 0, for which poll(2) waits for ever.
        timeout = None if math.isinf(until) else max(0.0, until - time.monotonic()) * 1000
        return {descriptor for descriptor, _ in self._waiting.poll(timeout)}

    def _run(self) -> None:
        started = time.monotonic()
        due = {
            task: math.inf if math.isinf(task.seconds) else started + task.delay
            for task in self._tasks
        }
        while True:
            ready = self._wait(min(due.values()))
            if self._stop_read in ready:
                return
            # Woken tasks first: those at intervals can wait for them, not the other way round.
            for task in sorted(self._tasks, key=lambda task: task.wakes not in ready):
                if task.wakes in ready or time.monotonic() >= due[task]:
                    due[task] = _next_due(task)


def _next_due(task: Task) -> float:
    """Run a task; returns when it is due again."""
    # The processor time of this thread: a task that waits for the kernel or a disk costs others
    # nothing.
    started, began = time.monotonic(), time.thread_time()
    interval = task.action()
    spent = time.thread_time() - began
    if interval is not None:
        return time.monotonic() + interval
    return started + throttled(task.seconds, spent, task.share)


@dataclass(eq=False)
class Latest(Generic[Reading]):
    """The last reading of something that many ask for. Thread-safe; never taken for two at once."""

    read: Callable[[], Reading]
    clock: Clock
    min_seconds: float
    """A younger reading is not replaced, however often it is asked for."""
    reading: Reading
    """At first, what is answered until a reading succeeded."""
    _next_at: float = field(default=-math.inf, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def value(self) -> Reading:
        """A reading; if the kernel refuses one, the last one."""
        # Held while the kernel is read: of two readers who come at once, one waits for the other's
        # reading instead of taking its own.
        with self._lock:
            began = self.clock.monotonic()
            if began >= self._next_at:
                try:
                    self.reading = self.read()
                except NetmgrError as error:
                    log.warning("kernel-unread error=%s", error)
                spent = self.clock.monotonic() - began
                # Also after a failure: a kernel that refuses is not asked by each reader in turn.
                self._next_at = began + throttled(self.min_seconds, spent, READING_SHARE)
            return self.reading
