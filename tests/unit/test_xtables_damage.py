"""A table of iptables whose sizes make no sense is an error, and never read without an end."""

from __future__ import annotations

import struct

import pytest

from netmgr.errors import KernelError
from netmgr.kernel.xtables.entries import LAYOUTS, Entry, assembled, extension, jump
from netmgr.kernel.xtables.listing import Table
from netmgr.prefixes import Family

FAMILIES = pytest.mark.parametrize("family", list(Family))


def sized(target_at: int, size: int, family: Family) -> bytearray:
    """Two rules, the second with these offsets."""
    rule = jump("NETMGR-X", family).raw
    content = bytearray(rule + rule)
    struct.pack_into("=HH", content, len(rule) + LAYOUTS[family].offsets_at, target_at, size)
    return content


@FAMILIES
def test_sizes_that_are_right_are_read(family: Family) -> None:
    rule = jump("NETMGR-X", family).raw
    assert Table(bytearray(rule + rule), {0: "INPUT"}, family).rule_counts() == {"INPUT": 1}


@FAMILIES
@pytest.mark.parametrize(
    ("target_at", "size"), [(0, 0), (112, 0), (168, 65535), (200, 200), (8, 208), (207, 208)]
)
def test_an_entry_of_an_odd_size_is_an_error(family: Family, target_at: int, size: int) -> None:
    table = Table(sized(target_at, size, family), {0: "INPUT"}, family)
    for read in (table.rule_counts, lambda: table.drops("INPUT"), lambda: table.having(b"NETMGR")):
        with pytest.raises(KernelError, match="read a table of iptables: "):
            read()


@FAMILIES
def test_an_entry_that_is_cut_off_is_an_error(family: Family) -> None:
    rule = jump("NETMGR-X", family).raw
    for length in range(len(rule) + 1, 2 * len(rule)):
        with pytest.raises(KernelError):
            Table(bytearray((rule + rule)[:length]), {0: "INPUT"}, family).rule_counts()


@FAMILIES
@pytest.mark.parametrize("size", [0, 1, 31, 41, 65535])
def test_a_match_of_an_odd_size_is_an_error(family: Family, size: int) -> None:
    match = bytearray(extension("comment", b"12345678"))
    whole = assembled(bytearray(LAYOUTS[family].size), bytes(match), "DROP", bytes(40), family)
    assert whole.comment == "12345678"
    struct.pack_into("=H", match, 0, size)
    head = bytearray(LAYOUTS[family].size)
    damaged: Entry = assembled(head, bytes(match), "DROP", bytes(40), family)
    with pytest.raises(KernelError, match="read a rule of iptables: "):
        damaged.conditions()
