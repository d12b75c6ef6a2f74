"""The book in one SQLite file: read whole at the start, written by changed rows. See `sqlite_file`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from netmgr import sqlite_file
from netmgr.errors import SetupError, StateError
from netmgr.ledger import audit, rollups
from netmgr.ledger.account import Account, Amount, PodName, Scope
from netmgr.ledger.book import LARGEST, Book, Gap, LiveCounter, Lost, Phase
from netmgr.ledger.history import Retention
from netmgr.ledger.tracked import Tracked
from netmgr.model import Counter, PodRef, Traffic
from netmgr.prefixes import Address, Family

SCHEMA_VERSION = 3

SCHEMA = f"""
CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    subject TEXT, family INTEGER, traffic TEXT,
    namespace TEXT, pod TEXT, uid TEXT,
    phase INTEGER NOT NULL, bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
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
CREATE TABLE gap (
    reason TEXT PRIMARY KEY, count INTEGER NOT NULL, seconds REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
{rollups.SCHEMA}
"""

MIGRATIONS = {
    1: f"ALTER TABLE gap ADD COLUMN seconds REAL NOT NULL DEFAULT 0; {rollups.SCHEMA} {audit.MIGRATION}",
    2: f"ALTER TABLE counter RENAME COLUMN epoch TO phase; UPDATE counter SET phase = {Phase.COUNTING:d};",  # noqa: S608  a constant
}
"""From each version to the next one: the first had gaps without seconds, and neither roll-ups nor an audit; the
second counted the times that a counter began, which nothing asked for, and did not know phases."""

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
        self._connection = sqlite_file.open_file(path, SCHEMA, SCHEMA_VERSION, MIGRATIONS)
        self._opened = sqlite_file.identities(path)
        self._content = sqlite_file.content_of(path)

    def load(self) -> Book:
        """Every table, in memory.

        Raises:
            StateError: a table or a row is not as this version writes it.
            SetupError: the file cannot be read just now.
        """
        read = self._connection.execute
        try:
            return Book(
                facts=Tracked(read("SELECT key, value FROM fact")),
                counters=Tracked(map(_counter, read("SELECT * FROM counter"))),
                totals=Tracked(map(_total, read("SELECT * FROM total"))),
                ended=Tracked((PodName(*row[:2]), row[2]) for row in read("SELECT * FROM ended")),
                gaps=Tracked((Gap(reason), Lost(*lost)) for reason, *lost in read("SELECT * FROM gap")),
            )
        except sqlite3.Error as error:
            raise sqlite_file.refusal(self.path, error) from error
        except (ValueError, TypeError) as error:
            raise StateError(f"{self.path}: cannot be read as a ledger: {error}") from error

    def write(self, book: Book) -> None:
        """Bring the file up to the book, in one transaction.

        Raises:
            StateError: nothing was written; the book keeps its changes for the next time.
        """
        with self._transaction():
            self._write_tables(book)
        book.written()

    def prune(self, retention: Retention) -> None:
        """Bound the roll-ups.

        Raises:
            StateError: nothing was changed.
        """
        with self._transaction():
            rollups.prune(self._connection, retention)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except (sqlite3.Error, OverflowError) as error:
            raise StateError(f"{self.path}: cannot be written: {error}") from error

    def _write_tables(self, book: Book) -> None:
        self._run("REPLACE INTO fact VALUES (?, ?)", book.facts.changed)
        self._run("DELETE FROM counter WHERE (subject, family, traffic) = (?, ?, ?)", map(_key, book.counters.deleted))
        self._run("REPLACE INTO counter VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_counter_row, book.counters.changed))
        self._run("DELETE FROM total WHERE (scope, owner, name, traffic) = (?, ?, ?, ?)", book.totals.deleted)
        self._run("REPLACE INTO total VALUES (?, ?, ?, ?, ?, ?)", map(_total_row, book.totals.changed))
        self._run("DELETE FROM ended WHERE (namespace, pod) = (?, ?)", book.ended.deleted)
        self._run("REPLACE INTO ended VALUES (?, ?, ?)", ((*name, since) for name, since in book.ended.changed))
        self._run("REPLACE INTO gap VALUES (?, ?, ?)", ((gap, *lost) for gap, lost in book.gaps.changed))
        self._run(rollups.ADD, rollups.rows(book.hours.items()))

    def _run(self, statement: str, rows: Iterable[Row] | None = None) -> None:
        """Every statement of a transaction passes here, so that a test can end the process at any."""
        if rows is None:
            self._connection.execute(statement)
        else:
            self._connection.executemany(statement, rows)

    def is_lost(self) -> bool:
        """Whether the file was removed or replaced since it was opened."""
        return sqlite_file.identities(self.path) != self._opened

    def restore(self) -> None:
        """Make the file again with all that it held.

        Raises:
            StateError: it cannot be made; what it held is still there, in the open file.
        """
        self._connection = sqlite_file.put_back(self._connection, self.path, self._opened)
        self._note_place()

    def _note_place(self) -> None:
        self._opened, self._content = sqlite_file.identities(self.path), sqlite_file.content_of(self.path)

    def is_harmed(self, *, check: bool) -> bool:
        """Whether somebody wrote into the very file, or (if told to check) its content cannot be used any more."""
        if check and sqlite_file.is_damaged(self._connection):
            return True
        return not self.is_lost() and sqlite_file.content_of(self.path) != self._content

    def begin_anew(self, book: Book) -> None:
        """Write the whole book to a new file, in the place of one that cannot be trusted and is set aside.

        The hourly roll-ups are in no book and begin with what it has of them. A process that is
        killed meanwhile leaves the old file, the new one, or none, which its successor reports.

        Raises:
            StateError: it cannot be written.
        """
        scratch = self.path.with_name(f".{self.path.name}.new")
        try:
            for suffix in sqlite_file.COMPANIONS:
                scratch.with_name(scratch.name + suffix).unlink(missing_ok=True)
            with closing(sqlite_file.open_file(scratch, SCHEMA, SCHEMA_VERSION)) as connection:
                _write_whole(connection, book)
            sqlite_file.set_aside(self.path, "replaced")
            # Closing removes the log by its name, which must not be the new file's yet.
            self._connection.close()
            scratch.replace(self.path)
            self._connection = sqlite_file.open_file(self.path, SCHEMA, SCHEMA_VERSION)
        except (OSError, sqlite3.Error, SetupError) as error:
            raise StateError(f"{self.path}: cannot be written again: {error}") from error
        self._note_place()
        book.written()

    def checkpoint(self) -> bool:
        """Have the disk hold all that was written so far, and let the log start over; whether it holds all of it.

        On a connection of its own, so that postings go on while the disk is waited for.

        Raises:
            StateError: the disk refused.
        """
        is_whole = sqlite_file.checkpoint(self.path)
        self._content = sqlite_file.content_of(self.path)
        return is_whole

    def close(self) -> None:
        """Sync and close; the file is then whole without its log."""
        self._connection.close()


def _write_whole(connection: sqlite3.Connection, book: Book) -> None:
    """Fill a new file, and have the disk hold it."""
    write = connection.executemany
    connection.execute("BEGIN IMMEDIATE")
    write("INSERT INTO fact VALUES (?, ?)", book.facts.items())
    write("INSERT INTO counter VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_counter_row, book.counters.items()))
    write("INSERT INTO total VALUES (?, ?, ?, ?, ?, ?)", map(_total_row, book.totals.items()))
    write("INSERT INTO ended VALUES (?, ?, ?)", ((*name, since) for name, since in book.ended.items()))
    write("INSERT INTO gap VALUES (?, ?, ?)", ((gap, *lost) for gap, lost in book.gaps.items()))
    write(rollups.ADD, rollups.rows(book.hours.items()))
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _key(counter: Counter) -> tuple[str, int, str]:
    return str(counter.subject), int(counter.family), str(counter.traffic)


def _counter_row(entry: tuple[Counter, LiveCounter]) -> Row:
    counter, live = entry
    owner = (live.owner.namespace, live.owner.name, live.owner.uid) if live.owner else (None, None, None)
    return (*_key(counter), *owner, int(live.phase), live.reading.bytes, live.reading.packets)


def _counter(row: tuple[str, int, str, str | None, str, str, int, int, int]) -> tuple[Counter, LiveCounter]:
    subject, family, traffic, namespace, pod, uid, phase, count, packets = row
    owner = PodRef(namespace, pod, uid) if namespace is not None else None
    identity = Address.parse(subject) if owner and " " not in subject else subject
    live = LiveCounter(owner, Amount(count, packets), Phase(phase))
    return Counter(identity, Family(family), Traffic(traffic)), live


def _total_row(entry: tuple[Account, Amount]) -> Row:
    (scope, owner, name, traffic), amount = entry
    # Beyond what the file can hold there are only counters that somebody set; they must not bar every later write.
    return scope.value, owner, name, str(traffic), min(amount.bytes, LARGEST), min(amount.packets, LARGEST)


def _total(row: tuple[str, str, str, str, int, int]) -> tuple[Account, Amount]:
    scope, owner, name, traffic, count, packets = row
    return Account(Scope(scope), owner, name, Traffic(traffic)), Amount(count, packets)
