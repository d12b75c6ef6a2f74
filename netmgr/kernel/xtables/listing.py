"""Reads a whole legacy table at once (IPT_SO_GET_ENTRIES, struct ipt_get_entries).

libiptc reads the same bytes, but hands them out rule by rule: a hundred thousand rules take more
than a second, here a tenth of that.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from netmgr.errors import KernelError
from netmgr.kernel.xtables.entries import LAYOUTS, Entry, text_of
from netmgr.prefixes import Family

_GET_INFO, _GET_ENTRIES = 64, 65
_LEVEL = {Family.V4: socket.SOL_IP, Family.V6: 41}
_INFO = struct.Struct("=32sI5I5III")
"""struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size."""
_REQUEST = struct.Struct("=32sI4x")
_BUILTIN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_EXTENSION = struct.Struct("=H29sB")
_DROP = -1
"""The verdict NF_DROP as an entry has it: -NF_DROP - 1."""
_HEAD, _NAME_BYTES = b"ERROR\0", 30
# Of the thread, which may be in another namespace than the process (`/proc/self`).
_NAMES = {
    Family.V4: Path("/proc/thread-self/net/ip_tables_names"),
    Family.V6: Path("/proc/thread-self/net/ip6_tables_names"),
}
_OFFSETS = struct.Struct("=HH")
_LEAST_TARGET = _EXTENSION.size + 4
_READ = "read a table of iptables"
_ATTEMPTS = 20


class Table:
    """A table of one family at one moment."""

    def __init__(self, content: bytearray, builtin: Mapping[int, str], family: Family) -> None:
        self._content = content
        self._builtin = builtin
        self._family = family
        self._layout = LAYOUTS[family]

    def rule_counts(self) -> dict[str, int]:
        """How many rules each chain has."""
        # A chain goes on until the next one's first rule.
        names, found, name = self._names(), dict[str, int](), ""
        for start, target_at, _ in self._entries():
            name = names.get(start, name)
            if not self._is_head(target_at):
                found[name] = found.get(name, 0) + 1
        # The last one is a built-in chain's policy, or the return to where a chain was called.
        return {name: count - 1 for name, count in found.items()}

    def drops(self, builtin: str) -> bool:
        """Whether the policy of a built-in chain is to drop."""
        names, name, verdict = self._names(), "", 0
        # The policy is the chain's last entry.
        for start, target_at, _ in self._entries():
            name = names.get(start, name)
            if name == builtin and not self._is_head(target_at):
                (verdict,) = struct.unpack_from("=i", self._content, target_at + _EXTENSION.size)
        return verdict == _DROP

    def having(self, text: bytes) -> dict[str, list[Entry]]:
        """The rules with this text in a match, by chain, as the kernel has them."""
        content, found, name = self._content, dict[str, list[Entry]](), ""
        if text not in content:
            return found
        names = self._names()
        for start, target_at, end in self._entries():
            name = names.get(start, name)
            if content.find(text, start, target_at) >= 0:
                target = text_of(content[target_at + 2 : target_at + 31])
                (verdict,) = struct.unpack_from("=i", content, target_at + _EXTENSION.size)
                # One without a name leads to the next rule, to a chain, or is a verdict.
                target = target or ("" if verdict == end else names.get(verdict, str(verdict)))
                found.setdefault(name, []).append(
                    Entry(bytes(content[start:end]), target, self._family)
                )
        return found

    def _names(self) -> dict[int, str]:
        """Where each chain's first rule is, which is where jumps lead.

        A chain's name is an entry before it.
        """
        heads = {
            end: text_of(
                self._content[
                    target_at + _EXTENSION.size : target_at + _EXTENSION.size + _NAME_BYTES
                ]
            )
            for _, target_at, end in self._entries()
            if self._is_head(target_at)
        }
        return heads | dict(self._builtin)

    def _is_head(self, target_at: int) -> bool:
        return self._content[target_at + 2 : target_at + 2 + len(_HEAD)] == _HEAD

    def _entries(self) -> Iterator[tuple[int, int, int]]:
        """Start, target's place and end of each entry.

        Raises:
            KernelError: one is cut off, or its offsets lead out of it.
        """
        content, at, unpack = self._content, 0, _OFFSETS.unpack_from
        offsets_at, least = self._layout.offsets_at, self._layout.size
        end = len(content)
        while at < end:
            if end - at < least:
                raise KernelError(_READ, details=f"{end - at} bytes of an entry")
            target, size = unpack(content, at + offsets_at)
            # A target has a header and at least a verdict. An entry of no size would never end.
            if not least <= target <= size - _LEAST_TARGET or at + size > end:
                raise KernelError(
                    _READ, details=f"an entry of {size} bytes, its target at {target}"
                )
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
        with socket.socket(family.af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle:
            for _ in range(_ATTEMPTS):
                if (table := _attempt(handle, name, family)) is not None:
                    return table
    except OSError as error:
        raise KernelError(operation, error.errno or 0) from None
    raise KernelError(operation, details="it changes all the time")


def give_memory_back() -> None:
    """Return the memory of freed copies of tables to the kernel (malloc_trim(3))."""
    # glibc keeps freed memory for later: 100 MB after reading the rules of 10,000 Services.
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


def _option(
    handle: socket.socket, family: Family, option: int, request: bytes, size: int
) -> bytearray:
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
