"""Reads libcni's result cache: every file that changed, none that could hold the reader up."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from netmgr.errors import StateError
from netmgr.observer.claims import MOST_BYTES, Claim, Reason, Unusable, parse


class Listing(NamedTuple):
    """What the directory holds: claims, and how many files count for nothing, by reason."""

    claims: tuple[Claim, ...]
    unusable: Mapping[Reason, int]


class _Identity(NamedTuple):
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    changed_at: int


class Cache:
    """The directory of results. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[_Identity, Claim | Reason]] = {}

    def list(self) -> Listing:
        """Everything there is; a directory that does not exist is empty.

        Raises:
            StateError: the directory cannot be listed.
        """
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError as error:
            raise StateError(f"{self._directory}: cannot be listed: {error.strerror}") from None
        found = {name: read for name in names if (read := self._look(name))}
        self._known = found
        outcomes = [outcome for _, outcome in found.values()]
        claims = tuple(outcome for outcome in outcomes if isinstance(outcome, Claim))
        return Listing(claims, Counter(outcome for outcome in outcomes if isinstance(outcome, Reason)))

    def _look(self, name: str) -> tuple[_Identity, Claim | Reason] | None:
        """One file, read only if it is not as it was; None if it is gone."""
        path = self._directory / name
        try:
            status = path.lstat()
        except OSError:
            return None
        identity = _Identity(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
        known = self._known.get(name)
        if known is not None and known[0] == identity:
            return known
        if not stat.S_ISREG(status.st_mode):
            return identity, Reason.UNREADABLE
        try:
            return identity, parse(_read(path), status.st_mtime)
        except Unusable as fault:
            return identity, fault.reason


def _read(path: Path) -> bytes:
    """The file's content, whatever the name has come to stand for since it was looked at.

    Raises:
        Unusable: it is a link, no regular file, too large, or gone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise Unusable(Reason.UNREADABLE) from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unusable(Reason.UNREADABLE)
        try:
            content = file.read(MOST_BYTES + 1)
        except OSError:
            raise Unusable(Reason.UNREADABLE) from None
    if len(content) > MOST_BYTES:
        raise Unusable(Reason.TOO_LARGE)
    return content
