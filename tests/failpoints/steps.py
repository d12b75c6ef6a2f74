"""Durable steps of this process: what it changes that a kill leaves behind, one by one.

A step is one request that has the kernel change something, one transaction that SQLite commits, one
name or byte of a file. Each kind has one place in the product, or in the standard library, that all
of its steps pass; `watch` wraps these places. So the product has no hooks, and pays for none.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import NamedTuple

from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.links import RTM_NEWLINK
from netmgr.kernel.netlink import Netlink, Operation
from netmgr.kernel.xtables.variant import Variant
from netmgr.prefixes import Family

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(f"{ROOT}/{name}/" for name in ("netmgr", "cni"))

_CREATING = os.O_CREAT | os.O_TRUNC
_NAMES = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink", "chmod")
_NAMES += ("fchmod", "chown", "utime")
"""Functions of `os` that change a file system whenever they succeed."""
_READING = re.compile(r"\s*(SELECT|BEGIN|ROLLBACK|WITH|PRAGMA(?! (wal_checkpoint|journal_mode)))")
_LISTING = re.compile(r"\s*(list\b.*)?$")
_NFT_GETS = frozenset({1, 4, 7, 10, 13, 16, 19, 20, 23})
_CONNTRACK_GETS = frozenset({1, 4, 5})
_IPSET_CHANGES = frozenset({2, 3, 4, 5, 6, 9, 10})
"""Messages of the subsystems of nfnetlink (linux/netfilter/…), without the subsystem."""
_BATCH_MARKS = 0
_LINK_CHANGE = 12
"""Where `ifi_change` is in the body of a request for a link (rtnetlink(7)), its last part."""
_SUBSYSTEMS: dict[int, Callable[[int], bool]] = {
    _BATCH_MARKS: lambda _: False,
    1: lambda kind: kind not in _CONNTRACK_GETS,
    # Queues: the agent's lock.
    3: lambda _: True,
    6: lambda kind: kind in _IPSET_CHANGES,
    10: lambda kind: kind not in _NFT_GETS,
    # nft_compat, which only says what it has.
    11: lambda _: False,
}


class Frame(NamedTuple):
    """Where the product is: a file below the repository, a function, and a line."""

    path: str
    function: str
    line: int


class Step(NamedTuple):
    """One durable step; `frames` are the product's, outermost first."""

    kind: str
    text: str
    frames: tuple[Frame, ...]

    @property
    def site(self) -> str:
        """Its call site, without lines: the same in every run of one scenario."""
        return " > ".join(f"{one.path.removesuffix('.py')}:{one.function}" for one in self.frames)


Watcher = Callable[[Step], AbstractContextManager[object]]
"""Is entered before a step and left after it, also if that failed."""


def frames() -> tuple[Frame, ...]:
    """The product's part of the calling thread's stack."""
    found: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PRODUCT):
            path = code.co_filename.removeprefix(f"{ROOT}/")
            found.append(Frame(path, code.co_name, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


def watch(watcher: Watcher) -> None:
    """Have every durable step of this process pass the watcher, until the process ends."""

    def step(kind: str, text: str) -> AbstractContextManager[object]:
        found = frames()
        # What the standard library or a test does by itself is none of the product's steps.
        return watcher(Step(kind, text, found)) if found else nullcontext()

    _watch_netlink(step)
    _watch_libnftables(step)
    _watch_iptables(step)
    _watch_files(step)
    sqlite3.connect = partial(sqlite3.connect, factory=connection_class(step))


Begin = Callable[[str, str], AbstractContextManager[object]]
"""Begins a step of this kind and text."""


def _watch_netlink(step: Begin) -> None:
    original = Netlink._exchange

    def exchange(self: Netlink, operations: Iterable, silent: int = 0) -> Iterator:
        listed = list(operations)
        is_netfilter = self._socket.proto != socket.NETLINK_ROUTE
        texts = [one.text for one in listed if _changes(one, is_netfilter=is_netfilter)]
        answers = original(self, listed, silent)
        if texts:
            # Changes are made by the system call that sends them, so they are over with the first
            # answer.
            with step("netlink", "; ".join(texts)):
                first = next(answers)
            yield first
        yield from answers

    Netlink._exchange = exchange


def _changes(operation: Operation, *, is_netfilter: bool) -> bool:
    kind = operation.type
    if is_netfilter:
        return _SUBSYSTEMS[kind >> 8](kind & 0xFF)
    # A request to change nothing of a link, to learn whether it is there.
    if (kind, operation.body[_LINK_CHANGE:]) == (RTM_NEWLINK, bytes(4)):
        return False
    # rtnetlink's messages come in fours: new, delete, get, set.
    return kind & 3 != 2


def _watch_libnftables(step: Begin) -> None:
    original = LibNftables.run

    def run(self: LibNftables, commands: str, *, json: bool = False) -> str:
        if all(map(_LISTING.match, commands.splitlines())):
            return original(self, commands, json=json)
        with step("nft", commands):
            return original(self, commands, json=json)

    LibNftables.run = run


def _watch_iptables(step: Begin) -> None:
    original = Variant.run_script

    def run_script(self: Variant, script: str, family: Family) -> None:
        # A table after the other, as the program itself commits them: a kill may come in between.
        for part in script.split("COMMIT\n")[:-1]:
            with step("iptables", f"{self.name} {family} {part.splitlines()[0]}"):
                original(self, f"{part}COMMIT\n", family)

    Variant.run_script = run_script


def _watch_files(step: Begin) -> None:
    opened, written, bound = os.open, os.write, socket.socket.bind

    def named(name: str) -> None:
        original = getattr(os, name)

        @wraps(original)
        def called(*arguments: object, **named: object) -> object:
            with step("file", f"{name} {' '.join(map(str, arguments))}"):
                return original(*arguments, **named)

        setattr(os, name, called)

    def open_file(path: object, flags: int, *arguments: object, **named: object) -> int:
        is_new = flags & _CREATING and (flags & os.O_TRUNC or not os.path.lexists(path))
        with step("file", f"create {path}") if is_new else nullcontext():
            return opened(path, flags, *arguments, **named)

    def write(descriptor: int, content: bytes) -> int:
        # A setting of the kernel is such a file, too; pipes and sockets are not.
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        with step("file", f"write {content[:40]!r}") if is_file else nullcontext():
            return written(descriptor, content)

    def bind(self: socket.socket, address: object) -> None:
        with step("file", f"bind {address}") if isinstance(address, str) else nullcontext():
            bound(self, address)

    for name in _NAMES:
        named(name)
    os.open, os.write, socket.socket.bind = open_file, write, bind


def connection_class(step: Begin, *, is_fine: bool = False) -> type[sqlite3.Connection]:
    """A connection of SQLite whose durable statements are steps.

    A statement within a transaction is none: killed there, the process leaves what was before. With
    `is_fine` it is one all the same, and so is each row that it writes.
    """

    class Connection(sqlite3.Connection):
        def _step(self, statement: str) -> AbstractContextManager[object]:
            is_part = self.in_transaction and not statement.startswith("COMMIT")
            if not is_fine and (is_part or _READING.match(statement)):
                return nullcontext()
            return step("sqlite", statement)

        def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            with self._step(statement):
                return super().execute(statement, *parameters)

        def executemany(self, statement: str, rows: Iterable) -> sqlite3.Cursor:
            with self._step(statement):
                return super().executemany(statement, self._each(rows) if is_fine else rows)

        def _each(self, rows: Iterable) -> Iterator:
            for row in rows:
                with step("sqlite", "a row"):
                    yield row

        def executescript(self, script: str) -> sqlite3.Cursor:
            with step("sqlite", "a script in one transaction"):
                return super().executescript(script)

        def backup(self, *arguments: object, **named: object) -> None:
            with step("sqlite", "backup"):
                super().backup(*arguments, **named)

        def close(self) -> None:
            # The last one to close a file writes the log back and removes it.
            with step("sqlite", "close"):
                super().close()

    return Connection


@contextmanager
def connections(step: Begin) -> Iterator[None]:
    """Watch the connections alone that are made within the block, down to each row."""
    former = sqlite3.connect
    sqlite3.connect = partial(former, factory=connection_class(step, is_fine=True))
    try:
        yield
    finally:
        sqlite3.connect = former
