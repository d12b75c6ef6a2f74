"""How long to wait before asking again (pure): doubling, with jitter against a fleet in step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

Chance = Callable[[], float]
"""Draws from 0 to 1, as random.random does."""


@dataclass
class Backoff:
    """Waits in seconds, half of each jitter: `first` at most, then twice the last, to `most`."""

    first: float = 0.5
    most: float = 30
    chance: Chance = field(default=random.random, repr=False)
    failures: int = 0

    def next(self, at_least: float = 0.0) -> float:
        """The wait after one more failure; at least `at_least`, which the server asked for."""
        # 2^60 of any `first` is beyond any `most`, and larger powers would not fit a float.
        longest: float = min(self.most, self.first * 2 ** min(self.failures, 60))
        self.failures += 1
        jitter = self.chance()
        # A server names the same time to all clients it throttles at once, so that needs jitter,
        # too.
        return max(longest * (1 + jitter) / 2, at_least * (1 + jitter / 2))

    def reset(self) -> None:
        """Start again with `first`: it worked."""
        self.failures = 0


def regular(seconds: float, chance: Chance = random.random) -> float:
    """The wait of something regular: `seconds`, a quarter more or less."""
    # Machines that were started together would ask the same server at the same moment for ever.
    return seconds * (0.75 + chance() / 2)
