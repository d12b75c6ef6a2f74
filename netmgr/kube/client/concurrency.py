"""A controller's time and threads, as a dependency: tests let virtual time pass by itself.

What a controller waits for, what it runs beside other work and what it measures goes through here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Concurrency:
    """Both clocks of the machine (`netmgr.clock.Clock`), waiting, and work beside other work."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait for the event, at most for so long; returns whether it is set."""
        return event.wait(seconds)

    def start(self, work: Callable[[], object], name: str) -> None:
        """Run this in a thread of its own, which never keeps the process alive."""
        threading.Thread(target=work, name=name, daemon=True).start()

    def map(
        self, number: int, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Results of work on all items, `number` at a time.

        The first error is raised; what has not begun by then is left out.
        """
        with ThreadPoolExecutor(number, "work") as workers:
            return list(workers.map(work, items))


THREADS = Concurrency()
