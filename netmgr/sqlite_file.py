"""Opens the agent's SQLite files, and distinguishes damage from passing failures.

A damaged file is set aside, and what it held is lost. A full disk, a failing one or another
program's lock is no damage, and passes.

Write-ahead logging, synchronous=NORMAL and no automatic checkpoint: a transaction is one
append to the log and waits for no disk. A process killed anywhere loses nothing, since the
kernel holds what was written; a power cut may take the log back to the last `checkpoint`,
never to half a transaction (sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from netmgr.errors import NetmgrError, OtherSchema, SetupError, StateError
from netmgr.file_version import FileIdentity, identity_of

BUSY_SECONDS = 0.5
"""How long a statement waits for another program's lock."""

LOG_BYTES = 4 << 20
"""Size of a write-ahead log from which its owner makes sure that it starts over."""

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})
"""SQLITE_ERROR is among them: our own statements fit the schema, so the file's is another."""

FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises: its messages quote a damaged file, in which names are no text."""

COMPANIONS = ("", "-wal", "-shm")
"""Suffixes of a file, its write-ahead log and the log's index."""


def open_file(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """Open the file, or make it with `schema`; `version` is what its user_version has to be.

    Raises:
        OtherSchema: another version of netmgr wrote the file; it is as it was.
        StateError: the file is damaged or not netmgr's; it has to be set aside.
        SetupError: the file cannot be reached or made; it may be perfectly good.
    """
    # SQLite would make it for everybody to read. Its companions get the mode that it has.
    with suppress(OSError):
        path.touch(0o600, exist_ok=False)
    try:
        connection = _connect(path)
        try:
            _prepare(connection, path, schema, version)
        except (*FAILURES, StateError):
            connection.close()
            raise
    except FAILURES as error:
        raise refusal(path, error) from error
    return connection


class StateFile:
    """A file that its owner has open. Not thread-safe: the owner holds a lock.

    Raises as `open_file` does.
    """

    def __init__(self, path: Path, schema: str, version: int) -> None:
        self.path = path
        self._connection = open_file(path, schema, version)
        self._note_identity()

    def _note_identity(self) -> None:
        self._opened = identities(self.path)

    def is_lost(self) -> bool:
        """Whether the file was removed or replaced since it was opened."""
        return identities(self.path) != self._opened

    def restore(self) -> None:
        """Make the file again with all that it held.

        Raises:
            StateError: it cannot be made; what it held is still there, in the open file.
        """
        self._connection = put_back(self._connection, self.path, self._opened)
        self._note_identity()


def refuse_other_schema(connection: sqlite3.Connection, path: Path, version: int) -> int:
    """The schema version of an open file, 0 if it has none; OtherSchema if it is not `version`."""
    (stored,) = connection.execute("PRAGMA user_version").fetchone()
    if stored not in (0, version):
        raise OtherSchema(
            f"{path}: {'a newer' if stored > version else 'an earlier'} netmgr wrote it "
            f"(schema {stored}; this one knows {version}), and it is unchanged. "
            "Run that version again, or begin without what the file holds: "
            f"mkdir {path.parent}/kept && mv {path}* {path.parent}/kept"
        )
    return int(stored)


def refusal(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> NetmgrError:
    """The error for a file that cannot be opened or read: StateError if it is damaged."""
    # Extended codes have the primary one in their low byte.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGE:
        return StateError(f"{path}: is damaged or not a state file of netmgr: {error}")
    return SetupError(
        f"{path}: cannot be opened: {error}; "
        "check the disk's space, the file's mode, and who else has it open"
    )


def identities(path: Path) -> dict[str, FileIdentity]:
    """What is at `path` and beside it now, by suffix: the file, its log and the log's index."""
    return {
        suffix: identity
        for suffix in COMPANIONS
        if (identity := identity_of(path.with_name(path.name + suffix))) is not None
    }


def set_aside(
    path: Path,
    why: str,
    keep: Mapping[str, FileIdentity] | None = None,
    *,
    leave_file: bool = False,
) -> Path:
    """Rename the file and its companions, but for those in `keep`; returns the file's new path.

    With `leave_file` the file itself keeps its name beside the new one, until another replaces it.
    StateError if it cannot be renamed.
    """
    kept = path.with_name(f"{path.name}.{why}-{time.strftime('%Y%m%dT%H%M%S')}")
    try:
        for suffix, identity in identities(path).items():
            former, new = (base.with_name(base.name + suffix) for base in (path, kept))
            if leave_file and not suffix:
                # Unlike rename(2), link(2) refuses a name that is taken: here in this same second.
                new.unlink(missing_ok=True)
                new.hardlink_to(former)
            elif identity != (keep or {}).get(suffix):
                former.rename(new)
    except OSError as error:
        raise StateError(f"{path}: is {why} and cannot be renamed: {error.strerror}") from None
    return kept


def put_back(
    connection: sqlite3.Connection, path: Path, opened: Mapping[str, FileIdentity]
) -> sqlite3.Connection:
    """Make a file that was removed or replaced again, from the connection that still has it open.

    Anything else than what was `opened` is set aside. Returns a connection to the new file; the
    former one is closed then. StateError if it cannot be made: the former one stays in use.
    """
    scratch = path.with_name(f".{path.name}.restored")
    try:
        scratch.unlink(missing_ok=True)
        scratch.touch(0o600)
        with closing(sqlite3.connect(scratch)) as copy:
            # Through the open connection: it still reads the file that has lost its name, and its
            # log.
            connection.backup(copy)
        set_aside(path, "replaced", opened)
        scratch.rename(path)
        made = _connect(path)
        # Before the new file is touched: the last one to close a file removes the log of that name.
        connection.close()
        # SQLite would replay a log that is not the new file's into it.
        for suffix in COMPANIONS[1:]:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        _configure(made)
        made.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # opens the log
    except (*FAILURES, OSError) as error:
        raise StateError(
            f"{path}: was removed or replaced and cannot be made again: {error}"
        ) from None
    return made


def content_of(path: Path) -> tuple[int, int] | None:
    """Size and mtime of the file at `path`; in this mode only a checkpoint changes them."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether an open file's content is unusable. A lock or a full disk is no damage."""
    try:
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except FAILURES as error:
        return isinstance(refusal(Path(), error), StateError)
    return bool(answer != "ok")


def checkpoint(path: Path, opened: Mapping[str, FileIdentity]) -> bool:
    """Sync all that was written before this call to the disk; returns whether it worked.

    If no transaction went on meanwhile, the next one starts the log over and truncates it to
    LOG_BYTES. Under constant writes that never comes about: so the owner of a log that `is_long`
    repeats this while nothing is written. `opened` is what the owner's connection opened.

    Raises:
        StateError: the disk refused, or the file was removed or replaced.
    """
    # SQLite would copy the owner's log into another file of that name, and tell the owner, by the
    # log's index, that it has been copied. Both would be spoiled.
    if identities(path) != opened:
        raise StateError(f"{path}: was removed or replaced, and is not synced to the disk")
    try:
        # On a connection of its own, so that transactions go on while the disk is waited for.
        # Never made here: a file that was removed is put back with all that it held.
        name = f"file:{quote(str(path))}?mode=rw"
        with closing(sqlite3.connect(name, timeout=BUSY_SECONDS, uri=True)) as connection:
            _configure(connection)
            # PASSIVE: every other mode waits for readers and writers, or stops them.
            busy, logged, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except FAILURES as error:
        raise StateError(f"{path}: cannot be synced to the disk: {error}") from error
    return not busy and logged == copied


def is_long(path: Path) -> bool:
    """Whether the write-ahead log of the file at `path` has become long."""
    content = content_of(path.with_name(path.name + "-wal"))
    return content is not None and content[0] > LOG_BYTES


def _connect(path: Path) -> sqlite3.Connection:
    # Without an isolation level, the module begins no transactions of its own. Threads share the
    # connection under its owner's lock.
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA synchronous = NORMAL")
    # Else a COMMIT now and then would copy the log and wait for the disk.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    # Without it, a log that starts over keeps the size of its worst moment.
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading alone, beside whoever writes it.

    Raises:
        SetupError: the file is not there or this user may not read it.
        sqlite3.Error: anything else.
    """
    try:
        # SQLite says `unable to open database file`, whatever the reason is.
        path.stat()
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}") from None
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", timeout=BUSY_SECONDS, isolation_level=None, uri=True
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: str, version: int) -> None:
    _configure(connection)
    stored = refuse_other_schema(connection, path, version)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if stored == 0 and tables == 0:
        # Outside any transaction, within which SQLite does not change the mode.
        connection.execute("PRAGMA journal_mode = WAL")
        # Tables and number at once: after a kill, tables without a number are taken for another
        # program's.
        connection.executescript(
            f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {version}; COMMIT;"
        )
    elif stored == 0:
        raise StateError(f"{path}: was not made by netmgr: it has tables, and no schema's number")
    (report,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if report != "ok":
        raise StateError(f"{path}: is damaged: {report}")
