"""The lock of the legacy tables: each session of tests has one of its own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "XTABLES_LOCKFILE"
"""Where iptables looks for the lock."""


def path(purpose: str = "") -> Path:
    """This session's lock, or one beside it for a purpose of its own."""
    return Path(f"/run/netmgr-test-{os.getpid()}{purpose}-xtables.lock")


@contextmanager
def held() -> Iterator[Mapping[str, str]]:
    """Hold the lock; gives the environment of a program that changes tables all the same."""
    beside = path("-beside")
    with path().open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield {VARIABLE: str(beside), "PATH": os.environ["PATH"]}
    beside.unlink(missing_ok=True)
