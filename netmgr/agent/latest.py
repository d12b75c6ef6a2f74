"""A reading of the kernel that many may ask for: taken anew when the last is too old, and never for two at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from netmgr.clock import Clock
from netmgr.errors import NetmgrError

Reading = TypeVar("Reading")

LONG_SECONDS, LARGEST_SHARE = 0.25, 0.05
"""A reading that takes long (on a router of many spokes) takes no more than this share of the time."""

log = logging.getLogger(__name__)


class Latest(Generic[Reading]):
    """The last reading. Thread-safe.

    Args:
        read: takes one.
        min_seconds: how old a reading becomes before the next is taken, however often it is asked for.
        nothing: what is answered until a reading succeeded.
    """

    def __init__(self, read: Callable[[], Reading], clock: Clock, min_seconds: float, nothing: Reading) -> None:
        self._read = read
        self._clock = clock
        self._min_seconds = min_seconds
        self._value = nothing
        self._next_at = float("-inf")
        self._lock = threading.Lock()

    def value(self) -> Reading:
        """A reading; where none can be taken, the last one."""
        with self._lock:
            began = self._clock.monotonic()
            if began >= self._next_at:
                try:
                    self._value = self._read()
                except NetmgrError as error:
                    log.warning("kernel-unread error=%s", error)
                spent = self._clock.monotonic() - began
                rest = spent / LARGEST_SHARE if spent > LONG_SECONDS else 0.0
                self._next_at = began + max(self._min_seconds, rest)
            return self._value
