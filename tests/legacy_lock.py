"""The lock of the legacy tables, which each session of tests has for itself (`conftest.py`)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "XTABLES_LOCKFILE"


def path() -> Path:
    """Where iptables finds it."""
    return Path(os.environ[_VARIABLE])


@contextmanager
def held() -> Iterator[Mapping[str, str]]:
    """Hold the lock; gives the environment of a program that changes tables all the same."""
    another = path().with_suffix(".another")
    with path().open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield {_VARIABLE: str(another), "PATH": os.environ["PATH"]}
    another.unlink(missing_ok=True)
