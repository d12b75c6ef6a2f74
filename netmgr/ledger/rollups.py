"""The roll-ups of `history.py` in the ledger's SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from netmgr import sqlite_file
from netmgr.ledger.account import Amount
from netmgr.ledger.history import By, Period, Retention, Slot, Usage, columns_of

SCHEMA = """
CREATE TABLE hour (
    hour INTEGER, namespace TEXT, pod TEXT, traffic TEXT,
    bytes INTEGER NOT NULL, packets INTEGER NOT NULL,
    PRIMARY KEY (hour, namespace, pod, traffic)
) STRICT, WITHOUT ROWID;
"""

MOST = 1 << 51
"""The most that one roll-up holds, two petabytes: beyond are only counters that somebody set, and sums must fit."""

ADD = f"""
INSERT INTO hour VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET
    bytes = min(bytes + excluded.bytes, {MOST}),
    packets = min(packets + excluded.packets, {MOST})
"""  # noqa: S608  a constant of this module

_OLDEST_KEPT = "SELECT min(hour) FROM (SELECT DISTINCT hour FROM hour ORDER BY hour DESC LIMIT ?)"
_HOURS_BY_AGE = "SELECT hour, count(*) FROM hour GROUP BY hour ORDER BY hour"
_SMALLEST_PODS = """
SELECT namespace, pod FROM hour WHERE hour = ? AND pod <> ''
GROUP BY namespace, pod ORDER BY max(bytes), namespace, pod LIMIT ?
"""
_FOLD = f"""
INSERT INTO hour
SELECT hour, namespace, '', traffic, bytes, packets FROM hour WHERE (hour, namespace, pod) = (?, ?, ?)
ON CONFLICT DO UPDATE SET
    bytes = min(bytes + excluded.bytes, {MOST}),
    packets = min(packets + excluded.packets, {MOST})
"""  # noqa: S608  a constant of this module
_DROP_POD = "DELETE FROM hour WHERE (hour, namespace, pod) = (?, ?, ?)"


def rows(additions: Iterable[tuple[Slot, Amount]]) -> list[tuple[int, str, str, str, int, int]]:
    """Parameters of `ADD`."""
    return [
        (hour, space, pod, str(way), min(sum_.bytes, MOST), min(sum_.packets, MOST))
        for (hour, space, pod, way), sum_ in additions
    ]


def prune(connection: sqlite3.Connection, retention: Retention) -> None:
    """Drop and fold what `retention` leaves no room for. The caller holds a transaction."""
    if retention.hours == 0:
        connection.execute("DELETE FROM hour")
        return
    (oldest,) = connection.execute(_OLDEST_KEPT, (retention.hours,)).fetchone()
    connection.execute("DELETE FROM hour WHERE hour < ?", (oldest,))
    (count,) = connection.execute("SELECT count(*) FROM hour").fetchone()
    excess = count - retention.rows
    if excess > 0:
        excess = _fold(connection, excess)
    if excess > 0:
        _drop(connection, excess)


def _fold(connection: sqlite3.Connection, excess: int) -> int:
    """Fold pods into namespaces, oldest hour and smallest pod first; how many rows are still too many."""
    for hour, count in connection.execute(_HOURS_BY_AGE).fetchall():
        # A pod saves its rows less those that its namespace did not have yet: perhaps none.
        remaining = count
        while excess > 0 and (pods := connection.execute(_SMALLEST_PODS, (hour, excess)).fetchall()):
            for namespace, pod in pods:
                connection.execute(_FOLD, (hour, namespace, pod))
                connection.execute(_DROP_POD, (hour, namespace, pod))
            (left,) = connection.execute("SELECT count(*) FROM hour WHERE hour = ?", (hour,)).fetchone()
            excess, remaining = excess - (remaining - left), left
    return excess


def _drop(connection: sqlite3.Connection, excess: int) -> None:
    """Drop the oldest hours."""
    for hour, count in connection.execute(_HOURS_BY_AGE).fetchall():
        if excess <= 0:
            break
        connection.execute("DELETE FROM hour WHERE hour = ?", (hour,))
        excess -= count


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only view of the file, which does not change while the block lasts.

    Raises:
        StateError: the file is damaged or no ledger of this version.
        SetupError: it cannot be read by this user, or not just now.
    """
    try:
        with closing(sqlite_file.open_to_read(path)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM hour LIMIT 1").fetchone()  # from here on the view stands still
            yield connection
    except sqlite3.Error as error:
        raise sqlite_file.refusal(path, error) from error


def usage(connection: sqlite3.Connection, period: Period, by: Sequence[By]) -> list[Usage]:
    """Sums of the period's roll-ups by what `by` names and by traffic."""
    columns = columns_of(by)
    chosen = [name if name in columns else blank for name, blank in (("hour", "0"), ("namespace", "''"), ("pod", "''"))]
    statement = f"""
SELECT {", ".join(chosen)}, traffic, sum(bytes), sum(packets) FROM hour
WHERE hour >= ? AND hour < ? GROUP BY {", ".join((*columns, "traffic"))}
"""  # noqa: S608  column names are this module's own
    return [Usage(*row) for row in connection.execute(statement, (period.first, period.end))]


def extent(connection: sqlite3.Connection) -> tuple[int | None, int | None]:
    """The first and the last hour there is."""
    first, last = connection.execute("SELECT min(hour), max(hour) FROM hour").fetchone()
    return first, last
