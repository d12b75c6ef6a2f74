"""Counts of a small legacy table through python-iptables, without starting a program.

libiptc has rules as bytes. Which words iptables-save has for them is learnt from a table that is
read in both ways, and remembered until a rule comes that was not there.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from netmgr.errors import KernelError, SetupError
from netmgr.kernel.xtables.saved import SavedTable
from netmgr.prefixes import Family

# A larger table is read by iptables-save, which is sooner then.
MOST_RULES = 500

# python-iptables keeps one handle a table for the whole process.
_PROCESS_LOCK = threading.RLock()
_COUNTERS = struct.Struct("=QQ")
# struct xt_entry_match and xt_entry_target: size, name, revision.
_EXTENSION = struct.Struct("=H29sB")
_NAME_AT = 2
# Where struct ipt_entry and struct ip6t_entry have offsets and counters, and where they end.
_LAYOUTS = {Family.V4: (88, 96, 112), Family.V6: (140, 152, 168)}


class _Entry(NamedTuple):
    """A rule; `shape` is its target's name, and all bytes that say what the rule does."""

    chain: str
    shape: tuple[str, bytes]
    packets: int
    octets: int


Words = dict[tuple[str, bytes], str]
_words: dict[tuple[str, Family], Words] = {}


def read(name: str, family: Family, save: Callable[[], SavedTable]) -> SavedTable:
    """The table; `save` reads the same by iptables-save. SetupError if libiptc is not installed."""
    with _PROCESS_LOCK:
        chains = _listed(name, family)
        if chains is None:
            return save()
        words = _words.get((name, family), {})
        entries = [entry for listed in chains.values() for entry in listed]
        if any(entry.shape not in words for entry in entries):
            table = save()
            _words[name, family] = _learnt(chains, table)
            return table
        lines: dict[str, list[str]] = {chain: [] for chain in chains}
        for entry in entries:
            line = f"[{entry.packets}:{entry.octets}] -A {entry.chain} {words[entry.shape]}"
            lines[entry.chain].append(line.rstrip())
        return SavedTable(lines=lines)


def _learnt(chains: dict[str, list[_Entry]], table: SavedTable) -> Words:
    """The words of each rule; none if the table was changed between both readings."""
    if chains.keys() != table.lines.keys():
        return {}
    words: Words = {}
    for chain, entries in chains.items():
        rules = table.rules(chain)
        if len(rules) != len(entries):
            return {}
        for entry, rule in zip(entries, rules, strict=True):
            known = words.setdefault(entry.shape, rule.text)
            if known != rule.text or rule.comment.encode() not in entry.shape[1]:
                return {}
    return words


def _listed(name: str, family: Family) -> dict[str, list[_Entry]] | None:
    """The rules of every chain; None if they are too many."""
    iptc = load()
    try:
        # With autocommit python-iptables would write the whole table back after each change. Its
        # handle is kept for the process and still has what was read last, hence the refresh.
        table = (iptc.Table if family is Family.V4 else iptc.Table6)(name, autocommit=False)
        table.refresh()
        try:
            chains: dict[str, list[_Entry]] = {chain.name: [] for chain in table.chains}
            for number, entry in enumerate(_entries(table, chains, family)):
                if number >= MOST_RULES:
                    return None
                chains[entry.chain].append(entry)
        finally:
            table.close()
    except iptc.IPTCError as error:
        raise KernelError(f"read table {name} by libiptc", details=str(error)) from None
    return chains


def _entries(table: Any, chains: dict[str, list[_Entry]], family: Family) -> Iterator[_Entry]:  # noqa: ANN401 - python-iptables is untyped
    # By table-level calls alone: python-iptables' Rule objects redirect this process's standard
    # output to learn a rule's options.
    offsets_at, counters_at, size = _LAYOUTS[family]
    for chain in chains:
        entry = table.first_rule(chain)
        while entry:
            raw = ctypes.string_at(ctypes.addressof(entry), entry.next_offset)
            target = (table.get_target(entry) or b"").decode()
            (target_at,) = struct.unpack_from("=H", raw, offsets_at)
            # Without `nfcache`, the word before the offsets, which belongs to the kernel.
            shape = raw[: offsets_at - 4] + _extensions(raw, size, target_at)
            # A verdict or a jump has no name here. It is an offset, which changes with other rules.
            if raw[target_at + _NAME_AT]:
                shape += _extensions(raw, target_at, len(raw))
            yield _Entry(chain, (target, shape), *_COUNTERS.unpack_from(raw, counters_at))
            entry = table.next_rule(entry)


def _extensions(raw: bytes, at: int, end: int) -> bytes:
    """The matches, or the target, of an entry."""
    parts = b""
    while at < end:
        size, name, revision = _EXTENSION.unpack_from(raw, at)
        # The kernel leaves what was behind a name's final zero in the buffer.
        parts += name.partition(b"\0")[0] + bytes([0, revision])
        parts += raw[at + _EXTENSION.size : at + size]
        # One of no size would never end.
        at += max(size, _EXTENSION.size)
    return parts


def forget() -> None:
    """Learn all words again."""
    # Rules name sets by numbers, which a new set may have from one that went.
    with _PROCESS_LOCK:
        _words.clear()


def load() -> Any:  # noqa: ANN401 - python-iptables is untyped
    """python-iptables; SetupError if it, or libiptc, is not installed."""
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
    # Where setuptools is installed, distutils is a part of it: 5 MB, and 0.1 s. python-iptables
    # asks it for one path, and can do without.
    loaded: dict[str, Any] = sys.modules
    if "distutils" in loaded:
        yield
        return
    loaded["distutils"] = None
    try:
        yield
    finally:
        del loaded["distutils"]
