"""The book in one SQLite file: read whole at the start, written by changed rows. See `sqlite_file`.

The hourly roll-ups (`history.py`) are in the file alone: added to, never read into memory, and
bounded by `LedgerStore.prune`. `reading` and `usage` answer questions about them on a connection of
their own, also while no agent runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from netmgr import sqlite_file
from netmgr.api.snapshot import UsageRow
from netmgr.errors import SetupError, StateError
from netmgr.ledger import tables
from netmgr.ledger.book import Book
from netmgr.ledger.history import By, Period, Retention, bounded, columns_of, grouped, usage_row
from netmgr.model import Counter, PodRef, Traffic
from netmgr.prefixes import Address, Family
from netmgr.sqlite_file import StateFile

SCHEMA_VERSION = 6

# STRICT, or SQLite would keep any type in any column. WITHOUT ROWID, since each table is looked up
# by its key alone: with a rowid each row would be in two trees.
SCHEMA = """
CREATE TABLE fact (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    subject TEXT, family INTEGER, traffic TEXT,
    namespace TEXT, pod TEXT, uid TEXT,
    phase INTEGER NOT NULL, life INTEGER NOT NULL,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    wire INTEGER NOT NULL, measured INTEGER NOT NULL,
    PRIMARY KEY (subject, family, traffic)
) STRICT, WITHOUT ROWID;
CREATE TABLE total (
    scope TEXT, owner TEXT, name TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    wire INTEGER NOT NULL, measured INTEGER NOT NULL,
    PRIMARY KEY (scope, owner, name, traffic)
) STRICT, WITHOUT ROWID;
CREATE TABLE ended (
    namespace TEXT, pod TEXT, since REAL NOT NULL, PRIMARY KEY (namespace, pod)
) STRICT, WITHOUT ROWID;
CREATE TABLE gap (
    reason TEXT PRIMARY KEY, count INTEGER NOT NULL, seconds REAL NOT NULL, bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE hour (
    hour INTEGER, namespace TEXT, pod TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    wire INTEGER NOT NULL, measured INTEGER NOT NULL,
    PRIMARY KEY (hour, namespace, pod, traffic)
) STRICT, WITHOUT ROWID;
"""

# The most that one roll-up holds, two petabytes: only counters that somebody set have more, and
# SQLite's sums must not overflow.
_MOST = 1 << 51

_ADDING = "ON CONFLICT DO UPDATE SET " + ", ".join(
    f"{column} = min({column} + excluded.{column}, {_MOST})"
    for column in ("bytes", "packets", "wire", "measured")
)
_ADD_HOURS = f"INSERT INTO hour VALUES (?, ?, ?, ?, ?, ?, ?, ?) {_ADDING}"  # noqa: S608  a constant

# Hours are counted, not reckoned from the clock, which may jump to another year for a minute.
_OLDEST_KEPT = """
SELECT min(hour) FROM (
    SELECT DISTINCT hour FROM hour WHERE namespace <> '' ORDER BY hour DESC LIMIT ?
)
"""
_HOURS_BY_AGE = "SELECT hour, count(*) FROM hour GROUP BY hour ORDER BY hour"
_SMALLEST_PODS = """
SELECT namespace, pod FROM hour WHERE hour = ? AND pod <> ''
GROUP BY namespace, pod ORDER BY max(bytes), namespace, pod LIMIT ?
"""
_FOLD = f"""
INSERT INTO hour
SELECT hour, namespace, '', traffic, bytes, packets, wire, measured FROM hour
WHERE (hour, namespace, pod) = (?, ?, ?)
{_ADDING}
"""  # noqa: S608  a constant of this module
_DROP_POD = "DELETE FROM hour WHERE (hour, namespace, pod) = (?, ?, ?)"

Row = tuple[str | int | float | None, ...]


class LedgerStore(StateFile):
    """The open file. Not thread-safe but for `checkpoint`; its owner holds a lock.

    Raises:
        StateError: it is damaged, or cannot be written; nothing was then.
        SetupError: it cannot be read just now.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA, SCHEMA_VERSION)

    def load(self) -> Book:
        read = self._connection.execute
        try:
            return Book(
                facts=tables.Tracked(read("SELECT key, value FROM fact")),
                counters=tables.Tracked(map(_counter, read("SELECT * FROM counter"))),
                totals=tables.Tracked(map(_total, read("SELECT * FROM total"))),
                ended=tables.Tracked(
                    (tables.SeriesKey(*row[:2]), row[2]) for row in read("SELECT * FROM ended")
                ),
                gaps=tables.Tracked(
                    (tables.Gap(reason), tables.Lost(*lost))
                    for reason, *lost in read("SELECT * FROM gap")
                ),
            )
        except sqlite3.Error as error:
            raise sqlite_file.refusal(self.path, error) from error
        except (ValueError, TypeError) as error:
            raise StateError(f"{self.path}: cannot be read as a ledger: {error}") from error

    def write(self, book: Book) -> None:
        """Bring the file up to the book, in one transaction; else the book keeps its changes."""
        with self._transaction():
            for statement, rows in _changes(book, is_whole=False):
                self._run(statement, rows)
        book.written()

    def prune(self, retention: Retention) -> None:
        """Drop and fold the roll-ups that `retention` leaves no room for."""
        with self._transaction():
            # `LIMIT 0` below would find no oldest hour and keep everything.
            if retention.hours == 0:
                self._connection.execute("DELETE FROM hour")
                return
            (oldest,) = self._connection.execute(_OLDEST_KEPT, (retention.hours,)).fetchone()
            # None if there is no hour: nothing is less than NULL.
            self._connection.execute("DELETE FROM hour WHERE hour < ?", (oldest,))
            (count,) = self._connection.execute("SELECT count(*) FROM hour").fetchone()
            if count > retention.rows:
                _shrink(self._connection, count - retention.rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            # IMMEDIATE, so that another program's lock is met here and not in the middle.
            self._run("BEGIN IMMEDIATE")
            try:
                yield
                self._run("COMMIT")
            finally:
                # Also after a COMMIT that failed, which leaves the transaction open.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except (sqlite3.Error, OverflowError) as error:
            raise StateError(f"{self.path}: cannot be written: {error}") from error

    def _run(self, statement: str, rows: Iterable[Row] | None = None) -> None:
        """Run a statement for each row, or once without any."""
        if rows is None:
            self._connection.execute(statement)
        # Most tables have not changed, and running a statement for no row costs as much.
        elif listed := list(rows):
            self._connection.executemany(statement, listed)

    def _note_identity(self) -> None:
        super()._note_identity()
        self._content = sqlite_file.content_of(self.path)

    def is_harmed(self, *, check: bool) -> bool:
        """Whether somebody wrote into this file, or (with `check`) its content is damaged."""
        if check and sqlite_file.is_damaged(self._connection):
            return True
        return not self.is_lost() and sqlite_file.content_of(self.path) != self._content

    def begin_anew(self, book: Book) -> None:
        """Write the whole book to a new file, and set the damaged one aside.

        The roll-ups that only the old file had are lost. A process that is killed meanwhile
        leaves the old file or the new one.
        """
        scratch = self.path.with_name(f".{self.path.name}.new")
        try:
            for suffix in sqlite_file.COMPANIONS:
                scratch.with_name(scratch.name + suffix).unlink(missing_ok=True)
            with closing(sqlite_file.open_file(scratch, SCHEMA, SCHEMA_VERSION)) as connection:
                _write_whole(connection, book)
            # The new file is whole on the disk by now. Closing the old one writes its log back, and
            # removes it by its name, which must not be the new file's yet. Where it cannot be
            # written back (somebody has it open, it is damaged), the old file is an older copy for
            # an instant: killed then, the agent's successor reports that.
            self._connection.close()
            # It keeps its name until the new file takes it, so that there is a ledger at any time.
            sqlite_file.set_aside(self.path, "replaced", leave_file=True)
            # The file was closed whole, without a log: one name is all there is to move.
            scratch.replace(self.path)
            self._connection = sqlite_file.open_file(self.path, SCHEMA, SCHEMA_VERSION)
        except (OSError, sqlite3.Error, SetupError) as error:
            raise StateError(f"{self.path}: cannot be written again: {error}") from error
        self._note_identity()
        book.written()

    def checkpoint(self) -> bool:
        """Sync to the disk and let the log start over; returns whether the disk has all of it."""
        # In this mode only a checkpoint changes the file itself: any other change of size or mtime
        # is another program's.
        is_whole = sqlite_file.checkpoint(self.path, self._opened)
        self._content = sqlite_file.content_of(self.path)
        return is_whole

    def close(self) -> None:
        # The last connection syncs, writes the log back and removes it: the file is whole then.
        self._connection.close()


def _write_whole(connection: sqlite3.Connection, book: Book) -> None:
    """Fill a new file, and have the disk hold it."""
    connection.execute("BEGIN IMMEDIATE")
    for statement, rows in _changes(book, is_whole=True):
        connection.executemany(statement, rows)
    connection.execute("COMMIT")
    # TRUNCATE: the file is renamed without its log, so all of it has to be in the file itself.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _changes(book: Book, *, is_whole: bool) -> Iterator[tuple[str, Iterable[Row]]]:
    """Statements that write what changed, or (`is_whole`) fill an empty file."""

    def entries(
        table: tables.Tracked[tables.Key, tables.Value],
    ) -> Iterable[tuple[tables.Key, tables.Value]]:
        return table.items() if is_whole else table.changed

    if not is_whole:
        counters = map(_key, book.counters.deleted)
        yield "DELETE FROM counter WHERE (subject, family, traffic) = (?, ?, ?)", counters
        totals = book.totals.deleted
        yield "DELETE FROM total WHERE (scope, owner, name, traffic) = (?, ?, ?, ?)", totals
        yield "DELETE FROM ended WHERE (namespace, pod) = (?, ?)", book.ended.deleted
        yield "DELETE FROM fact WHERE key = ?", ((key,) for key in book.facts.deleted)
    yield "REPLACE INTO fact VALUES (?, ?)", entries(book.facts)
    live = map(_counter_row, entries(book.counters))
    yield "REPLACE INTO counter VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", live
    sums = map(_total_row, entries(book.totals))
    yield "REPLACE INTO total VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sums
    yield "REPLACE INTO ended VALUES (?, ?, ?)", ((*key, at) for key, at in entries(book.ended))
    yield "REPLACE INTO gap VALUES (?, ?, ?, ?)", ((gap, *lost) for gap, lost in entries(book.gaps))
    hours: Iterable[Row] = (
        (hour, space, pod, str(way), *(min(count, _MOST) for count in amount.counts))
        for (hour, space, pod, way), amount in book.hours.items()
    )
    yield _ADD_HOURS, hours


def _key(counter: Counter) -> tuple[str, int, str]:
    return str(counter.subject), int(counter.family), str(counter.traffic)


def _counter_row(entry: tuple[Counter, tables.LiveCounter]) -> Row:
    counter, live = entry
    pod = live.owner
    owner = (pod.namespace, pod.name, pod.uid) if pod else (None, None, None)
    return (*_key(counter), *owner, int(live.phase), live.life, *live.reading.counts)


def _counter(
    row: tuple[str, int, str, str | None, str, str, int, int, int, int, int, int],
) -> tuple[Counter, tables.LiveCounter]:
    subject, family, traffic, namespace, pod, uid, phase, life, *counts = row
    owner = PodRef(namespace, pod, uid) if namespace is not None else None
    # With an owner and no address it is a host-network pod's: `cgroup 4711`.
    identity = Address.parse(subject) if owner and " " not in subject else subject
    live = tables.LiveCounter(owner, tables.Amount(*counts), tables.Phase(phase), life)
    return Counter(identity, Family(family), Traffic(traffic)), live


def _total_row(entry: tuple[tables.Account, tables.Amount]) -> Row:
    (scope, owner, name, traffic), amount = entry
    # Only counters that somebody set have more than the file can hold; SQLite would refuse such a
    # number, and with it every later write.
    counts = (max(-tables.LARGEST, min(count, tables.LARGEST)) for count in amount.counts)
    return scope.value, owner, name, str(traffic), *counts


def _total(
    row: tuple[str, str, str, str, int, int, int, int],
) -> tuple[tables.Account, tables.Amount]:
    scope, owner, name, traffic, *counts = row
    account = tables.Account(tables.Scope(scope), owner, name, Traffic(traffic))
    return account, tables.Amount(*counts)


def _shrink(connection: sqlite3.Connection, excess: int) -> None:
    """Save so many rows: fold the oldest hours' smallest pods, and then drop the oldest hours."""
    # Fetched whole: SQLite leaves open what a SELECT returns if its table changes meanwhile.
    for hour, count in connection.execute(_HOURS_BY_AGE).fetchall():
        # Folding a pod saves its rows, less those its namespace did not have yet: perhaps none.
        # So what is left is counted again.
        remaining = count
        while excess > 0 and (
            pods := connection.execute(_SMALLEST_PODS, (hour, excess)).fetchall()
        ):
            for namespace, pod in pods:
                connection.execute(_FOLD, (hour, namespace, pod))
                connection.execute(_DROP_POD, (hour, namespace, pod))
            (left,) = connection.execute(
                "SELECT count(*) FROM hour WHERE hour = ?", (hour,)
            ).fetchone()
            excess, remaining = excess - (remaining - left), left
    for hour, count in connection.execute(_HOURS_BY_AGE).fetchall():
        if excess <= 0:
            break
        connection.execute("DELETE FROM hour WHERE hour = ?", (hour,))
        excess -= count


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only view of the file's roll-ups, which does not change while the block lasts.

    Raises:
        OtherSchema: another version of netmgr wrote it.
        StateError: the file is damaged or no ledger.
        SetupError: it cannot be read by this user, or not just now.
    """
    try:
        with closing(sqlite_file.open_to_read(path)) as connection:
            connection.execute("BEGIN")
            sqlite_file.refuse_other_schema(connection, path, SCHEMA_VERSION)
            # BEGIN alone takes no snapshot; the first SELECT does.
            connection.execute("SELECT 1 FROM hour LIMIT 1").fetchone()
            yield connection
    except sqlite3.Error as error:
        raise sqlite_file.refusal(path, error) from error


def usage(
    connection: sqlite3.Connection,
    period: Period,
    by: Sequence[By],
    unwritten: Iterable[UsageRow] = (),
) -> list[UsageRow]:
    """Sums of the period's roll-ups by what `by` names and by traffic, with their bounds.

    `unwritten` are roll-ups that the file lacks.
    """
    # Of columns that make no group any value will do: `grouped` leaves them out.
    sums = f"""
SELECT hour, namespace, pod, traffic, sum(bytes), sum(packets), sum(wire), sum(measured) FROM hour
WHERE hour >= ? AND hour < ? AND namespace <> '' GROUP BY {", ".join((*columns_of(by), "traffic"))}
"""  # noqa: S608  column names are this module's own
    lost = "SELECT * FROM hour WHERE hour >= ? AND hour < ? AND namespace = ''"
    rows = [
        usage_row(hour, namespace, pod, traffic, tables.Amount(*counts))
        for statement in (sums, lost)
        for hour, namespace, pod, traffic, *counts in connection.execute(
            statement, (period.first, period.end)
        )
    ]
    rows += unwritten
    counted = grouped((row for row in rows if row["namespace"]), by)
    return bounded(counted, (row for row in rows if not row["namespace"]), by)
