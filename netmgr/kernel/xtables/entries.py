"""Rules of iptables as the kernel's own structures, taken apart far enough to be compared.

An entry is struct ipt_entry or ip6t_entry, then matches, then a target
(<linux/netfilter_ipv4/ip_tables.h>, <linux/netfilter_ipv6/ip6_tables.h>,
<linux/netfilter/x_tables.h>); this is user-space ABI. Comparing the bytes finds any alteration
of a rule, and a rule of another program never has to be understood.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from netmgr.errors import KernelError
from netmgr.model import CHAIN_PREFIX
from netmgr.prefixes import Family

LINK_NAME = 16
"""Bytes of a link's name in an entry's head (IFNAMSIZ)."""
SET_REVISION = 4
"""Of the match `set`: one that may ask for counters (Linux 3.16)."""
VERDICTS = ("", "DROP", "RETURN")
"""Targets that have no options; their data is an offset that the table's other rules decide."""

_HEADER = struct.Struct("=H29sB")
"""xt_entry_match and xt_entry_target: size, name, revision."""
_COUNTERS = struct.Struct("=QQ")
_OFFSETS = struct.Struct("=HH")
_COMMENT = "comment"
_ALIGNMENT = 8

Extension = tuple[str, int, bytes]
"""Name, revision and data of a match or a target."""


@dataclass(frozen=True)
class Layout:
    """Where things are in the head of an entry of one family."""

    address: int
    protocol_at: int
    flags_at: int
    invert_at: int
    offsets_at: int
    counters_at: int
    size: int
    goto: int
    has_protocol: int

    @property
    def links_at(self) -> int:
        """Where the names of the links are, behind two addresses and their masks."""
        return 4 * self.address


# struct ipt_entry and struct ip6t_entry. IPv6 compares the protocol only where IP6T_F_PROTO is set
# (ip6_packet_match); IPv4 has no such flag.
LAYOUTS = {
    Family.V4: Layout(
        4, 80, 82, 83, offsets_at=88, counters_at=96, size=112, goto=0x02, has_protocol=0
    ),
    Family.V6: Layout(
        16, 128, 131, 132, offsets_at=140, counters_at=152, size=168, goto=0x04, has_protocol=0x01
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule: its bytes, counts included.

    `target` is a verdict, a chain or an extension, or empty. `handle` is the rule's number where
    the table numbers its rules.
    """

    raw: bytes
    target: str
    family: Family
    handle: int = 0

    @property
    def layout(self) -> Layout:
        """Where things are in the head."""
        return LAYOUTS[self.family]

    @property
    def head(self) -> bytes:
        """What is before the matches."""
        return self.raw[: self.layout.size]

    @property
    def comment(self) -> str:
        """The text of the comment match; empty without one."""
        for name, _, data in self.matches():
            if name == _COMMENT:
                return text_of(data)
        return ""

    @property
    def counters(self) -> tuple[int, int]:
        """Packets and bytes counted."""
        packets, octets = _COUNTERS.unpack_from(self.raw, self.layout.counters_at)
        return packets, octets

    @property
    def is_goto(self) -> bool:
        """Whether the chain that it leads to does not return here."""
        return bool(self.raw[self.layout.flags_at] & self.layout.goto)

    def matches(self) -> Iterator[Extension]:
        """The matches in order.

        Raises:
            KernelError: one is cut off.
        """
        at, end = self.layout.size, self._target_at
        while at < end:
            size, name, revision = _HEADER.unpack_from(self.raw, at)
            # One of no size would never end.
            if not _HEADER.size <= size <= end - at:
                raise KernelError("read a rule of iptables", details=f"a match of {size} bytes")
            # The kernel writes a name up to its final zero and leaves what was behind it in our
            # buffer.
            yield text_of(name), revision, self.raw[at + _HEADER.size : at + size]
            at += size

    def target_extension(self) -> Extension:
        """The target's name as the bytes have it, its revision and its options."""
        at = self._target_at
        size, name, revision = _HEADER.unpack_from(self.raw, at)
        return text_of(name), revision, self.raw[at + _HEADER.size : at + size]

    def conditions(self) -> tuple[bytes, tuple[Extension, ...]]:
        """What the entry matches: its head without what the kernel keeps there, and its matches.

        Of a comment its text alone, whatever is behind it in its buffer.
        """
        matches = tuple(
            (name, revision, data.partition(b"\0")[0] if name == _COMMENT else data)
            for name, revision, data in self.matches()
        )
        # `nfcache`, the word before the offsets, belongs to the kernel.
        return self.raw[: self.layout.offsets_at - 4], matches

    def apart_from_comment(self) -> tuple[bytes, tuple[Extension, ...]]:
        """What `conditions` gives, without the comment."""
        head, matches = self.conditions()
        return head, tuple(match for match in matches if match[0] != _COMMENT)

    def does_the_same_as(self, other: Entry) -> bool:
        """Whether both match the same packets and do the same with them, whatever they counted."""
        if self.target != other.target or self.conditions() != other.conditions():
            return False
        # Read back, the data of a verdict or jump is an offset, which changes with other rules.
        is_offset = self.target in VERDICTS or self.target.startswith(CHAIN_PREFIX)
        return is_offset or self._options() == other._options()

    def with_counts(self, packets: int, octets: int) -> Entry:
        """The entry, to be put in place as one that has counted so much."""
        at = self.layout.counters_at
        counted = _COUNTERS.pack(packets, octets)
        return replace(self, raw=self.raw[:at] + counted + self.raw[at + _COUNTERS.size :])

    def named(self) -> bytes:
        """The bytes with the target called by name, as libiptc wants to be given it.

        Read back, a verdict is an offset without a name; libiptc looks rules up by the name.
        """
        at = self._target_at
        size, _, revision = _HEADER.unpack_from(self.raw, at)
        header = _HEADER.pack(size, self.target.encode(), revision)
        return self.raw[:at] + header + self.raw[at + _HEADER.size :]

    def _options(self) -> bytes:
        return self.raw[self._target_at + _HEADER.size :]

    @property
    def _target_at(self) -> int:
        offset: int = struct.unpack_from("=H", self.raw, self.layout.offsets_at)[0]
        return offset


def jump(chain: str, family: Family) -> Entry:
    """A jump to a chain, without any condition."""
    target = extension(chain, bytes(4))
    return assembled(bytearray(LAYOUTS[family].size), b"", chain, target, family)


def extension(name: str, data: bytes, revision: int = 0) -> bytes:
    """A match or a target with its header."""
    # XT_ALIGN: each match and target begins at a multiple of eight bytes.
    padded = data.ljust(-(-len(data) // _ALIGNMENT) * _ALIGNMENT, b"\0")
    return _HEADER.pack(_HEADER.size + len(padded), name.encode(), revision) + padded


def udp_match(port: int) -> bytes:
    """The match of datagrams to a port (struct xt_udp: first and last port of each end)."""
    return extension("udp", struct.pack("=4HB", 0, 0xFFFF, port, port, 0))


def assembled(
    head: bytearray, matches: bytes, target_name: str, target: bytes, family: Family
) -> Entry:
    """An entry of its parts."""
    layout = LAYOUTS[family]
    target_at = layout.size + len(matches)
    _OFFSETS.pack_into(head, layout.offsets_at, target_at, target_at + len(target))
    return Entry(bytes(head) + matches + target, target_name, family)


def text_of(raw: bytes | bytearray) -> str:
    """The text up to the final zero of a buffer."""
    return raw.partition(b"\0")[0].decode(errors="replace")
