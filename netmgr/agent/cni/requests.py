"""CNI requests under way: how they wait for each other, how many there are and how long they took.

Each attachment has a lock, so that verbs of one container wait for each other and for no others.
Whoever holds its lock then waits for one of a few turns. A burst's requests all end sooner when
four of them work at a time than when a hundred fight over the interpreter and the kernel's
routing lock; and one that waits for its attachment's lock takes no turn from the others.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

from netmgr.api.snapshot import LATENCY_BUCKETS, RequestCount, RequestLatency
from netmgr.errors import TryAgainLater
from netmgr.model import AttachmentKey

TURNS = 4
_LEAST_TURN_SECONDS = 1.0
"""Even a caller that waits for no lock waits this long for a turn, which lasts milliseconds."""


class AttachmentLocks:
    """Locks by attachment key, made when needed and dropped with the last who waits."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns = threading.BoundedSemaphore(TURNS)
        self._locks: dict[AttachmentKey, tuple[threading.Lock, int]] = {}

    @contextmanager
    def holding(self, key: AttachmentKey, seconds: float) -> Iterator[None]:
        """Hold the lock of `key`, and a turn, for the length of the block.

        Raises:
            TryAgainLater: another request for this attachment, or those with a turn, took longer.
        """
        with self._guard:
            # Counted before it is waited for: whoever leaves last drops the lock, and only then may
            # a new one be made for this key.
            lock, waiting = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, waiting + 1
        try:
            deadline = time.monotonic() + seconds
            # Outside `_guard`, which all requests share.
            if not lock.acquire(timeout=seconds):
                raise TryAgainLater(
                    f"another request for {key.container_id} {key.ifname} is still under way"
                )
            try:
                turn_seconds = max(deadline - time.monotonic(), _LEAST_TURN_SECONDS)
                if not self._turns.acquire(timeout=turn_seconds):
                    raise TryAgainLater(
                        f"the {TURNS} requests under way have not ended within {turn_seconds:.0f} s"
                    )
                try:
                    yield
                finally:
                    self._turns.release()
            finally:
                lock.release()
        finally:
            with self._guard:
                # Container ids do not come again: kept locks would fill the memory.
                lock, waiting = self._locks.pop(key)
                if waiting > 1:
                    self._locks[key] = lock, waiting - 1


class Requests:
    """Figures of requests since the agent started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Tally[tuple[str, int]] = Tally()
        self._buckets: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def answered(self, command: str, code: int, seconds: float) -> None:
        """Count a request: its CNI error code (0 for success) and how long it took."""
        with self._lock:
            self._counts[command, code] += 1
            buckets = self._buckets.setdefault(command, [0] * (len(LATENCY_BUCKETS) + 1))
            buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
            self._sums[command] = self._sums.get(command, 0.0) + seconds

    def counts(self) -> list[RequestCount]:
        """Requests by verb and code."""
        with self._lock:
            items = sorted(self._counts.items())
        return [
            {"command": command, "code": str(code), "count": count}
            for (command, code), count in items
        ]

    def latency(self) -> list[RequestLatency]:
        """Cumulative histograms by verb."""
        bounds = (*map(str, LATENCY_BUCKETS), "+Inf")
        with self._lock:
            return [
                {
                    "command": command,
                    "buckets": list(zip(bounds, accumulate(buckets), strict=True)),
                    "sum": self._sums[command],
                }
                for command, buckets in sorted(self._buckets.items())
            ]
