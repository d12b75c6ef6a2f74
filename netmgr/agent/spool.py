"""Carries out the DELs that launchers left on disk while no agent answered."""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from netmgr.errors import RequestError

_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.[0-9]+")
"""Name under which a launcher writes; it renames when the file is whole."""

_UNFINISHED_SECONDS = 3600.0
"""Age from which on nobody is writing any more: a launcher lives for some minutes at most."""

_REQUEST_FAULTS = frozenset(kind.cni_code for kind in RequestError.__subclasses__())

log = logging.getLogger(__name__)


def replay(directory: Path, serve: Callable[[bytes], int]) -> None:
    """Carry out every spooled request, oldest first; `serve` returns a CNI error code, 0 for success.

    A request that is itself at fault never will succeed and is removed; any other failure is
    this node's, so the file stays for the next time and nothing leaks. A file that cannot be
    read stays too and holds up no other. What launchers left unfinished is removed in the end.

    Raises:
        OSError: the directory cannot be listed.
    """
    if not directory.is_dir():
        return
    for path, _ in sorted(_files(directory), key=lambda found: found[1].st_mtime_ns):
        try:
            _replay(path, serve)
        except OSError as error:
            log.warning("spooled DEL not replayed file=%s error=%s", path.name, error)


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The regular files, each with its state; a pipe or the like would only block the reader."""
    for path in directory.iterdir():
        try:
            state = path.lstat()
        except OSError as error:
            log.warning("spooled DEL not looked at file=%s error=%s", path.name, error)
            continue
        if stat.S_ISREG(state.st_mode):
            yield path, state


def _replay(path: Path, serve: Callable[[bytes], int]) -> None:
    if path.name.startswith("."):
        if _UNFINISHED.fullmatch(path.name) and time.time() - path.lstat().st_mtime > _UNFINISHED_SECONDS:
            path.unlink()
            log.info("removed what a launcher left unfinished file=%s", path.name)
        return
    code = serve(path.read_bytes())
    if code == 0 or code in _REQUEST_FAULTS:
        path.unlink()
    log.info("replayed spooled DEL file=%s code=%d", path.name, code)
