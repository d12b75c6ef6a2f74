"""Files that are renewed while the exporter runs (certificates, tokens) and need no restart for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from netmgr.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int], ...]


class Followed(Generic[T]):
    """What `load` makes of some files, made anew when one of them has changed.

    A renewal that makes no sense, or is seen half written, is logged, and what was there before stays in
    force until the files change again.

    Raises:
        ConfigError: the first loading failed.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        self._paths = paths
        self._load = load
        self._stamp = self._look()
        self._value = load()

    def value(self) -> T:
        """What the files say now."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._value = self._load()
                log.info("files-renewed paths=%s", [str(path) for path in self._paths])
            except ConfigError as error:
                log.warning("files-not-renewed error=%s", error.message)
        return self._value

    def _look(self) -> Stamp:
        """Identity of what lies at the paths; a file that is not there has none."""
        try:
            facts = [path.stat() for path in self._paths]
        except OSError:
            return ()
        return tuple((fact.st_ino, fact.st_mtime_ns, fact.st_size) for fact in facts)
