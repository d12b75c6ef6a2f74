"""Opens the agent's SQLite files, and tells a damaged one from one that cannot be reached just now.

The difference matters: a damaged file is set aside and what it held is lost, so nothing less
than damage may be called so. A full disk, a failing one or another program's lock passes.

Write-ahead logging, synchronous=NORMAL and no automatic checkpoint: a transaction is one
append to the log and waits for no disk. A process killed anywhere loses nothing, since the
kernel holds what was written; a power cut may take the log back to the last `checkpoint`,
never to half a transaction (sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from netmgr.errors import NetmgrError, SetupError, StateError

BUSY_SECONDS = 0.5
"""How long a statement waits for another program's lock."""

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""SQLITE_ERROR is among them: our own statements fit the schema, so the file's is another."""


NO_MIGRATIONS: Mapping[int, str] = {}

COMPANIONS = ("", "-wal", "-shm")
"""Suffixes of a file, its write-ahead log and the log's index."""

NOTHING: Mapping[str, tuple[int, int]] = {}


def open_file(
    path: Path, schema: str, version: int, migrations: Mapping[int, str] = NO_MIGRATIONS
) -> sqlite3.Connection:
    """Open the file, or make it with `schema`; `version` is what its user_version has to be.

    `migrations` are the statements that bring a file of an earlier version to the next one; they
    are run in one transaction, so that a crash leaves either the old file or the new one.

    Raises:
        StateError: the file is damaged or was not made by this version; it has to be set aside.
        SetupError: the file cannot be reached or made; it may be perfectly good.
    """
    try:
        connection = _connect(path)
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    try:
        _prepare(connection, path, schema, version, migrations)
    except sqlite3.Error as error:
        connection.close()
        raise refusal(path, error) from error
    except StateError:
        connection.close()
        raise
    return connection


def refusal(path: Path, error: sqlite3.Error) -> NetmgrError:
    """What to raise when a file cannot be opened or read whole: StateError for damage, else SetupError."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGE:
        return StateError(f"{path}: is damaged or not a state file of netmgr: {error}")
    return SetupError(
        f"{path}: cannot be opened: {error}; check the disk's space, the file's mode, and who else has it open"
    )


Identity = tuple[int, int]
"""Device and number of a file, by which one that was removed or replaced is told from the one that is open."""


def identities(path: Path) -> dict[str, Identity]:
    """What stands at `path` and beside it now, by suffix: the file, its log and the log's index."""
    return {
        suffix: identity
        for suffix in COMPANIONS
        if (identity := identity_of(path.with_name(path.name + suffix))) is not None
    }


def identity_of(path: Path) -> Identity | None:
    """What stands at `path` now, None for nothing."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def set_aside(path: Path, why: str, keep: Mapping[str, Identity] = NOTHING) -> Path:
    """Rename the file and what belongs to it, but for what `keep` names; returns the file's new path.

    Raises:
        StateError: it cannot be renamed.
    """
    kept = path.with_name(f"{path.name}.{why}-{time.strftime('%Y%m%dT%H%M%S')}")
    try:
        for suffix, identity in identities(path).items():
            if identity != keep.get(suffix):
                path.with_name(path.name + suffix).rename(kept.with_name(kept.name + suffix))
    except OSError as error:
        raise StateError(f"{path}: is {why} and cannot be renamed: {error.strerror}") from None
    return kept


def put_back(connection: sqlite3.Connection, path: Path, opened: Mapping[str, Identity]) -> sqlite3.Connection:
    """Make a file that was removed or replaced again, from the connection that still has it open.

    An open file outlives its name, so nothing that was written is missing. `opened` are the
    identities of what the connection opened; anything else that stands there is set aside.
    Returns a connection to the new file; the former one is closed then, else it stays in use.

    Raises:
        StateError: it cannot be made.
    """
    scratch = path.with_name(f".{path.name}.restored")
    try:
        scratch.unlink(missing_ok=True)
        with closing(sqlite3.connect(scratch, isolation_level=None)) as copy:
            connection.backup(copy)
        set_aside(path, "replaced", opened)
        scratch.rename(path)
        made = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # Before the new file is touched: the last one to close a file removes the log of that name.
        connection.close()
        for suffix in COMPANIONS[1:]:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        _configure(made)
        made.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # opens the log
    except (sqlite3.Error, OSError) as error:
        raise StateError(f"{path}: was removed or replaced and cannot be made again: {error}") from None
    return made


def content_of(path: Path) -> tuple[int, int] | None:
    """Size and time of change of what stands at `path`; in this mode a checkpoint alone alters them."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether an open file's content cannot be used, which one that is locked or on a full disk can."""
    try:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return isinstance(refusal(Path(), error), StateError)
    return bool(answer != "ok")


def checkpoint(path: Path) -> bool:
    """Have the disk hold all that was written so far, and let the log start over; whether it holds all of it.

    On a connection of its own, so that transactions go on while the disk is waited for.

    Raises:
        StateError: the disk refused.
    """
    try:
        # Never made here: a file that was removed is put back with all that it held.
        name = f"file:{quote(str(path))}?mode=rw"
        with closing(sqlite3.connect(name, timeout=BUSY_SECONDS, isolation_level=None, uri=True)) as connection:
            _configure(connection)
            busy, logged, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        raise StateError(f"{path}: cannot be synced to the disk: {error}") from error
    return not busy and logged == copied


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    _configure(connection)
    return connection


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading alone, beside whoever writes it.

    Raises:
        SetupError: the file is not there or this user may not read it.
        sqlite3.Error: anything else.
    """
    try:
        path.stat()
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}") from None
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", timeout=BUSY_SECONDS, isolation_level=None, uri=True
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _prepare(
    connection: sqlite3.Connection, path: Path, schema: str, version: int, migrations: Mapping[int, str]
) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if found == 0 and tables == 0:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {version}; COMMIT;")
    elif found != version and found not in migrations:
        raise StateError(f"{path}: was not made by this version of netmgr (schema {found}, not {version})")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StateError(f"{path}: is damaged: {verdict}")
    if found in migrations:
        steps = "".join(migrations[step] for step in range(found, version))
        connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {version}; COMMIT;")
