"""Addresses and prefixes as integers, v4 and v6 alike.

Planning and accounting touch tens of thousands of prefixes; on plain integers an overlap
sweep is a sort, and a longest-prefix match is one dictionary look-up per prefix length.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Family(IntEnum):
    """An IP version; the value is the version number."""

    V4 = 4
    V6 = 6

    @property
    def width(self) -> int:
        return 32 if self is Family.V4 else 128

    @property
    def octets(self) -> int:
        return 4 if self is Family.V4 else 16

    @property
    def af(self) -> int:
        """The kernel's number for it, in netlink messages too: AF_INET or AF_INET6."""
        return 2 if self is Family.V4 else 10

    @classmethod
    def of_af(cls, number: int) -> Family | None:
        return _BY_AF.get(number)


_BY_AF = {Family.V4.af: Family.V4, Family.V6.af: Family.V6}


class Address(NamedTuple):
    """One address. Orders by family, then numerically."""

    family: Family
    value: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read dotted-quad or RFC 4291 text; ValueError for anything else."""
        try:
            # IPv6Address takes a zone (`fe80::1%eth0`), which the number would lose without a word.
            if ":" in text and "%" not in text:
                return cls(Family.V6, int(ipaddress.IPv6Address(text)))
            return cls(Family.V4, int(ipaddress.IPv4Address(text)))
        except ValueError:
            raise ValueError(f"{text!r} is not an IP address") from None

    @classmethod
    def unpack(cls, packed: bytes) -> Address:
        """The address of 4 or 16 bytes in network byte order; ValueError for other lengths."""
        if len(packed) == Family.V4.octets:
            return cls(Family.V4, int.from_bytes(packed))
        if len(packed) == Family.V6.octets:
            return cls(Family.V6, int.from_bytes(packed))
        raise ValueError(f"an address has 4 or 16 bytes, not {len(packed)}")

    @property
    def packed(self) -> bytes:
        """The address in network byte order, 4 or 16 bytes."""
        return self.value.to_bytes(self.family.octets, "big")

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.family, self.value, self.family.width)

    def __str__(self) -> str:
        if self.family is Family.V4:
            return ".".join(map(str, self.packed))
        return str(ipaddress.IPv6Address(self.value))


class Prefix(NamedTuple):
    """A block of addresses: `value` is its first address, host bits zero."""

    family: Family
    value: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """Read CIDR text, a bare address in full length; ValueError if host bits are set."""
        head, slash, tail = text.partition("/")
        address = Address.parse(head)
        width = address.family.width
        # int() takes more than a length is written with: signs, spaces, underscores.
        if slash and not (tail.isascii() and tail.isdigit() and int(tail) <= width):
            raise ValueError(f"{text!r} has no prefix length from 0 to {width}")
        length = int(tail) if slash else width
        value = address.value >> (width - length) << (width - length)
        if value != address.value:
            raise ValueError(
                f"{text!r} has host bits set; did you mean {cls(address.family, value, length)}?"
            )
        return cls(address.family, value, length)

    @property
    def size(self) -> int:
        return 1 << (self.family.width - self.length)

    @property
    def is_address(self) -> bool:
        return self.length == self.family.width

    @property
    def last(self) -> int:
        return self.value + self.size - 1

    @property
    def network(self) -> Address:
        return Address(self.family, self.value)

    def holds(self, address: Address) -> bool:
        return address.family == self.family and self.value <= address.value <= self.last

    def counterpart(self, address: Address, other: Prefix) -> Address:
        """The address at the same offset in `other`; both blocks are of one size."""
        return Address(other.family, address.value - self.value + other.value)

    def covers(self, other: Prefix) -> bool:
        return other.family == self.family and self.value <= other.value and other.last <= self.last

    def overlaps(self, other: Prefix) -> bool:
        return self.family == other.family and self.value <= other.last and other.value <= self.last

    def __str__(self) -> str:
        return f"{self.network}/{self.length}"


def overlaps(
    items: Iterable[Value], prefix_of: Callable[[Value], Prefix]
) -> Iterator[tuple[Value, Value]]:
    """Pairs (outer or earlier, inner or later) that share an address; sort and one sweep."""
    enclosing: list[Value] = []
    for item in sorted(items, key=prefix_of):
        # Two prefixes nest or are disjoint: sorted, what holds this one is on the stack.
        while enclosing and not prefix_of(enclosing[-1]).overlaps(prefix_of(item)):
            enclosing.pop()
        if enclosing:
            yield enclosing[-1], item
        enclosing.append(item)


def merge(prefixes: Iterable[Prefix]) -> list[Prefix]:
    """The fewest prefixes that cover exactly the same addresses, sorted."""
    merged: list[Prefix] = []
    for block in sorted(prefixes):
        if merged and merged[-1].covers(block):
            continue
        merged.append(block)
        # A parent may be the buddy of what is before it.
        while len(merged) > 1 and (parent := _parent_of_buddies(*merged[-2:])) is not None:
            merged[-2:] = [parent]
    return merged


def _parent_of_buddies(low: Prefix, high: Prefix) -> Prefix | None:
    siblings = low.family == high.family and low.length == high.length
    # Neighbours need not have one parent: 10.0.1.0/24 and 10.0.2.0/24 are halves of two blocks.
    if siblings and high.value == low.last + 1 and low.value % (2 * low.size) == 0:
        return Prefix(low.family, low.value, low.length - 1)
    return None


class PrefixTable(Generic[Value]):
    """Longest-prefix match: one dictionary per prefix length, longest length first."""

    def __init__(self, entries: Iterable[tuple[Prefix, Value]] = ()) -> None:
        self._levels: dict[Family, dict[int, dict[int, Value]]] = {Family.V4: {}, Family.V6: {}}
        for prefix, value in entries:
            self._levels[prefix.family].setdefault(prefix.length, {})[prefix.value] = value
        for family, levels in self._levels.items():
            self._levels[family] = dict(sorted(levels.items(), reverse=True))

    def match(self, address: Address) -> tuple[Prefix, Value] | None:
        """The most specific entry that holds `address`, or None."""
        width = address.family.width
        for length, blocks in self._levels[address.family].items():
            first = address.value >> (width - length) << (width - length)
            if first in blocks:
                return Prefix(address.family, first, length), blocks[first]
        return None
