"""Remembers attachments, addresses and tombstones in SQLite, across `kill -9`. See `sqlite_file`.

A machine that loses power may lose the last moments, but it loses its pods with them. Giving
something back never fails: where the file cannot be written (a full disk), it waits in memory and
is written before anything else. Taking something is refused then, so that no address is handed out
that a crash would forget.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from netmgr import sqlite_file
from netmgr.errors import DiskFull, StateError
from netmgr.model import Attachment, AttachmentKey, PodRef
from netmgr.prefixes import Address
from netmgr.sqlite_file import StateFile

SCHEMA_VERSION = 2
# `sequence` keeps the order of releases over a restart; `rested` is 1 once a cooldown is over.
_SCHEMA = """
CREATE TABLE attachments (
    container_id TEXT NOT NULL, ifname TEXT NOT NULL,
    namespace TEXT NOT NULL, pod TEXT NOT NULL, uid TEXT NOT NULL,
    host_link TEXT NOT NULL, netns TEXT NOT NULL, started_at REAL NOT NULL,
    PRIMARY KEY (container_id, ifname)
) WITHOUT ROWID;
CREATE TABLE leases (
    address TEXT PRIMARY KEY, container_id TEXT NOT NULL, ifname TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE released (
    sequence INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE,
    released_at REAL NOT NULL, rested INTEGER NOT NULL
);
CREATE TABLE tombstones (
    container_id TEXT NOT NULL, ifname TEXT NOT NULL, deleted_at REAL NOT NULL,
    PRIMARY KEY (container_id, ifname)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


Change = tuple[str, tuple[object, ...]]
"""A statement and its parameters; running it twice changes nothing more."""

_PROBE: Change = ("INSERT OR REPLACE INTO facts VALUES ('probe', '')", ())

# The last parameter of both is when.
_ADD_TOMBSTONE = "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?)"
_FORGET_TOMBSTONES = "DELETE FROM tombstones WHERE deleted_at < ?"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything the store knew when it was opened.

    `cooldown` has when each address was released, in seconds since the boot of that moment;
    `returned` are those whose cooldown is over, oldest release first.
    """

    attachments: dict[AttachmentKey, Attachment]
    cooldown: dict[Address, float]
    returned: list[Address]
    tombstones: dict[AttachmentKey, float]
    boot_id: str


class LeaseStore(StateFile):
    """One SQLite file; every method is one transaction. Thread-safe."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _SCHEMA, SCHEMA_VERSION)
        # One connection for all threads: a transaction must hold no other thread's statements.
        self._lock = threading.Lock()
        # A dictionary for its order, and so that a repeated change waits only once.
        self._pending: dict[Change, None] = {}

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
            raise sqlite_file.refusal(self.path, error) from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self.close()
            raise StateError(f"{self.path}: cannot be understood: {error}") from error

    def _read(self) -> Remembered:
        run = self._connection.execute
        addresses: dict[AttachmentKey, list[Address]] = {}
        for text, *key in run("SELECT address, container_id, ifname FROM leases"):
            addresses.setdefault(AttachmentKey(*map(_text, key)), []).append(Address.parse(text))
        facts = dict(run("SELECT name, value FROM facts"))
        attachments = {}
        # Columns come in the order of the schema.
        for row in run("SELECT * FROM attachments"):
            *identity, host_link, netns = map(_text, row[:7])
            key, pod = AttachmentKey(*identity[:2]), PodRef(*identity[2:])
            held = tuple(sorted(addresses.get(key, ())))
            listed = json.loads(facts.get(_rates_of(key.container_id, key.ifname), "[]"))
            rates = tuple((traffic, int(rate)) for traffic, rate in listed)
            attachments[key] = Attachment(key, pod, held, host_link, netns, float(row[7]), rates)
        cooldown, returned = {}, []
        released = "SELECT address, released_at, rested FROM released ORDER BY sequence"
        for text, at, is_over in run(released):
            address = Address.parse(text)
            if is_over:
                returned.append(address)
            else:
                cooldown[address] = float(at)
        tombstones = {
            AttachmentKey(_text(container), _text(ifname)): float(at)
            for container, ifname, at in run("SELECT * FROM tombstones")
        }
        return Remembered(attachments, cooldown, returned, tombstones, facts.get("boot_id", ""))

    @property
    def durable(self) -> bool:
        """Whether the file holds every change; while it does not, nothing new can be held."""
        return not self._pending

    def hold(self, attachment: Attachment) -> None:
        """Remember an attachment and that it holds its addresses.

        Raises:
            StateError: the file could not be written, or another attachment holds one of the
                addresses; nothing changed.
        """
        key, pod = (attachment.key.container_id, attachment.key.ifname), attachment.pod
        row: tuple[object, ...] = (*key, pod.namespace, pod.name, pod.uid)
        row += (attachment.host_link, attachment.netns, attachment.started_at)
        texts = [str(address) for address in attachment.addresses]
        # INSERT, not REPLACE: the primary key refuses an address that another attachment holds.
        changes: list[Change] = [
            ("INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row),
            *(("INSERT INTO leases VALUES (?, ?, ?)", (text, *key)) for text in texts),
            *(("DELETE FROM released WHERE address = ?", (text,)) for text in texts),
        ]
        if attachment.rates:
            fact = (_rates_of(*key), json.dumps(attachment.rates))
            changes.append(("INSERT OR REPLACE INTO facts VALUES (?, ?)", fact))
        self._take(*changes)

    def renew(self, key: AttachmentKey, started_at: float, netns: str) -> None:
        """Remember a later ADD of an attachment, and by which path it found the sandbox."""
        changed = "UPDATE attachments SET started_at = ?, netns = ?"
        row = (started_at, netns, key.container_id, key.ifname)
        self._give((f"{changed} WHERE container_id = ? AND ifname = ?", row))

    def release(self, attachment: Attachment, released_at: float) -> None:
        """Forget an attachment; its addresses enter their cooldown."""
        key = (attachment.key.container_id, attachment.key.ifname)
        # REPLACE and not UPDATE: a new `sequence` puts the address behind earlier releases.
        released = "INSERT OR REPLACE INTO released (address, released_at, rested) VALUES (?, ?, 0)"
        self._give(
            ("DELETE FROM leases WHERE container_id = ? AND ifname = ?", key),
            ("DELETE FROM attachments WHERE container_id = ? AND ifname = ?", key),
            ("DELETE FROM facts WHERE name = ?", (_rates_of(*key),)),
            *((released, (str(address), released_at)) for address in attachment.addresses),
        )

    def end_cooldown(self, addresses: Iterable[Address]) -> None:
        """Note that these addresses returned; the order of their releases is kept."""
        over = "UPDATE released SET rested = 1 WHERE address = ?"
        self._give(*((over, (str(address),)) for address in addresses))

    def add_tombstone(self, key: AttachmentKey, deleted_at: float) -> None:
        """Remember a DEL, so that the ADD it overtook is refused."""
        self._give((_ADD_TOMBSTONE, (key.container_id, key.ifname, deleted_at)))

    def forget_tombstones(self, before: float) -> None:
        self._give((_FORGET_TOMBSTONES, (before,)))
        with self._lock:
            # A runtime has a DEL for each ADD that a full disk refused, for as long as it is full.
            kept = (change for change in self._pending if not _is_forgotten(change, before))
            self._pending = dict.fromkeys(kept)

    def begin_boot(self, boot_id: str) -> None:
        """Remember the boot of the attachments, and drop tombstones, whose times count from it."""
        self._give(
            ("INSERT OR REPLACE INTO facts VALUES ('boot_id', ?)", (boot_id,)),
            ("DELETE FROM tombstones", ()),
        )

    def flush(self) -> None:
        """Write what could not be written before.

        Raises:
            DiskFull: there is still no room.
            StateError: it still cannot, for another reason.
        """
        if self._pending:
            self._take()

    def restore(self) -> None:
        with self._lock:
            super().restore()

    def checkpoint(self) -> None:
        """Write what waits, sync to the disk, bound the log's size; other calls go on meanwhile.

        Raises:
            StateError: the disk refused, or the file was removed or replaced.
        """
        # Before the sync: what waits in memory would not reach the disk.
        self.flush()
        sqlite_file.checkpoint(self.path, self._opened)
        if sqlite_file.is_long(self.path):
            # It starts over only if nobody writes meanwhile: others wait for what little is left.
            with self._lock:
                sqlite_file.checkpoint(self.path, self._opened)

    def close(self) -> None:
        """Close the file, with one last attempt to write what is not."""
        with suppress(StateError):
            self.flush()
        with self._lock:
            self._connection.close()

    def _take(self, *changes: Change) -> None:
        """Write now, or refuse."""
        with self._lock:
            try:
                self._write(changes)
            except sqlite3.Error as error:
                # A broken constraint is no fault of the disk.
                if not isinstance(error, sqlite3.IntegrityError):
                    # What was refused must not be written later, but `durable` has to be false
                    # until a write succeeds: the probe waits in its place.
                    self._wait(error, [_PROBE])
                is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
                kind = DiskFull if is_full else StateError
                raise kind(f"{self.path}: cannot be written: {error}") from None

    def _give(self, *changes: Change) -> None:
        """Write now, or as soon as that is possible."""
        with self._lock:
            try:
                self._write(changes)
            except sqlite3.Error as error:
                self._wait(error, changes)

    def _write(self, changes: Iterable[Change]) -> None:
        """Write what waits and the changes, all or nothing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for statement, row in (*self._pending, *changes):
                self._connection.execute(statement, row)
            self._connection.execute("COMMIT")
        finally:
            # After any exception, not SQLite's own alone: an open transaction would refuse the
            # next writer.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        if self._pending:
            log.warning("state-durable-again file=%s", self.path)
            self._pending.clear()

    def _wait(self, error: sqlite3.Error, changes: Iterable[Change]) -> None:
        if not self._pending:
            log.error("state-not-durable action=keep-in-memory file=%s error=%s", self.path, error)
        for change in changes:
            # Moved to the end: of two changes to one row the later one has to be written last.
            self._pending.pop(change, None)
            self._pending[change] = None


def _rates_of(container_id: str, ifname: str) -> str:
    """Name of the fact with the limits that an attachment brought along."""
    # A fact, since a table of their own would be another schema, which other versions refuse.
    return f"rates {container_id} {ifname}"


def _is_forgotten(change: Change, before: float) -> bool:
    """Whether forgetting tombstones older than `before` leaves nothing of this change."""
    statement, row = change
    if statement not in (_ADD_TOMBSTONE, _FORGET_TOMBSTONES):
        return False
    at = row[-1]
    return isinstance(at, float) and at < before


def _text(value: object) -> str:
    # The tables are not STRICT: a damaged row may have any type in any column.
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
