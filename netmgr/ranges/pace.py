"""When to ask a source again: regularly while it answers, ever more seldom while it does not.

Thousands of machines that started in one minute must not ask in one second, so every pause is
drawn at random around its length.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_RETRY = 1.0
"""Seconds until the first retry: with its jitter, a tenth of the five requests a second that Azure allows."""

LONGEST_RETRY = 120.0
_JITTER = 0.25


class Pace:
    """The pauses between requests, in seconds.

    Args:
        interval: between two requests while all is well.
        uniform: draws from between two numbers, as random.uniform does.
    """

    def __init__(self, interval: float, uniform: Callable[[float, float], float]) -> None:
        self._interval = interval
        self._uniform = uniform
        self._failures = 0

    def after_success(self) -> float:
        """The pause after an answer."""
        self._failures = 0
        return self._interval * self._uniform(1 - _JITTER, 1 + _JITTER)

    def after_failure(self, retry_after: float) -> float:
        """The pause after none; never shorter than the source asked for."""
        pause = min(FIRST_RETRY * 2.0**self._failures, max(LONGEST_RETRY, self._interval))
        self._failures = min(self._failures + 1, 16)
        return max(pause, retry_after) * self._uniform(1, 1 + 2 * _JITTER)
