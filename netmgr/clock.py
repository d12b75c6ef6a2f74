"""Time as a dependency, so that cooldowns and lingering can be tested without waiting."""

from __future__ import annotations

import math
from typing import Protocol

DAY_SECONDS = 86_400


class Clock(Protocol):
    """Both clocks netmgr reads."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch: what is written to state and shown to people."""

    def monotonic(self) -> float:
        """Seconds that never step back: what durations are measured with."""


class Stamps:
    """Shows how long ago something was stamped by the wall clock, whatever that was set to since.

    `longest` is the greatest age in seconds, at this object's start, of a stamp made before it.
    """

    _JUMP_SECONDS = 0.5
    """A smaller change of both clocks' difference is a clock that is slewed, and follows it."""

    def __init__(self, clock: Clock, longest: float) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._longest = longest
        self._looked = self._began
        self._offset = clock.now() - self._began
        self._former: list[tuple[float, float, float]] = []
        self._since = -math.inf

    def age(self, stamp: float) -> float:
        """Seconds since `stamp` (seconds since the epoch); 0 if it can only be in the future."""
        now = self._clock.monotonic()
        self._look(now)
        # A stamp is read by the difference of both clocks that held when it was made. More than one
        # may fit: then it is taken for the latest of them.
        made = [stamp - self._offset] if self._since <= stamp - self._offset <= now else []
        made += [
            at for since, until, offset in self._former if since <= (at := stamp - offset) <= until
        ]
        if not made:
            return 0.0
        # A stamp of before the start may seem older than any can be: the clock was set meanwhile.
        return now - max(*made, self._began - self._longest)

    def _look(self, now: float) -> None:
        offset = self._clock.now() - now
        if abs(offset - self._offset) > self._JUMP_SECONDS:
            # It was set at some time between both looks: either difference may have held there. A
            # few are kept: a clock may be set again and again.
            self._former = [*self._former[-7:], (self._since, now, self._offset)]
            self._since = self._looked
        self._offset, self._looked = offset, now
