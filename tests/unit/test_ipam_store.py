"""What is called damage, and what happens while the store cannot be written."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.errors import SetupError, StateError
from netmgr.ipam.store import LeaseStore
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address

KEY = AttachmentKey("container", "eth0")
ADDRESS = Address.parse("10.1.0.3")
HELD = Attachment(KEY, PodRef("ns", "web"), (ADDRESS,), "nm0", "/run/netns/x", started_at=7.5)
OTHER = replace(HELD, key=AttachmentKey("other", "eth0"), addresses=(Address.parse("10.1.0.4"),))


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may grow, or be written, any more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "statement", ["PRAGMA user_version = 99", "DROP TABLE leases", "CREATE TABLE photos (name)"]
)
def test_a_file_of_another_make_is_refused_by_name(path: Path, statement: str) -> None:
    if statement.startswith("DROP"):
        LeaseStore(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(statement)
    with pytest.raises(StateError, match=str(path)):
        LeaseStore(path).remembered()


def test_a_full_disk_is_not_called_damage_and_leaves_the_file_as_it_was(path: Path) -> None:
    with pytest.raises(SetupError), full_disk():
        LeaseStore(path)
    with closing(LeaseStore(path)) as store:
        store.hold(HELD)
    with pytest.raises(SetupError), full_disk():
        LeaseStore(path).remembered()
    with closing(LeaseStore(path)) as store:
        assert store.remembered().attachments == {KEY: HELD}


def test_on_a_full_disk_nothing_is_held_and_releases_are_written_later(path: Path) -> None:
    store = LeaseStore(path)
    store.hold(HELD)
    with full_disk():
        store.release(HELD, 12.0)
        store.add_tombstone(KEY, 11.0)
        for attempt in (lambda: store.hold(OTHER), store.flush):
            with pytest.raises(StateError, match="cannot be written"):
                attempt()
    assert not store.durable
    with closing(LeaseStore(path)) as found:
        assert found.remembered().attachments == {KEY: HELD}
    store.flush()
    assert store.durable
    with closing(LeaseStore(path)) as found:
        remembered = found.remembered()
    assert (remembered.attachments, remembered.cooldown) == ({}, {ADDRESS: 12.0})
    assert remembered.tombstones == {KEY: 11.0}
    store.close()


def test_a_refused_hold_alone_already_says_that_the_state_is_not_durable(path: Path) -> None:
    with closing(LeaseStore(path)) as store:
        with full_disk(), pytest.raises(StateError):
            store.hold(HELD)
        assert not store.durable
        store.hold(HELD)
        assert store.durable


def test_tombstones_that_a_full_disk_kept_back_go_from_memory_once_they_are_forgotten(
    path: Path,
) -> None:
    keys = [AttachmentKey(f"container-{number}", "eth0") for number in range(1000)]
    with closing(LeaseStore(path)) as store:
        store.add_tombstone(KEY, 1.0)
        with full_disk():
            store.release(HELD, 12.0)
            for at, key in enumerate(keys):
                store.add_tombstone(key, float(at))
            for before in (500.0, 995.0):
                store.forget_tombstones(before)
            assert len(store._pending) < 20
        store.flush()
        remembered = store.remembered()
    assert remembered.tombstones == {keys[at]: float(at) for at in range(995, 1000)}
    assert remembered.cooldown == {ADDRESS: 12.0}


def test_an_address_that_is_held_cannot_be_held_again(path: Path) -> None:
    with closing(LeaseStore(path)) as store:
        store.hold(HELD)
        with pytest.raises(StateError, match="UNIQUE"):
            store.hold(replace(OTHER, addresses=HELD.addresses))
        assert store.durable


def test_what_sqlite_cannot_take_is_rolled_back_and_the_next_request_is_served(path: Path) -> None:
    """As long as text may come from outside: Python raises before SQLite sees it, with the
    transaction open.
    """
    broken = replace(OTHER, key=AttachmentKey("container", "eth\udcff"))
    with closing(LeaseStore(path)) as store:
        for attempt in (lambda: store.hold(broken), lambda: store.add_tombstone(broken.key, 1.0)):
            with pytest.raises(UnicodeEncodeError):
                attempt()
            store.hold(HELD)
            store.release(HELD, 1.0)
        assert store.durable


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE attachments SET started_at = x'00'",
        "UPDATE attachments SET host_link = x'00ff'",
        "UPDATE attachments SET namespace = x'6e73'",
        "UPDATE tombstones SET deleted_at = 'x'",
        "UPDATE released SET released_at = x'01'",
        "UPDATE facts SET value = '[[\"all-in\", Infinity]]'",
    ],
)
def test_a_value_of_another_type_is_damage(path: Path, statement: str) -> None:
    """The tables are not STRICT, and a flipped bit may make bytes of a text."""
    with closing(LeaseStore(path)) as store:
        store.hold(replace(HELD, rates=(("all-in", 10**6),)))
        store.add_tombstone(AttachmentKey("gone", "eth0"), 1.0)
        store.hold(OTHER)
        store.release(OTHER, 2.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(statement).rowcount
    with pytest.raises(StateError, match=str(path)):
        LeaseStore(path).remembered()


def test_damage_whose_report_is_no_text_is_damage(path: Path) -> None:
    """SQLite quotes the file in its message, and Python cannot decode that."""
    LeaseStore(path).close()
    content = path.read_bytes()
    assert b"PRIMARY KEY (container_id" in content
    path.write_bytes(content.replace(b"container_id TEXT", b"cont\xd5iner_id TEXT"))
    with pytest.raises(StateError, match=str(path)):
        LeaseStore(path).remembered()
