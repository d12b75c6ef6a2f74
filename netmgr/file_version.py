"""Whether a file is still the same one, and whether it has changed since it was read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from netmgr.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")


class FileIdentity(NamedTuple):
    """Identity of a file, whatever its name: a replaced file has another one."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino)


def identity_of(path: Path) -> FileIdentity | None:
    """What is at `path` now, a link itself; None for nothing."""
    try:
        return FileIdentity.of(path.lstat())
    except OSError:
        return None


class FileVersion(NamedTuple):
    """Differs whenever a file was replaced or written."""

    identity: FileIdentity
    size: int
    # The ctime: unlike an mtime, no program can set it back.
    changed_at: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        return cls(FileIdentity.of(status), status.st_size, status.st_ctime_ns)


def versions(paths: Sequence[Path]) -> tuple[FileVersion, ...]:
    """The version of what each path leads to; empty as long as one of them is missing."""
    try:
        return tuple(FileVersion.of(path.stat()) for path in paths)
    except OSError:
        return ()


class ReadAgain(Generic[T]):
    """What `load` makes of a file, as of now: loaded again when it was replaced or written.

    It raises whatever `load` does, each time until that succeeds; of a missing file, too.
    """

    def __init__(self, path: Path, load: Callable[[Path], T]) -> None:
        self._path = path
        self._load = load
        self._loaded: tuple[tuple[FileVersion, ...], T] | None = None

    def value(self) -> T:
        # Before loading: what is written meanwhile is seen by the next look.
        version = versions([self._path])
        if self._loaded is None or not version or version != self._loaded[0]:
            # Forgotten first: a file that cannot be loaded raises again at the next call.
            self._loaded = None
            self._loaded = version, self._load(self._path)
        return self._loaded[1]


class RenewedFiles(Generic[T]):
    """What `load` makes of files that are renewed meanwhile (certificates, tokens).

    A renewal that makes no sense, or is seen half written, is logged, and the former value stays
    in force until the files change again.

    Attributes:
        refused: why the present content is not in force; empty when it is.

    Raises:
        ConfigError: the first loading failed.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths = paths
        self._load = load
        # Before loading: a renewal in between is seen by the next look.
        self._versions = versions(paths)
        self._value = load()
        self.refused = ""

    def value(self) -> T:
        current = versions(self._paths)
        if current != self._versions:
            # Before loading: a renewal that cannot be used is logged once, not at every look.
            self._versions = current
            try:
                self._value, self.refused = self._load(), ""
                log.info("files-renewed paths=%s", [str(path) for path in self._paths])
            except ConfigError as error:
                self.refused = error.message
                log.warning("files-not-renewed error=%s", error.message)
        return self._value
