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
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from netmgr.errors import KernelError, SetupError, TryAgainLater
from netmgr.kernel.xtables import listing, lock
from netmgr.kernel.xtables.entries import Entry
from netmgr.kernel.xtables.tables import Opener, Table
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family

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

    def append(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's end, with the counts that it has."""
        self.changed = True
        self._table.append_entry(chain, _buffer(entry.raw))

    def insert(self, chain: str, entry: Entry) -> None:
        """Put a rule at the chain's head, with the counts that it has."""
        self.changed = True
        self._table.insert_entry(chain, _buffer(entry.raw), 0)

    def delete(self, chain: str, entry: Entry) -> None:
        """Remove the first rule of the chain that equals this one."""
        self.changed = True
        named = entry.named()
        # libiptc compares the bytes that the mask has set: all of them.
        mask = (ctypes.c_ubyte * len(named))(*([0xFF] * len(named)))
        self._table.delete_entry(chain, _buffer(named), mask)


def _buffer(raw: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(raw, len(raw))


@contextmanager
def opened(name: str, family: Family) -> Iterator[LegacyTable]:
    """Read a table of the calling thread's namespace, and write it back if the block changed it.

    Whoever changes anything holds the xtables lock around this.

    Raises:
        SetupError: libiptc is not installed.
        TryAgainLater: another program changed the table at the same moment, without the lock.
        KernelError: the kernel refused; nothing was changed.
    """
    iptc = _iptc()
    program = "iptables-legacy" if family is Family.V4 else "ip6tables-legacy"
    with _PROCESS_LOCK:
        try:
            # With autocommit python-iptables would write the whole table back after each change.
            # Its handle is kept for the process and still has what was read last, hence the
            # refresh.
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
                raise TryAgainLater(
                    f"{program} -t {name}: another program changed the table meanwhile"
                ) from None
            raise KernelError(f"{program} -t {name}", details=str(error)) from None


class LegacyTables:
    """The legacy tables, changed under the lock that iptables takes.

    `lock_wait_seconds` bounds how long a change waits for another program to finish its own.
    """

    name = "iptables-legacy"

    def __init__(self, *, lock_path: Path = lock.LOCK_PATH, lock_wait_seconds: float = 5) -> None:
        self._lock_path = lock_path
        self._lock_wait_seconds = lock_wait_seconds

    @staticmethod
    def opened(name: str, family: Family) -> AbstractContextManager[LegacyTable]:
        """Read a table."""
        return opened(name, family)

    def change(self, edit: Callable[[Opener], None]) -> None:
        """Change tables; each is written back at once."""
        with lock.held(self._lock_path, wait_seconds=self._lock_wait_seconds):
            edit(opened)

    def leave(self) -> None:
        """Remove every chain of ours, whichever version made it."""
        # Every table is searched, since former versions had chains for Services in nat and filter.
        # The tables stay: the kernel made them with their built-in chains, and keeps them.
        self.change(_remove_own_chains)

    def close(self) -> None:
        """Nothing is held open."""


def _remove_own_chains(open_table: Opener) -> None:
    for family in Family:
        # Opening a table that is not in use yet would make it.
        for name in listing.in_use(family):
            chains = listing.read(name, family).rule_counts()
            own = [chain for chain in chains if chain.startswith(CHAIN_PREFIX)]
            if not own:
                continue
            with open_table(name, family) as table:
                _remove_chains(table, own, chains)


def _remove_chains(table: Table, own: Collection[str], chains: Iterable[str]) -> None:
    # All rules of our chains go first, since our chains may lead to each other; then the jumps from
    # others' chains. libiptc deletes no chain that something leads to.
    for chain in own:
        table.flush_chain(chain)
    for chain in chains:
        for entry in table.entries(chain):
            if entry.target in own:
                table.delete(chain, entry)
    for chain in own:
        table.delete_chain(chain)


def _iptc() -> Any:  # noqa: ANN401 - python-iptables is untyped
    try:
        with _no_distutils():
            import iptc  # noqa: PLC0415 - its import takes 0.1 s and starts programs
    except Exception as error:  # noqa: BLE001 - it raises plain Exception where a library is missing
        raise SetupError(
            f"libiptc cannot be used ({error}); get it with: apt-get install iptables"
        ) from None
    return iptc


@contextmanager
def _no_distutils() -> Iterator[None]:
    """Have an import do without distutils, as python-iptables can.

    It asks for one path. Where setuptools is installed, distutils is a part of it: 5 MB, and 0.1 s.
    """
    loaded: dict[str, Any] = sys.modules
    if "distutils" in loaded:
        yield
        return
    loaded["distutils"] = None
    try:
        yield
    finally:
        del loaded["distutils"]
