"""What is called damage, and what happens while the store cannot be written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.errors import SetupError, StateError
from netmgr.ipam.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ipam.sqlite"


def test_a_file_that_another_program_has_locked_is_not_called_damaged(path: Path) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SetupError, match="is locked"):
            Store.open(path)
    Store.open(path).close()


def test_a_file_that_cannot_be_made_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be opened"):
        Store.open(tmp_path / "missing" / "ipam.sqlite")


@pytest.mark.parametrize("statement", ["PRAGMA user_version = 99", "DROP TABLE leases", "CREATE TABLE photos (name)"])
def test_a_file_of_another_make_is_refused_by_name(path: Path, statement: str) -> None:
    if statement.startswith("DROP"):
        Store.open(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(statement)
    with pytest.raises(StateError, match=str(path)):
        Store.open(path).remembered()
