"""Files that are no ledger any more are refused by name; files that cannot be reached are not
called damaged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.errors import OtherSchema, StateError
from netmgr.ledger import store
from netmgr.model import PodRef
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import WEB, Clock, counter, opened


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"this is no database, but long enough to be taken for one " * 100)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE photos (name TEXT)")


def _same_version_without_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 3")


def _former_version_without_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")


def _holed(path: Path) -> None:
    ledger = opened(path, Clock())
    for number in range(200):
        ledger.begin(
            [counter(address=Address(Family.V4, number))], PodRef("team-a", f"pod-{number}")
        )
    ledger.close()
    content = bytearray(path.read_bytes())
    content[8192:12288] = b"\xa5" * 4096
    path.write_bytes(content)


def _truncated(path: Path) -> None:
    _holed(path)
    path.write_bytes(path.read_bytes()[:5000])


def _absurd_row(path: Path) -> None:
    ledger = opened(path, Clock())
    ledger.begin([counter()], WEB)
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE counter SET subject = 'localhost'")


def _absurd_fact(key: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        opened(path, Clock()).close()
        with sqlite3.connect(path) as connection:
            connection.execute("REPLACE INTO fact VALUES (?, 'many')", (key,))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *map(_absurd_fact, ("books", "sequence", "read_at_steady", "gap_at reboot")),
        _not_a_database,
        _foreign,
        _same_version_without_tables,
        _former_version_without_tables,
        _holed,
        _truncated,
        _absurd_row,
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name_and_left_as_it_was(
    path: Path, clock: Clock, damage
) -> None:
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StateError, match=str(path)):
        opened(path, clock)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", [1, -1])
def test_a_file_of_another_schema_is_refused_as_such_and_left_as_it_was(
    path: Path, clock: Clock, step: int
) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter()], WEB)
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {store.SCHEMA_VERSION + step}")
    before = path.read_bytes()
    with pytest.raises(OtherSchema, match=f"schema {store.SCHEMA_VERSION + step}; this one knows"):
        opened(path, clock)
    with pytest.raises(OtherSchema, match=r"mkdir .* && mv "), store.reading(path):
        pass
    assert path.read_bytes() == before
