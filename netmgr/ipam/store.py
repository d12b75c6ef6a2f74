"""Remembers attachments, addresses and late DELs in SQLite, through `kill -9`. See `sqlite_file`.

A machine that loses power may lose the last moments, but it loses its pods with them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from netmgr import sqlite_file
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
            StateError: it is damaged, or of a schema this version does not know.
            SetupError: it cannot be reached or made; it may be perfectly good.
        """
        return cls(sqlite_file.open_file(path, _SCHEMA, _SCHEMA_VERSION), path)

    def remembered(self) -> Remembered:
        """Read everything; closes the file when that fails.

        Raises:
            StateError: a row cannot be understood.
            SetupError: the file cannot be read just now.
        """
        try:
            with self._lock:
                return self._read()
        except sqlite3.Error as error:
            self.close()
            raise sqlite_file.refusal(self._path, error) from error
        except (ValueError, TypeError) as error:
            self.close()
            raise StateError(f"{self._path}: cannot be understood: {error}") from error

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
        """Sync to the disk and bound the log's size; other calls go on meanwhile.

        Raises:
            StateError: the disk refused.
        """
        sqlite_file.checkpoint(self._path)

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
