"""The lock that iptables itself takes around every change (iptables(8), option -w).

A change of the legacy tables is a read, an edit and a write back of the whole table. Two
programs that do it at once lose one of the edits, so everybody takes this lock first.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netmgr.errors import StateError, TryAgainLater

LOCK_PATH = Path("/run/xtables.lock")
"""iptables' XT_LOCK_NAME."""

_POLL_SECONDS = 0.01


@contextmanager
def held(path: Path = LOCK_PATH, *, wait_seconds: float) -> Iterator[None]:
    """Hold the lock for the length of the block.

    Raises:
        TryAgainLater: another program kept it for `wait_seconds`.
        StateError: the lock file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        _wait(descriptor, path, wait_seconds)
        yield
    finally:
        # Closing the last descriptor of the open file also releases the lock.
        os.close(descriptor)


def _wait(descriptor: int, path: Path, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            # flock(2) has no time limit, so it is polled.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TryAgainLater(
                    f"{path} is held by another program for over {wait_seconds:g} seconds"
                ) from None
            time.sleep(_POLL_SECONDS)
        else:
            return
