"""The legacy xtables tables through python-iptables, as far as netmgr needs them.

libiptc reads a whole table, edits the copy, and writes it back; on the way back it hands
every rule that it did not touch the counts it had, to the packet. Only libiptc's
table-level calls are used: python-iptables' Rule objects would have to understand every
rule of everybody, look into all tables to resolve a target, and redirect this process's
standard output to learn a rule's options.

python-iptables keeps one handle a table for the whole process, so one lock guards them all.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from netmgr.errors import KernelError, SetupError, TryAgainLater
from netmgr.prefixes import Family
from netmgr.rules import xt_entries, xtables_lock
from netmgr.rules.xt_table import Entry, Opener

_PROCESS_LOCK = threading.RLock()


class LegacyTable:
    """One table of one family, read fresh. Valid only while `opened`."""

    def __init__(self, handle: Any, family: Family) -> None:  # noqa: ANN401 - python-iptables is untyped
        self._table = handle
        self.family = family
        self.changed = False

    def entries(self, chain: str) -> list[Entry]:
        """The chain's rules in order; none if there is no such chain."""
        found: list[Entry] = []
        if not self.has_chain(chain):
            return found
        entry = self._table.first_rule(chain)
        while entry:
            raw = ctypes.string_at(ctypes.addressof(entry), entry.next_offset)
            found.append(Entry(raw, (self._table.get_target(entry) or b"").decode(), self.family))
            entry = self._table.next_rule(entry)
        return found

    def has_chain(self, chain: str) -> bool:
        """Whether the table has this chain."""
        return bool(self._table.is_chain(chain))

    def create_chain(self, chain: str) -> None:
        """Make an empty chain."""
        self.changed = True
        self._table.create_chain(chain)

    def flush_chain(self, chain: str) -> None:
        """Remove the chain's rules."""
        self.changed = True
        self._table.flush_entries(chain)

    def delete_chain(self, chain: str) -> None:
        """Remove an empty chain that nothing jumps to."""
        self.changed = True
        self._table.delete_chain(chain)

    def append(self, chain: str, entry: bytes) -> None:
        """Put a rule at the chain's end, with the counts that its bytes hold."""
        self.changed = True
        self._table.append_entry(chain, ctypes.create_string_buffer(entry, len(entry)))

    def insert(self, chain: str, entry: bytes) -> None:
        """Put a rule at the chain's head, with the counts that its bytes hold."""
        self.changed = True
        self._table.insert_entry(chain, ctypes.create_string_buffer(entry, len(entry)), 0)

    def delete(self, chain: str, entry: Entry) -> None:
        """Remove the first rule of the chain that equals this one."""
        self.changed = True
        # Read back, a verdict is an offset without a name; libiptc looks rules up by the name.
        named = xt_entries.with_target(entry.raw, entry.target, self.family)
        mask = (ctypes.c_ubyte * len(named))(*([0xFF] * len(named)))
        self._table.delete_entry(chain, ctypes.create_string_buffer(named, len(named)), mask)


@contextmanager
def opened(name: str, family: Family) -> Iterator[LegacyTable]:
    """Read a table of the calling thread's namespace, and write it back if the block changed it.

    Whoever changes anything holds the xtables lock around this.

    Raises:
        SetupError: libiptc is not installed.
        TryAgainLater: somebody without the lock changed the table at the same moment.
        KernelError: the kernel refused; nothing was changed.
    """
    iptc = _iptc()
    program = "iptables-legacy" if family is Family.V4 else "ip6tables-legacy"
    with _PROCESS_LOCK:
        try:
            handle = (iptc.Table if family is Family.V4 else iptc.Table6)(name, autocommit=False)
            handle.refresh()
            try:
                table = LegacyTable(handle, family)
                yield table
                if table.changed:
                    handle.commit()
            finally:
                handle.close()
        except iptc.IPTCError as error:
            if os.strerror(errno.EAGAIN) in str(error):
                raise TryAgainLater(f"{program} -t {name}: another program changed the table meanwhile") from None
            raise KernelError(f"{program} -t {name}", details=str(error)) from None


class LegacyTables:
    """The legacy tables, changed under the lock that iptables takes.

    `lock_wait_seconds` bounds how long a change waits for another program to finish its own.
    """

    name = "iptables-legacy"

    def __init__(self, *, lock_path: Path = xtables_lock.LOCK_PATH, lock_wait_seconds: float = 5) -> None:
        self._lock_path = lock_path
        self._lock_wait_seconds = lock_wait_seconds

    @staticmethod
    def opened(name: str, family: Family) -> AbstractContextManager[LegacyTable]:
        """Read a table."""
        return opened(name, family)

    def change(self, edit: Callable[[Opener], None]) -> None:
        """Change tables; each is written back at once."""
        with xtables_lock.held(self._lock_path, wait_seconds=self._lock_wait_seconds):
            edit(opened)

    def leave(self) -> None:
        """Nothing: the kernel makes a table with its built-in chains by itself, and keeps it."""

    def close(self) -> None:
        """Nothing is held open."""


def _iptc() -> Any:  # noqa: ANN401 - python-iptables is untyped
    try:
        import iptc  # noqa: PLC0415 - its import takes 0.2 s and starts programs
    except Exception as error:  # noqa: BLE001 - it raises plain Exception where a library is missing
        raise SetupError(f"libiptc cannot be used ({error}); get it with: apt-get install iptables") from None
    return iptc
