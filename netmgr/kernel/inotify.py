"""Shows when a directory may have changed, or comes to be, and which names in it (inotify(7))."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from netmgr.errors import SetupError

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _ONLYDIR = 0x400, 0x800, 0x01000000
_IN_DIRECTORY = (
    _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
)
# Above the directory only the coming of the next part of its path matters.
_IN_ANCESTOR = _CREATE | _MOVED_TO | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_OF_A_NAME = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE
_EVENT_BYTES = 1 << 16
_EVENT = struct.Struct("=iIII")
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)


class Watch:
    """Watches one directory; while it does not exist, the nearest existing one above it.

    `fileno` becomes readable when something may have changed; `drain` says what.
    """

    def __init__(self, directory: Path) -> None:
        """Begin to watch; SetupError if the machine's inotify instances or watches are used up."""
        self._directory = directory
        # Python's library has no inotify.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise SetupError(
                "inotify is not available; raise fs.inotify.max_user_instances on the node"
            )
        self._watched: Path | None = None
        try:
            self.renew()
        except SetupError:
            self.close()
            raise

    def fileno(self) -> int:
        return int(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def complete(self) -> bool:
        return self._watched == self._directory

    def drain(self) -> frozenset[str] | None:
        """Forget what happened so far; to be called before looking at the directory.

        Returns the names in the directory that may have changed, or None where that is not known:
        the queue overflowed, or the directory itself came, went or was replaced.
        """
        names: set[str] | None = set()
        with suppress(BlockingIOError):
            while events := os.read(self._descriptor, _EVENT_BYTES):
                for mask, name in _events(events):
                    # An overflow of the queue, and what happens to the watched directory itself,
                    # come without a name (inotify(7)).
                    if not (mask & _OF_A_NAME and name and self.complete):
                        names = None
                    elif names is not None:
                        names.add(name)
        return None if names is None else frozenset(names)

    def renew(self) -> None:
        """Watch what there is now: directories come, go and are replaced under their name."""
        for path in (self._directory, *self._directory.parents):
            mask = _IN_DIRECTORY if path == self._directory else _IN_ANCESTOR
            # Watching the same directory again renews its watch (inotify_add_watch(2)).
            if self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), mask) >= 0:
                self._watched = path
                return
            if (code := ctypes.get_errno()) not in _ABSENT:
                why = os.strerror(code)
                if code == errno.ENOSPC:
                    why += "; raise fs.inotify.max_user_watches on the node"
                raise SetupError(f"{path}: cannot be watched: {why}")


def _events(data: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield mask, os.fsdecode(data[at : at + length].rstrip(b"\0"))
        at += length
