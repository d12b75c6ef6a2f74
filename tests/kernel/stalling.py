"""A file that whoever opens it waits for, as on a file system that does not answer.

The kernel asks the listener of FAN_OPEN_PERM (fanotify_mark(2)) before it opens the file, even
without blocking, and gives leave by itself when the listener is gone.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLOEXEC, _CLASS_CONTENT = 1, 4
_MARK_ADD = 1
_OPEN_PERM = 0x10000
_AT_FDCWD = -100


class Stall:
    """Holds everybody who opens the file, until it is ended."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._listener = library.fanotify_init(
            _CLOEXEC | _CLASS_CONTENT, os.O_RDONLY | os.O_CLOEXEC
        )
        assert self._listener >= 0, os.strerror(ctypes.get_errno())
        place = os.fsencode(path)
        marked = library.fanotify_mark(
            self._listener, _MARK_ADD, ctypes.c_uint64(_OPEN_PERM), _AT_FDCWD, place
        )
        assert marked == 0, os.strerror(ctypes.get_errno())

    def holds_somebody(self) -> bool:
        """Whether somebody waits to open the file."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def end(self) -> None:
        """Let them all go on."""
        if self._listener >= 0:
            os.close(self._listener)
        self._listener = -1


@contextmanager
def stalled(path: Path) -> Iterator[Stall]:
    """Make the file and hold everybody who opens it, until the block ends at the latest."""
    path.touch()
    stall = Stall(path)
    try:
        yield stall
    finally:
        stall.end()
