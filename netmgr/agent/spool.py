"""Carries out the DELs that launchers left on disk while no agent answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from netmgr.errors import RequestError

_UNFINISHED = "."
"""The launcher writes under a name that begins with this, and renames when the file is whole."""

_REQUEST_FAULTS = frozenset(kind.cni_code for kind in RequestError.__subclasses__())

log = logging.getLogger(__name__)


def replay(directory: Path, serve: Callable[[bytes], int]) -> None:
    """Carry out every spooled request, oldest first; `serve` returns a CNI error code, 0 for success.

    A request that is itself at fault never will succeed and is removed; any other failure is
    this node's, so the file stays for the next time and nothing leaks.
    """
    files = (
        [path for path in directory.glob("*") if not path.name.startswith(_UNFINISHED)] if directory.is_dir() else []
    )
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        code = serve(path.read_bytes())
        if code == 0 or code in _REQUEST_FAULTS:
            path.unlink()
        log.info("replayed spooled DEL file=%s code=%d", path.name, code)
