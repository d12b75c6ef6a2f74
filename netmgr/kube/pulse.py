"""Whether a controller's work goes on: every part of it gives a sign now and then, and is missed when it does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SILENCE = 300.0
"""Seconds without a sign after which a part hangs: a request is given up after 30, and a round has a few in a row."""


class Pulse:
    """The last sign of each part. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds that never step back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, float] = {}

    def beat(self, part: str) -> None:
        """This part goes on."""
        with self._lock:
            self._last[part] = self._clock()

    def rest(self, part: str) -> None:
        """This part has nothing to do for now, and is not missed."""
        with self._lock:
            self._last.pop(part, None)

    def ailment(self) -> str:
        """The parts that hang, in words; empty when none does."""
        with self._lock:
            silent = {part: self._clock() - last for part, last in self._last.items()}
        hanging = [f"{part} for {seconds:.0f} s" for part, seconds in silent.items() if seconds > SILENCE]
        return f"no sign of {', '.join(hanging)}" if hanging else ""
