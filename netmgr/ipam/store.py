"""Remembers attachments, addresses and late DELs in SQLite, through `kill -9`.

Write-ahead logging without a sync per transaction: a killed process loses nothing, because
the kernel holds what was written. A machine that loses power may lose the last moments, but
it loses its pods with them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from netmgr.errors import StateError
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE attachments (
    container_id TEXT NOT NULL, ifname TEXT NOT NULL,
    namespace TEXT NOT NULL, pod TEXT NOT NULL, uid TEXT NOT NULL,
    host_link TEXT NOT NULL, netns TEXT NOT NULL,
    PRIMARY KEY (container_id, ifname)
) WITHOUT ROWID;
CREATE TABLE leases (
    address TEXT PRIMARY KEY, container_id TEXT NOT NULL, ifname TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE resting (address TEXT PRIMARY KEY, released_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE tombstones (
    container_id TEXT NOT NULL, ifname TEXT NOT NULL, deleted_at REAL NOT NULL,
    PRIMARY KEY (container_id, ifname)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything the store knew when it was opened."""

    attachments: dict[AttachmentKey, Attachment]
    resting: dict[Address, float]
    tombstones: dict[AttachmentKey, float]
    boot_id: str


class Store:
    """One SQLite file; every method is one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the file.

        Raises:
            StateError: it is corrupt, or of a schema this version does not know.
        """
        try:
            connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            # The background loop checkpoints, so that no ADD ever waits for a disk.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
            elif version != _SCHEMA_VERSION:
                raise StateError(f"{path}: has schema {version}; this version of netmgr reads {_SCHEMA_VERSION}")
            fault = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise StateError(f"{path}: {error}") from None
        if fault != "ok":
            raise StateError(f"{path}: {fault}")
        return cls(connection, path)

    def remembered(self) -> Remembered:
        """Read everything.

        Raises:
            StateError: a row cannot be understood.
        """
        try:
            with self._lock:
                return self._read()
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StateError(f"{self._path}: {error}") from None

    def _read(self) -> Remembered:
        addresses: dict[AttachmentKey, list[Address]] = {}
        for text, *key in self._connection.execute("SELECT address, container_id, ifname FROM leases"):
            addresses.setdefault(AttachmentKey(*key), []).append(Address.parse(text))
        attachments = {}
        for row in self._connection.execute("SELECT * FROM attachments"):
            key, pod = AttachmentKey(*row[:2]), PodRef(*row[2:5])
            attachments[key] = Attachment(key, pod, tuple(sorted(addresses.get(key, ()))), *row[5:])
        resting = {Address.parse(text): at for text, at in self._connection.execute("SELECT * FROM resting")}
        tombstones = {AttachmentKey(*row[:2]): row[2] for row in self._connection.execute("SELECT * FROM tombstones")}
        boot = self._connection.execute("SELECT value FROM facts WHERE name = 'boot_id'").fetchone()
        return Remembered(attachments, resting, tombstones, boot[0] if boot else "")

    def hold(self, attachment: Attachment) -> None:
        """Remember an attachment and that it holds its addresses."""
        key = attachment.key
        pod = attachment.pod
        row = (key.container_id, key.ifname, pod.namespace, pod.name, pod.uid, attachment.host_link, attachment.netns)
        texts = [str(address) for address in attachment.addresses]
        self._commit(
            ("INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)", [row]),
            ("INSERT INTO leases VALUES (?, ?, ?)", [(text, *row[:2]) for text in texts]),
            ("DELETE FROM resting WHERE address = ?", [(text,) for text in texts]),
        )

    def release(self, attachment: Attachment, released_at: float) -> None:
        """Forget an attachment; its addresses begin to rest."""
        key = (attachment.key.container_id, attachment.key.ifname)
        rows = [(str(address), released_at) for address in attachment.addresses]
        self._commit(
            ("DELETE FROM leases WHERE container_id = ? AND ifname = ?", [key]),
            ("DELETE FROM attachments WHERE container_id = ? AND ifname = ?", [key]),
            ("INSERT OR REPLACE INTO resting VALUES (?, ?)", rows),
        )

    def rested(self, addresses: Iterable[Address]) -> None:
        """Forget that these addresses rested."""
        self._commit(("DELETE FROM resting WHERE address = ?", [(str(address),) for address in addresses]))

    def bury(self, key: AttachmentKey, deleted_at: float) -> None:
        """Remember a DEL that found nothing, so that the ADD it overtook is refused."""
        row = (key.container_id, key.ifname, deleted_at)
        self._commit(("INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?)", [row]))

    def forget_tombstones(self, before: float) -> None:
        """Drop tombstones older than `before`."""
        self._commit(("DELETE FROM tombstones WHERE deleted_at < ?", [(before,)]))

    def begin_boot(self, boot_id: str) -> None:
        """Remember which boot of the kernel the attachments belong to; tombstones count time since boot."""
        self._commit(
            ("INSERT OR REPLACE INTO facts VALUES ('boot_id', ?)", [(boot_id,)]),
            ("DELETE FROM tombstones WHERE ?", [(1,)]),
        )

    def checkpoint(self) -> None:
        """Move the log into the database file."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _commit(self, *statements: tuple[str, Sequence[tuple[object, ...]]]) -> None:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                for statement, rows in statements:
                    self._connection.executemany(statement, rows)
                self._connection.execute("COMMIT")
            except sqlite3.DatabaseError as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise StateError(f"{self._path}: {error}") from None
