"""What a run says of itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

LOG_LINES = 40


class Run(Protocol):
    history: list[str]

    @property
    def log(self) -> Path: ...

    def figures(self, seconds: float) -> str: ...


@contextmanager
def reported(
    run: Run, capsys: pytest.CaptureFixture[str], replay: str
) -> Iterator[Callable[[], None]]:
    """Print the figures of a run; if it fails, how to replay it, and the agent's last words.

    Yields what prints the figures so far.
    """
    began = time.monotonic()
    lines: list[str] = []

    def say() -> None:
        with capsys.disabled():
            sys.stdout.write("\n".join(["", *lines, run.figures(time.monotonic() - began), ""]))
            sys.stdout.flush()

    try:
        yield say
    except BaseException:
        log = run.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        lines = [f"{replay}: {' '.join(run.history)}", "the end of the agent's log:", *log]
        raise
    finally:
        say()
