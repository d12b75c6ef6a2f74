"""The book in one SQLite file: read whole at the start, written by changed rows.

WAL with synchronous=NORMAL and no automatic checkpoint: a transaction is one append to the
log and waits for no disk. A process killed anywhere loses nothing, since the kernel holds
what was written; a power cut may take the log back to the last `checkpoint`, never to half
a transaction (sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from netmgr.errors import SetupError, StateError
from netmgr.ledger.book import Account, Amount, Book, Gap, LiveCounter, PodName, Scope, Tracked
from netmgr.model import Counter, PodRef, Traffic
from netmgr.prefixes import Address, Family

SCHEMA_VERSION = 1
BUSY_SECONDS = 0.5

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    subject TEXT, family INTEGER, traffic TEXT,
    namespace TEXT, pod TEXT, uid TEXT,
    epoch INTEGER NOT NULL, bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (subject, family, traffic)
) STRICT, WITHOUT ROWID;
CREATE TABLE total (
    scope TEXT, owner TEXT, name TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (scope, owner, name, traffic)
) STRICT, WITHOUT ROWID;
CREATE TABLE ended (
    namespace TEXT, pod TEXT, since REAL NOT NULL, PRIMARY KEY (namespace, pod)
) STRICT, WITHOUT ROWID;
CREATE TABLE gap (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) STRICT, WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

Row = tuple[str | int | float | None, ...]


class Store:
    """The open file. Not thread-safe but for `checkpoint`; its owner holds a lock."""

    def __init__(self, path: Path) -> None:
        """Open `path`, or make it.

        Raises:
            StateError: the file is damaged or was not made by this version; it has to be set aside.
            SetupError: the file cannot be reached or made; it may be perfectly good.
        """
        self.path = path
        try:
            self._connection = self._connect()
        except sqlite3.Error as error:
            self._refuse(error)
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._connection.close()
            self._refuse(error)
        except StateError:
            self._connection.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _prepare(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if version == 0 and tables == 0:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.executescript(SCHEMA)
        elif version != SCHEMA_VERSION:
            raise StateError(f"{self.path}: is no ledger of this version (schema {version}, not {SCHEMA_VERSION})")
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StateError(f"{self.path}: is damaged: {verdict}")

    def _refuse(self, error: sqlite3.Error) -> NoReturn:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise StateError(f"{self.path}: is damaged or not a ledger: {error}") from error
        raise SetupError(
            f"{self.path}: cannot be opened: {error}; check the disk's space and the file's mode"
        ) from error

    def load(self) -> Book:
        """Every table, in memory.

        Raises:
            StateError: a table or a row is not as this version writes it.
        """
        read = self._connection.execute
        try:
            return Book(
                facts=Tracked(read("SELECT key, value FROM fact")),
                counters=Tracked(map(_counter, read("SELECT * FROM counter"))),
                totals=Tracked(map(_total, read("SELECT * FROM total"))),
                ended=Tracked((PodName(*row[:2]), row[2]) for row in read("SELECT * FROM ended")),
                gaps=Tracked((Gap(row[0]), row[1]) for row in read("SELECT * FROM gap")),
            )
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise StateError(f"{self.path}: cannot be read as a ledger: {error}") from error

    def write(self, book: Book) -> None:
        """Bring the file up to the book, in one transaction.

        Raises:
            StateError: nothing was written; the book keeps its changes for the next time.
        """
        try:
            self._run("BEGIN IMMEDIATE")
            try:
                self._write_tables(book)
                self._run("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except (sqlite3.Error, OverflowError) as error:
            raise StateError(f"{self.path}: cannot be written: {error}") from error
        book.written()

    def _write_tables(self, book: Book) -> None:
        self._run("REPLACE INTO fact VALUES (?, ?)", book.facts.changed)
        self._run("DELETE FROM counter WHERE (subject, family, traffic) = (?, ?, ?)", map(_key, book.counters.deleted))
        self._run("REPLACE INTO counter VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_counter_row, book.counters.changed))
        self._run("DELETE FROM total WHERE (scope, owner, name, traffic) = (?, ?, ?, ?)", book.totals.deleted)
        self._run("REPLACE INTO total VALUES (?, ?, ?, ?, ?, ?)", map(_total_row, book.totals.changed))
        self._run("DELETE FROM ended WHERE (namespace, pod) = (?, ?)", book.ended.deleted)
        self._run("REPLACE INTO ended VALUES (?, ?, ?)", ((*name, since) for name, since in book.ended.changed))
        self._run("REPLACE INTO gap VALUES (?, ?)", book.gaps.changed)

    def _run(self, statement: str, rows: Iterable[Row] | None = None) -> None:
        """Every statement of a transaction passes here, so that a test can end the process at any."""
        if rows is None:
            self._connection.execute(statement)
        else:
            self._connection.executemany(statement, rows)

    def checkpoint(self) -> None:
        """Have the disk hold all that was written so far, and let the log start over.

        On a connection of its own, so that postings go on while the disk is waited for.

        Raises:
            StateError: the disk refused.
        """
        try:
            connection = self._connect()
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StateError(f"{self.path}: cannot be synced to the disk: {error}") from error

    def close(self) -> None:
        """Sync and close; the file is then whole without its log."""
        self._connection.close()


def _key(counter: Counter) -> tuple[str, int, str]:
    return str(counter.subject), int(counter.family), counter.traffic.value


def _counter_row(entry: tuple[Counter, LiveCounter]) -> Row:
    counter, live = entry
    owner = (live.owner.namespace, live.owner.name, live.owner.uid) if live.owner else (None, None, None)
    return (*_key(counter), *owner, live.epoch, live.reading.bytes, live.reading.packets)


def _counter(row: tuple[str, int, str, str | None, str, str, int, int, int]) -> tuple[Counter, LiveCounter]:
    subject, family, traffic, namespace, pod, uid, epoch, count, packets = row
    owner = PodRef(namespace, pod, uid) if namespace is not None else None
    identity = Address.parse(subject) if owner else subject
    return Counter(identity, Family(family), Traffic(traffic)), LiveCounter(owner, epoch, Amount(count, packets))


def _total_row(entry: tuple[Account, Amount]) -> Row:
    (scope, owner, name, traffic), amount = entry
    return scope.value, owner, name, traffic.value, amount.bytes, amount.packets


def _total(row: tuple[str, str, str, str, int, int]) -> tuple[Account, Amount]:
    scope, owner, name, traffic, count, packets = row
    return Account(Scope(scope), owner, name, Traffic(traffic)), Amount(count, packets)
