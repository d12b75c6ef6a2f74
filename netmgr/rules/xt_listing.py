"""Reads a legacy table as the kernel hands it out, in one piece (struct ipt_get_entries, IPT_SO_GET_ENTRIES).

libiptc reads the same, but gives it away rule by rule: a hundred thousand of them take more
than a second. Here a table's fingerprint, which tells whether anything in it changed, takes a
tenth of that.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from netmgr.errors import KernelError
from netmgr.prefixes import Family
from netmgr.rules.xt_entries import LAYOUTS, extension
from netmgr.rules.xt_table import Entry

_GET_INFO, _GET_ENTRIES = 64, 65
_LEVEL = {Family.V4: socket.SOL_IP, Family.V6: 41}
_AF = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}
_INFO = struct.Struct("=32sI5I5III")
"""struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size."""
_REQUEST = struct.Struct("=32sI4x")
_BUILTIN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_EXTENSION = struct.Struct("=H29sB")
_HEAD, _NAME_BYTES = b"ERROR\0", 30
_NAMES = {
    Family.V4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.V6: Path("/proc/thread-self/net/ip6_tables_names"),
}
_OFFSETS = struct.Struct("=HH")
_ATTEMPTS = 20


class Rule(NamedTuple):
    """One rule as it was given to the kernel, a chain that it leads to by name; and what it counted."""

    raw: bytes
    target: str
    packets: int


class Table:
    """A table of one family at one moment."""

    def __init__(self, content: bytearray, builtin: Mapping[int, str], family: Family) -> None:
        self._content = content
        self._builtin = builtin
        self._family = family
        self._layout = LAYOUTS[family]

    def fingerprint(self) -> bytes:
        """The same as long as no rule changed, whatever was counted."""
        plain = bytearray(self._content)
        first, end = self._layout.counters_at, self._layout.size
        zeros = bytes(end - first)
        for start, _, _ in self._entries():
            plain[start + first : start + end] = zeros
        return hashlib.blake2b(plain, digest_size=16).digest()

    def chains(self, *prefixes: str) -> dict[str, list[Rule]]:
        """The rules of the chains whose name begins with one of these, and of the built-in ones."""
        names, found = self._names(), dict[str, list[Rule]]()
        rules: list[Rule] | None = None
        for start, target_at, end in self._entries():
            if start in names:
                name = names[start]
                rules = found.setdefault(name, []) if start in self._builtin or name.startswith(prefixes) else None
            if rules is not None and not self._is_head(target_at):
                rules.append(self._rule(start, target_at, end, names))
        for rules in found.values():
            # The last one is a built-in chain's policy, or the return to where a chain was called.
            del rules[-1:]
        return found

    def rule_counts(self) -> dict[str, int]:
        """How many rules each chain has."""
        names, found, name = self._names(), dict[str, int](), ""
        for start, target_at, _ in self._entries():
            name = names.get(start, name)
            if not self._is_head(target_at):
                found[name] = found.get(name, 0) + 1
        # Each chain has one more, as above.
        return {name: count - 1 for name, count in found.items()}

    def having(self, text: bytes) -> dict[str, list[Entry]]:
        """The rules with this text in a match, by chain, as the kernel has them."""
        content, found, name = self._content, dict[str, list[Entry]](), ""
        if text not in content:
            return found
        names = self._names()
        for start, target_at, end in self._entries():
            name = names.get(start, name)
            if content.find(text, start, target_at) >= 0:
                target = _text(content[target_at + 2 : target_at + 31])
                (verdict,) = struct.unpack_from("=i", content, target_at + _EXTENSION.size)
                # One without a name leads to the next rule, to a chain, or is a verdict.
                target = target or ("" if verdict == end else names.get(verdict, str(verdict)))
                found.setdefault(name, []).append(Entry(bytes(content[start:end]), target, self._family))
        return found

    def _names(self) -> dict[int, str]:
        """Where each chain's first rule is, which is where jumps lead; a chain's name is an entry before it."""
        heads = {
            end: _text(self._content[target_at + _EXTENSION.size : target_at + _EXTENSION.size + _NAME_BYTES])
            for _, target_at, end in self._entries()
            if self._is_head(target_at)
        }
        return heads | dict(self._builtin)

    def _is_head(self, target_at: int) -> bool:
        return self._content[target_at + 2 : target_at + 2 + len(_HEAD)] == _HEAD

    def _rule(self, start: int, target_at: int, end: int, names: Mapping[int, str]) -> Rule:
        content, layout = self._content, self._layout
        (packets,) = struct.unpack_from("=Q", content, start + layout.counters_at)
        offsets = start + layout.offsets_at
        # The kernel's own remarks stand before and behind the offsets, and the counters at the head's end.
        head = content[start : offsets - 4] + bytes(4) + content[offsets : offsets + _OFFSETS.size]
        head = head.ljust(layout.size, b"\0")
        matches, target = content[start + layout.size : target_at], _text(content[target_at + 2 : target_at + 31])
        if target:
            return Rule(bytes(head + matches + content[target_at:end]), target, packets)
        (verdict,) = struct.unpack_from("=i", content, target_at + _EXTENSION.size)
        chain = names.get(verdict, "")
        return Rule(bytes(head + matches) + extension(chain, bytes(end - target_at - _EXTENSION.size)), chain, packets)

    def _entries(self) -> Iterator[tuple[int, int, int]]:
        """Start, target's place and end of each entry."""
        content, at, offsets_at, unpack = self._content, 0, self._layout.offsets_at, _OFFSETS.unpack_from
        while at < len(content):
            target, size = unpack(content, at + offsets_at)
            yield at, at + target, at + size
            at += size


def in_use(family: Family) -> list[str]:
    """The tables that are there already in the calling thread's namespace; asking creates none."""
    try:
        return _NAMES[family].read_text(encoding="ascii").split()
    except OSError:
        return []


def read(name: str, family: Family) -> Table:
    """The table in the calling thread's namespace; reading one that was never used creates it.

    Raises:
        KernelError: the kernel refused.
    """
    operation = f"read table {name} of {'iptables' if family is Family.V4 else 'ip6tables'}"
    try:
        # Any socket of the family does; a raw one would need CAP_NET_RAW.
        with socket.socket(_AF[family], socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
            for _ in range(_ATTEMPTS):
                if (table := _attempt(handle, name, family)) is not None:
                    return table
    except OSError as error:
        raise KernelError(operation, error.errno or 0) from None
    raise KernelError(operation, details="it changes all the time")


def give_memory_back() -> None:
    """Return to the kernel what copies of a table took: 100 MB for 10,000 Services (malloc_trim(3))."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _attempt(handle: socket.socket, name: str, family: Family) -> Table | None:
    info = _INFO.unpack(_option(handle, family, _GET_INFO, name.encode(), _INFO.size))
    hooks, starts, size = info[1], info[2:7], info[-1]
    request = _REQUEST.pack(name.encode(), size)
    try:
        answer = _option(handle, family, _GET_ENTRIES, request, _REQUEST.size + size)
    except OSError as error:
        # It was replaced by one of another size in between.
        if error.errno == errno.EAGAIN:
            return None
        raise
    builtin = {start: _BUILTIN[hook] for hook, start in enumerate(starts) if hooks & 1 << hook}
    del answer[: _REQUEST.size]
    return Table(answer, builtin, family)


def _option(handle: socket.socket, family: Family, option: int, request: bytes, size: int) -> bytearray:
    """getsockopt(2), which Python offers for small answers only."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = bytearray(size)
    answer[: len(request)] = request
    # The only copy there is: a table may have 30 MB.
    buffer, length = (ctypes.c_char * size).from_buffer(answer), ctypes.c_uint32(size)
    failed = libc.getsockopt(handle.fileno(), _LEVEL[family], option, buffer, ctypes.byref(length))
    del buffer
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _text(raw: bytes | bytearray) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")
