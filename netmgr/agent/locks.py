"""One lock for each attachment, so that verbs of one container wait for each other and for nobody else.

Whoever holds its lock then waits for one of a few turns. A burst's requests all end sooner when
four of them work at a time than when a hundred fight over the interpreter and the kernel's
routing lock; and one that waits for its attachment's lock takes no turn from the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from netmgr.errors import TryAgainLater
from netmgr.model import AttachmentKey

TURNS = 4
_LEAST_TURN_SECONDS = 1.0
"""Waited for a turn even by those who would not wait for a lock: a turn lasts some milliseconds."""


class AttachmentLocks:
    """Locks by attachment key, made when needed and dropped when nobody waits."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns = threading.BoundedSemaphore(TURNS)
        self._locks: dict[AttachmentKey, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: AttachmentKey, seconds: float) -> Iterator[None]:
        """Hold the lock of `key`, and a turn, for the length of the block.

        Raises:
            TryAgainLater: another request for this attachment, or all that have a turn, did not end within `seconds`.
        """
        with self._guard:
            lock, waiting = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, waiting + 1
        try:
            deadline = time.monotonic() + seconds
            if not lock.acquire(timeout=seconds):
                raise TryAgainLater(f"another request for {key.container_id} {key.ifname} is still under way")
            try:
                with self._turn(max(deadline - time.monotonic(), _LEAST_TURN_SECONDS)):
                    yield
            finally:
                lock.release()
        finally:
            with self._guard:
                lock, waiting = self._locks.pop(key)
                if waiting > 1:
                    self._locks[key] = lock, waiting - 1

    @contextmanager
    def _turn(self, seconds: float) -> Iterator[None]:
        if not self._turns.acquire(timeout=seconds):
            raise TryAgainLater(f"the {TURNS} requests under way have not ended within {seconds:.0f} s")
        try:
            yield
        finally:
            self._turns.release()
