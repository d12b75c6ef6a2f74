"""Time that passes by itself, for code that runs in threads of its own.

Of all threads one runs at a time: the one whose wait is over first. It runs until it waits again,
and no time passes meanwhile. So a day takes as long as the work in it, and a run can be repeated:
which thread comes next follows from the times alone, and from the order in which they were set.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import TypeVar

from netmgr.errors import NetmgrError

Item = TypeVar("Item")
Result = TypeVar("Result")

EPOCH = 1_767_225_600.0
"""When virtual time begins, in seconds since the epoch: 2026-01-01, midnight."""


class _Killed(BaseException):
    """Ends a thread wherever it waits, as `kill -9` ends a process."""


class _Actor:
    """A thread that runs when it is its turn."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.turn = _taken()
        self.event: threading.Event | None = None
        # Counts its waits: a deadline of an earlier one means nothing any more.
        self.waits = 0
        self.is_killed = False
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        self.turn.acquire()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Keep what the thread dies of: `run` raises it in the thread that waits for this one."""
        self.error = None if isinstance(error, _Killed) else error
        return True


class VirtualTime:
    """A `netmgr.kube.client.concurrency.Concurrency`, and a calendar of what happens when."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._waiting: dict[_Actor, None] = {}
        self._local = threading.local()
        self._paused = _taken()

    def now(self) -> float:
        """Seconds since the epoch."""
        return EPOCH + self._now

    def monotonic(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something, which does not wait, at this time since the beginning."""
        heapq.heappush(self._due, (max(seconds, self._now), next(self._numbers), action))

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something, which does not wait, after this time."""
        self.at(self._now + seconds, action)

    def run(self, until: float) -> None:
        """Let time pass until so many seconds since the beginning."""
        self._resume_those_with_events()
        while self._due and self._due[0][0] <= until:
            self._now, _, action = heapq.heappop(self._due)
            action()
            self._resume_those_with_events()
        self._now = max(self._now, until)

    def sleep(self, seconds: float) -> None:
        self._pause(None, seconds)

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait until the event is set, for so long at most; returns whether it is."""
        if not event.is_set():
            self._pause(event, seconds)
        return event.is_set()

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do this beside all else, for the owner of this thread."""
        self.start_for(self._actor.owner, work, name)

    def start_for(self, owner: str, work: Callable[[], object], name: str) -> None:
        """Do this beside all else; `kill` ends all of an owner's."""
        actor = _Actor(owner)
        thread = threading.Thread(target=self._live, args=(actor, work), name=name, daemon=True)
        # It waits for its first turn, at this time and behind what is due before.
        self._waiting[actor] = None
        self.at(self._now, partial(self._resume, actor, actor.waits))
        thread.start()

    def map(
        self, number: int, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Results of work on all items, so many at a time; the first error is raised."""
        todo = deque(enumerate(items))
        results: dict[int, Result] = {}
        errors: dict[int, NetmgrError] = {}
        working = [threading.Event() for _ in range(min(number, len(todo)))]

        def go_on(ended: threading.Event) -> None:
            while todo and not errors:
                position, item = todo.popleft()
                try:
                    results[position] = work(item)
                except NetmgrError as error:
                    errors[position] = error
            ended.set()

        for ended in working:
            self.start(partial(go_on, ended), "work")
        for ended in working:
            self.wait(ended)
        if errors:
            raise errors[min(errors)]
        return [results[position] for position in sorted(results)]

    def kill(self, owner: str) -> None:
        """End all threads of an owner where they wait. Not for a thread of its own."""
        for actor in [actor for actor in self._waiting if actor.owner == owner]:
            actor.is_killed = True
            self._resume(actor, actor.waits)

    def close(self) -> None:
        for owner in {actor.owner for actor in self._waiting}:
            self.kill(owner)

    @property
    def _actor(self) -> _Actor:
        found: _Actor = self._local.actor
        return found

    def _live(self, actor: _Actor, work: Callable[[], object]) -> None:
        self._local.actor = actor
        with actor:
            if not actor.is_killed:
                work()
        self._paused.release()

    def _pause(self, event: threading.Event | None, seconds: float | None) -> None:
        """Let others run until the event is set or the time has passed."""
        actor = self._actor
        if actor.is_killed:
            raise _Killed
        actor.event = event
        self._waiting[actor] = None
        if seconds is not None:
            self.after(max(0.0, seconds), partial(self._resume, actor, actor.waits))
        self._paused.release()
        actor.turn.acquire()
        if actor.is_killed:
            raise _Killed

    def _resume(self, actor: _Actor, waits: int) -> None:
        """Let a thread run, until it waits again or ends."""
        if actor.waits != waits:
            return
        actor.waits += 1
        actor.event = None
        self._waiting.pop(actor, None)
        actor.turn.release()
        self._paused.acquire()
        if actor.error is not None:
            raise actor.error

    def _resume_those_with_events(self) -> None:
        while found := next((a for a in self._waiting if a.event and a.event.is_set()), None):
            self._resume(found, found.waits)


def _taken() -> threading.Lock:
    """A lock that another thread gives back: a semaphore of one, and ten times as fast."""
    lock = threading.Lock()
    lock.acquire()
    return lock
