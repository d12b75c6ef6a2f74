"""Carries out the DELs that launchers left on disk while no agent answered."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cni.wire import MAX_MESSAGE, is_of_another_version
from netmgr.errors import IoFailure, NetmgrError, RequestError, TryAgainLater
from netmgr.file_version import versions

REFUSED = ".refused"
"""Added to the name of a file that is set aside, since it can never be carried out."""

_KEPT = ".del"
# Name under which a launcher writes; it renames when the file is whole.
_UNFINISHED = re.compile(r"\.[0-9a-f]{16}\.[0-9]+")

# Age from which on no launcher is writing any more: it lives for some minutes at most.
_UNFINISHED_SECONDS = 3600.0

_REQUEST_FAULTS = frozenset(kind.cni_code for kind in RequestError.__subclasses__())
# Failures of the node, not of the request.
_PASSING = (NetmgrError, OSError, MemoryError, sqlite3.Error)

log = logging.getLogger(__name__)


def replay(directories: Iterable[Path], serve: Callable[[bytes], int]) -> None:
    """Carry out spooled requests, oldest first; `serve` returns a CNI error code, 0 for success.

    A request that will never succeed is set aside under another name and logged. What fails for
    another reason stays for the next time, so that nothing leaks.
    """
    files = [file for directory in directories if directory.is_dir() for file in _files(directory)]
    # By mtime, since the names are hashes.
    for path, _ in sorted(files, key=lambda file: file[1].st_mtime_ns):
        try:
            _replay(path, serve)
        except OSError as error:
            # It stays, and holds up no other.
            log.warning("spooled-del-unread file=%s error=%s", path.name, error)


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The regular files, each with its state; a pipe or the like would only block the reader."""
    for path in directory.iterdir():
        try:
            state = path.lstat()
        except OSError as error:
            log.warning("spooled-del-unread file=%s error=%s", path.name, error)
            continue
        if stat.S_ISREG(state.st_mode):
            yield path, state


def _replay(path: Path, serve: Callable[[bytes], int]) -> None:
    if _UNFINISHED.fullmatch(path.name):
        if time.time() - path.lstat().st_mtime > _UNFINISHED_SECONDS:
            path.unlink()
            log.info("unfinished-spool-removed file=%s", path.name)
        return
    if path.suffix != _KEPT:
        return
    version = versions([path])
    code, fault = _carry_out(path, serve)
    # The launcher of a later DEL of the same attachment renames its own onto this one. Only the
    # later one refuses the ADDs in between.
    if versions([path]) != version:
        log.info("spooled-del-replaced action=try-again file=%s", path.name)
    elif code == 0:
        path.unlink()
        log.info("spooled-del-replayed file=%s", path.name)
    elif _fails_always(code, fault):
        aside = path.with_name(path.name + REFUSED)
        path.replace(aside)
        log.error("spooled-del-set-aside file=%s code=%d", aside.name, code, exc_info=fault)
    else:
        log.warning(
            "spooled-del-failed action=try-again file=%s code=%d error=%s",
            path.name,
            code,
            fault or "-",
        )


def _fails_always(code: int, fault: BaseException | None) -> bool:
    # Itself at fault, or it even ended in a fault of ours: it would do so every time.
    return code in _REQUEST_FAULTS or (fault is not None and not isinstance(fault, _PASSING))


def _carry_out(path: Path, serve: Callable[[bytes], int]) -> tuple[int, BaseException | None]:
    """The request's CNI error code, and the exception it ended in where that is no CNI error."""
    if path.stat().st_size > MAX_MESSAGE:
        return IoFailure.cni_code, None
    message = path.read_bytes()
    # For the agent of that version, which may be the next one here.
    if is_of_another_version(message):
        return TryAgainLater.cni_code, None
    # A future keeps any exception to itself: one file must neither end the agent nor hold up the
    # others.
    with ThreadPoolExecutor(1, thread_name_prefix="spool") as worker:
        outcome = worker.submit(serve, message)
    fault = outcome.exception()
    return (NetmgrError.cni_code, fault) if fault else (outcome.result(), None)
