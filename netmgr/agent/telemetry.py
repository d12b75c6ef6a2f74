"""Counts and times the agent's own work, in the shapes the snapshot has."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from netmgr.errors import NotReady
from netmgr.snapshot import LATENCY_BUCKETS, Gaps, RequestCount, RequestLatency


def require(steps: Iterable[str], failing: Mapping[str, str]) -> None:
    """Say nothing when none of the steps is failing.

    Raises:
        NotReady: one is; says which, and why.
    """
    for step in steps:
        if step in failing:
            raise NotReady(f"{step}: {failing[step]}")


class Telemetry:
    """Figures since the agent started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Tally[tuple[str, int]] = Tally()
        self._buckets: dict[str, list[int]] = {}
        self._sums: Tally[str] = Tally()
        self._repairs: Tally[str] = Tally()
        self._under_way = 0
        self._last_end = 0.0
        self.state_rebuilds = 0
        self.failing: dict[str, str] = {}
        """Housekeeping steps whose last attempt failed, and why."""

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Mark a request as being served."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._last_end = time.monotonic()

    def idle_for(self, seconds: float) -> bool:
        """Whether no request was served in the last `seconds`."""
        with self._lock:
            return not self._under_way and time.monotonic() - self._last_end >= seconds

    def answered(self, command: str, code: int, seconds: float) -> None:
        """Note one CNI request: its error code (0 for success) and how long it took."""
        with self._lock:
            self._requests[command, code] += 1
            buckets = self._buckets.setdefault(command, [0] * (len(LATENCY_BUCKETS) + 1))
            buckets[bisect_left(LATENCY_BUCKETS, seconds)] += 1
            self._sums[command] += seconds  # type: ignore[assignment]  # a Counter adds floats as well

    def repaired(self, area: str, sentences: Iterable[str]) -> None:
        """Note things of ours that another program had altered: rules, routes, links."""
        with self._lock:
            self._repairs[area] += sum(1 for _ in sentences)

    def requests(self) -> list[RequestCount]:
        """CNI requests by verb and code."""
        with self._lock:
            items = sorted(self._requests.items())
        return [{"command": command, "code": str(code), "count": count} for (command, code), count in items]

    def latency(self) -> list[RequestLatency]:
        """Cumulative histograms by verb."""
        with self._lock:
            return [self._histogram(command) for command in sorted(self._buckets)]

    def repairs(self) -> list[Gaps]:
        """Repairs by area."""
        with self._lock:
            return [{"reason": area, "count": count} for area, count in sorted(self._repairs.items())]

    def _histogram(self, command: str) -> RequestLatency:
        cumulative: list[tuple[str, int]] = []
        total = 0
        for bound, count in zip((*map(str, LATENCY_BUCKETS), "+Inf"), self._buckets[command], strict=True):
            total += count
            cumulative.append((bound, total))
        return {"command": command, "buckets": cumulative, "sum": self._sums[command]}
