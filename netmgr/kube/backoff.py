"""How long to wait before asking again (pure): doubling, with jitter, so that a fleet does not ask in step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Backoff:
    """Waits in seconds. Half of each is chance: `first` to begin with, twice the last after, `most` at most."""

    first: float = 0.5
    most: float = 30
    chance: Callable[[], float] = field(default=random.random, repr=False)
    failures: int = 0

    def next(self) -> float:
        """The wait after one more failure."""
        # 2^60 of any `first` is beyond any `most`, and larger powers would not fit a float.
        longest: float = min(self.most, self.first * 2 ** min(self.failures, 60))
        self.failures += 1
        return longest * (1 + self.chance()) / 2

    def reset(self) -> None:
        """It worked."""
        self.failures = 0
