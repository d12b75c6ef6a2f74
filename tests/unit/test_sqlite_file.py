"""The agent's SQLite files: how they are opened, synced, set aside and made again."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from netmgr import sqlite_file
from netmgr.errors import OtherSchema, SetupError, StateError
from netmgr.sqlite_file import StateFile

SCHEMA = "CREATE TABLE kept (value TEXT);"


def opened(path: Path, version: int = 1) -> sqlite3.Connection:
    return sqlite_file.open_file(path, SCHEMA, version)


def values(connection: sqlite3.Connection) -> list[str]:
    return [value for (value,) in connection.execute("SELECT value FROM kept ORDER BY value")]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@contextmanager
def held_by_another_program(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_connection_waits_for_no_disk_and_begins_no_transaction_of_its_own(path):
    with closing(opened(path)) as connection:
        assert pragma(connection, "journal_mode") == "wal"
        assert pragma(connection, "synchronous") == 1
        assert pragma(connection, "wal_autocheckpoint") == 0
        assert pragma(connection, "journal_size_limit") == sqlite_file.LOG_BYTES
        connection.execute("INSERT INTO kept VALUES ('a')")
        assert not connection.in_transaction
        found = []
        reader = threading.Thread(target=lambda: found.extend(values(connection)))
        reader.start()
        reader.join()
        assert found == ["a"]


@pytest.mark.alone
def test_nobody_is_waited_for_longer_than_the_bound(path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.02)
    opened(path).close()
    with held_by_another_program(path):
        began = time.monotonic()
        with pytest.raises(SetupError, match="cannot be opened: database is locked"):
            opened(path)
        with pytest.raises(StateError, match=f"{path}: cannot be synced to the disk: .*locked"):
            sqlite_file.checkpoint(path, sqlite_file.identities(path))
        with (
            pytest.raises(sqlite3.OperationalError, match="locked"),
            closing(sqlite_file.open_to_read(path)) as reader,
        ):
            values(reader)
        assert time.monotonic() - began < 4, "SQLite's own bound is 5 seconds each"


def test_a_file_that_is_not_netmgrs_is_refused(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE photos (name)")
    with pytest.raises(StateError, match=f"{path}: was not made by netmgr: it has tables, and no"):
        opened(path, 3)


@pytest.mark.parametrize(("version", "who"), [(1, "a newer"), (4, "an earlier")])
def test_a_file_of_another_schema_is_refused_with_the_way_back(path, version, who):
    opened(path, 3).close()
    before = path.read_bytes()
    with pytest.raises(OtherSchema) as caught:
        opened(path, version)
    message = str(caught.value)
    assert message.startswith(f"{path}: {who} netmgr wrote it (schema 3; this one knows {version})")
    assert message.endswith(f"mkdir {path.parent}/kept && mv {path}* {path.parent}/kept")
    assert path.read_bytes() == before


def test_a_damaged_file_is_refused(path):
    with closing(opened(path)) as connection:
        connection.execute("CREATE INDEX by_value ON kept (value)")
        rows = [("x" * 99 + str(number),) for number in range(99)]
        connection.executemany("INSERT INTO kept VALUES (?)", rows)
    content = bytearray(path.read_bytes())
    # The last page is one of the index.
    content[-3000:] = b"\xa5" * 3000
    path.write_bytes(content)
    with pytest.raises(StateError, match=f"^{path}: is damaged"):
        opened(path)
    with closing(sqlite3.connect(path)) as found:
        assert sqlite_file.is_damaged(found)


def test_a_whole_file_is_not_damaged_and_neither_is_one_that_is_locked(path):
    with closing(opened(path)) as connection:
        assert not sqlite_file.is_damaged(connection)
    with closing(sqlite3.connect(path, timeout=0)) as waiting, held_by_another_program(path):
        assert not sqlite_file.is_damaged(waiting)


def test_an_error_without_a_code_is_of_the_file():
    """As sqlite3 raises when rows are not what its own statement asked for."""
    error = sqlite_file.refusal(Path("x"), sqlite3.DataError("too few columns"))
    assert isinstance(error, StateError)
    assert str(error) == "x: is damaged or not a state file of netmgr: too few columns"


def test_what_is_set_aside_gets_the_reason_and_the_time_and_keeps_its_companions(path):
    for suffix in sqlite_file.COMPANIONS:
        path.with_name(path.name + suffix).write_text(suffix)
    kept = sqlite_file.set_aside(path, "corrupt")
    assert re.fullmatch(rf"{re.escape(path.name)}\.corrupt-\d{{8}}T\d{{6}}", kept.name)
    assert names(path.parent) == [kept.name, f"{kept.name}-shm", f"{kept.name}-wal"]
    assert kept.with_name(f"{kept.name}-wal").read_text() == "-wal"


def test_what_is_to_stay_is_not_set_aside(path):
    path.write_text("new")
    log = path.with_name(f"{path.name}-wal")
    log.write_text("ours")
    kept = sqlite_file.set_aside(path, "replaced", {"-wal": sqlite_file.identities(path)["-wal"]})
    assert names(path.parent) == sorted([kept.name, log.name])


def test_a_file_may_keep_its_name_until_another_takes_it(path):
    path.write_text("old")
    path.with_name(f"{path.name}-wal").write_text("log")
    kept = sqlite_file.set_aside(path, "replaced", leave_file=True)
    assert names(path.parent) == sorted([path.name, kept.name, f"{kept.name}-wal"])
    assert kept.samefile(path)


def test_a_file_whose_folder_is_missing_is_named(tmp_path):
    with pytest.raises(SetupError, match=f"^{tmp_path}/none/file: cannot be opened: unable to"):
        opened(tmp_path / "none" / "file")


def test_what_cannot_be_set_aside_is_named(tmp_path):
    path = tmp_path / ("x" * 250)
    path.touch()
    with pytest.raises(
        StateError, match=f"^{path}: is corrupt and cannot be renamed: File name too"
    ):
        sqlite_file.set_aside(path, "corrupt")


@pytest.mark.parametrize("gone", [sqlite_file.COMPANIONS, ("",), ("", "-wal")])
def test_a_file_that_was_replaced_is_made_again_from_the_connection(path, gone):
    former = opened(path)
    former.execute("INSERT INTO kept VALUES ('a')")
    identities = sqlite_file.identities(path)
    # Open, so that no other file gets its inode.
    former_log = path.with_name(f"{path.name}-wal").open("rb")
    for suffix in gone:
        path.with_name(path.name + suffix).unlink()
    path.write_text("another program's")
    made = sqlite_file.put_back(former, path, identities)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found: list[str] = []
    with closing(made), former_log:
        made.execute("INSERT INTO kept VALUES ('b')")
        assert not made.in_transaction
        assert pragma(made, "synchronous") == 1
        reader = threading.Thread(target=lambda: found.extend(values(made)))
        reader.start()
        reader.join()
        assert found == ["a", "b"]
        aside = [name for name in names(path.parent) if ".replaced-" in name]
        assert [(path.parent / name).read_text() for name in aside] == ["another program's"]
        # The former log is that of the file before: read again, it would undo what came since.
        assert sqlite_file.identities(path)["-wal"] != identities["-wal"]
        files = [path.name, f"{path.name}-shm", f"{path.name}-wal"]
        assert names(path.parent) == sorted([*aside, *files])
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        values(former)


def test_a_state_file_notices_that_it_is_lost_and_is_restored_with_what_it_held(path):
    kept = StateFile(path, SCHEMA, 1)
    kept._connection.execute("INSERT INTO kept VALUES ('a')")
    assert not kept.is_lost()
    path.unlink()
    path.write_text("another program's")
    assert kept.is_lost()
    kept.restore()
    assert not kept.is_lost()
    with closing(kept._connection), closing(sqlite3.connect(path)) as reader:
        assert values(reader) == ["a"]
    aside = [name for name in names(path.parent) if ".replaced-" in name]
    assert [(path.parent / name).read_text() for name in aside] == ["another program's"]


def test_a_file_is_its_owners_alone_and_one_that_is_there_is_not_touched(path):
    opened(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    os.utime(path, (1, 1))
    opened(path).close()
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime) == (0o640, 1)


def test_the_connection_stays_in_use_if_its_file_cannot_be_made_again(path):
    with closing(opened(path)) as connection:
        connection.execute("INSERT INTO kept VALUES ('a')")
        identities = sqlite_file.identities(path)
        path.with_name(f".{path.name}.restored").mkdir()
        with pytest.raises(
            StateError, match=f"^{path}: was removed or replaced and cannot be.*rest"
        ):
            sqlite_file.put_back(connection, path, identities)
        assert values(connection) == ["a"]


def test_a_checkpoint_brings_the_log_into_the_file_unless_a_reader_needs_it(path):
    with closing(opened(path)) as connection:
        connection.execute("INSERT INTO kept VALUES ('a')")
        own = sqlite_file.identities(path)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert values(reader) == ["a"]
            connection.execute("INSERT INTO kept VALUES ('b')")
            assert not sqlite_file.checkpoint(path, own)
        before = sqlite_file.content_of(path)
        assert sqlite_file.checkpoint(path, own)
        assert sqlite_file.content_of(path) != before
    path.unlink()
    with pytest.raises(StateError, match=f"^{path}: cannot be synced to the disk: unable to open"):
        sqlite_file.checkpoint(path, sqlite_file.identities(path))
    assert sqlite_file.content_of(path) is None


def test_a_checkpoint_leaves_a_file_alone_that_is_not_its_owners(path):
    """SQLite would copy the log into it, and think that the owner's has it."""
    other = path.with_name("other")
    other.write_text("another program's")
    with closing(opened(path)) as connection:
        connection.execute("INSERT INTO kept VALUES ('a')")
        own = sqlite_file.identities(path)
        for _ in range(2):  # replaced, then removed
            if other.exists():
                other.replace(path)
            else:
                assert path.read_text() == "another program's"
                path.unlink()
            with pytest.raises(
                StateError, match=f"^{path}: was removed or replaced, and is not sy"
            ):
                sqlite_file.checkpoint(path, own)
        with closing(sqlite_file.put_back(connection, path, own)) as made:
            assert values(made) == ["a"]


def test_a_log_is_long_from_its_bound_on(path):
    log = path.with_name(f"{path.name}-wal")
    assert not sqlite_file.is_long(path)
    for size, is_long in ((sqlite_file.LOG_BYTES, False), (sqlite_file.LOG_BYTES + 1, True)):
        log.touch()
        with log.open("r+b") as stream:
            stream.truncate(size)
        assert sqlite_file.is_long(path) is is_long


def test_a_file_opened_to_read_cannot_be_changed_and_a_missing_one_is_named(path):
    with pytest.raises(SetupError, match=f"^{path}: cannot be read: No such file or directory$"):
        sqlite_file.open_to_read(path)
    assert not path.exists()
    odd = path.with_name("a ?#b%20")
    opened(odd).close()
    with closing(sqlite_file.open_to_read(odd)) as connection:
        assert values(connection) == []
        assert pragma(connection, "query_only") == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("INSERT INTO kept VALUES ('a')")
        assert not connection.in_transaction
