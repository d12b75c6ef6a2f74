"""Waiting for what comes about by itself, with a patience that a busy machine does not exhaust."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

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


def ask_until(
    is_final: Callable[[Answer], bool], ask: Callable[[], Answer], seconds: float = PATIENCE
) -> Answer:
    """The first final answer, or the last one when the time is over."""
    deadline = time.monotonic() + seconds
    while not is_final(answer := ask()) and time.monotonic() < deadline:
        pass
    return answer


def patient_netmgr(limit: str, seconds: float = PATIENCE) -> list[str]:
    """`netmgr` with another limit (`module.NAME`): by its own it gives up on a busy machine."""
    module, _, _ = limit.rpartition(".")
    # Before the rest is imported, which may take it for a default.
    return [
        sys.executable,
        "-c",
        f"import {module}; {limit} = {seconds}; from netmgr.cli.main import main; main()",
    ]
