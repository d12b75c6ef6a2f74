"""A controller's time and threads, as a dependency: tests let virtual time pass by itself.

What a controller waits for, what it runs beside other work and what it measures goes through here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from netmgr.clock import Clock

Item = TypeVar("Item")
Result = TypeVar("Result")


class Concurrency(Clock, Protocol):
    """Both clocks, waiting, and work beside other work."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait until the event is set, for so long at most; returns whether it is."""
        ...

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do this beside all else; it never keeps the process."""
        ...

    def map(
        self, number: int, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Results of work on all items, so many at a time.

        The first error is raised; what has not begun by then is left out.
        """
        ...


class Threads:
    """The machine's clocks, and real threads."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never step back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait until the event is set, for so long at most; returns whether it is."""
        return event.wait(seconds)

    def start(self, work: Callable[[], object], name: str) -> None:
        """Do this in a thread of its own."""
        threading.Thread(target=work, name=name, daemon=True).start()

    def map(
        self, number: int, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Results of work on all items, in so many threads."""
        with ThreadPoolExecutor(number, "work") as workers:
            return list(workers.map(work, items))


THREADS = Threads()
