"""Time as a dependency, so that cooldowns and lingering can be tested without waiting."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Both clocks netmgr reads."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch: what is written to state and shown to people."""
        ...

    def monotonic(self) -> float:
        """Seconds that never step back: what durations are measured with."""
        ...
