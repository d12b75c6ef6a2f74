"""Waiting for what comes about by itself, with a patience that a busy machine does not exhaust."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds. What fails takes so long to fail; what comes about is noticed at once."""


def eventually(
    holds: Callable[[], object],
    otherwise: str | Callable[[], str] = "it never became true",
    seconds: float = PATIENCE,
    every: float = 0.05,
) -> None:
    """Wait until `holds()` is true; fail with `otherwise` when it never is."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(otherwise if isinstance(otherwise, str) else otherwise())
        time.sleep(every)
