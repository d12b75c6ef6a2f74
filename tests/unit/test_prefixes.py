"""Addresses and prefixes as integers: what is read, what is written, and what lies in what."""

from __future__ import annotations

import re
from operator import itemgetter

import pytest

from netmgr.prefixes import Address, Family, Prefix, PrefixTable, merge, overlaps


def prefixes(*texts: str) -> list[Prefix]:
    return [Prefix.parse(text) for text in texts]


def test_a_prefix_is_read_with_its_length_and_without_one_as_a_single_address():
    assert Prefix.parse("10.1.0.0/16") == Prefix(Family.V4, 0x0A010000, 16)
    assert Prefix.parse("10.1.0.1") == Prefix(Family.V4, 0x0A010001, 32)
    assert Prefix.parse("10.1.0.1/32") == Prefix.parse("10.1.0.1")
    assert Prefix.parse("0.0.0.0/0") == Prefix(Family.V4, 0, 0)
    assert Prefix.parse("fd00::/8") == Prefix(Family.V6, 0xFD << 120, 8)
    assert Prefix.parse("::1") == Prefix(Family.V6, 1, 128)


@pytest.mark.parametrize(
    "text", ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "::/129", "10.0.0.0/\u0661", "10.0.0.0/8/8"]
)
def test_a_length_that_is_none_is_refused_with_the_text_and_the_bounds(text):
    most = 128 if ":" in text else 32
    with pytest.raises(
        ValueError, match=f"^{re.escape(repr(text))} has no prefix length from 0 to {most}$"
    ):
        Prefix.parse(text)


def test_a_prefix_with_host_bits_is_refused_with_the_one_that_was_meant():
    with pytest.raises(
        ValueError, match=r"'10\.1\.2\.3/16' has host bits set; did you mean 10\.1\.0\.0/16\?$"
    ):
        Prefix.parse("10.1.2.3/16")


@pytest.mark.parametrize("text", ["", "10.0.0", "010.0.0.1", "fe80::1%eth0", "x", "/8"])
def test_what_is_no_address_is_refused_with_the_text(text):
    with pytest.raises(ValueError, match=r"^'[^/]*' is not an IP address$"):
        Prefix.parse(text)


@pytest.mark.parametrize("text", ["10.1.2.3", "255.255.255.255", "::", "fd00:0:0:1::8"])
def test_an_address_survives_being_packed(text):
    address = Address.parse(text)
    assert str(Address.unpack(address.packed)) == text
    assert address.prefix == Prefix.parse(text)


def test_the_bytes_of_an_address_are_in_network_order_and_as_many_as_it_has():
    assert Address.unpack(b"\x0a\0\0\1") == Address.parse("10.0.0.1")
    assert Address.unpack(b"\xfd" + b"\0" * 14 + b"\1") == Address.parse("fd00::1")
    for count in (0, 3, 5, 17):
        with pytest.raises(ValueError, match=f"^an address has 4 or 16 bytes, not {count}$"):
            Address.unpack(bytes(count))


def test_a_family_is_known_by_the_kernel_s_number():
    assert [Family.of_af(number) for number in (2, 10, 0)] == [Family.V4, Family.V6, None]
    assert [family.af for family in Family] == [2, 10]


def test_a_block_holds_its_first_and_its_last_address_and_none_beside_them():
    block = Prefix.parse("10.0.0.64/26")
    inside = ["10.0.0.64", "10.0.0.100", "10.0.0.127"]
    outside = ["10.0.0.63", "10.0.0.128", "::a00:40"]
    assert all(block.holds(Address.parse(text)) for text in inside)
    assert not any(block.holds(Address.parse(text)) for text in outside)
    assert (str(block.network), block.size) == ("10.0.0.64", 64)
    assert str(Address(Family.V4, block.last)) == "10.0.0.127"


def test_the_counterpart_of_an_address_is_at_the_same_offset():
    inner, outer = prefixes("10.96.0.0/24", "172.16.5.0/24")
    assert str(inner.counterpart(Address.parse("10.96.0.10"), outer)) == "172.16.5.10"


def test_blocks_that_nest_overlap_and_neighbours_do_not():
    outer, low, high, other = prefixes("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25", "::a00:0/120")
    assert all(outer.covers(block) for block in (outer, low, high))
    assert not any(block.covers(outer) for block in (low, high, other))
    assert not outer.covers(other)
    for first, second in ((outer, high), (high, outer), (low, low)):
        assert first.overlaps(second)
    for first, second in ((low, high), (high, low)):
        assert not first.overlaps(second)
    for end in prefixes("10.0.0.0/32", "10.0.0.255/32"):
        assert end.overlaps(outer)
        assert outer.overlaps(end)
    assert not outer.overlaps(other)


def test_every_block_that_shares_addresses_is_paired_with_the_one_around_it():
    blocks = prefixes("10.2.0.0/16", "10.1.1.0/24", "10.1.0.0/16", "10.1.3.0/24", "10.1.1.128/25")
    found = [(str(outer), str(inner)) for outer, inner in overlaps(blocks, lambda block: block)]
    assert found == [
        ("10.1.0.0/16", "10.1.1.0/24"),
        ("10.1.1.0/24", "10.1.1.128/25"),
        ("10.1.0.0/16", "10.1.3.0/24"),
    ]
    assert list(overlaps(prefixes("10.1.0.0/32", "::a01:0/128"), lambda block: block)) == []
    # In the order of the prefixes, whatever else comes with them.
    named = list(zip("ab", prefixes("10.1.1.0/24", "10.1.0.0/16"), strict=True))
    assert [(outer, inner) for (outer, _), (inner, _) in overlaps(named, itemgetter(1))] == [
        ("b", "a")
    ]


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        # Halves of one block, in any order, and again with what that makes.
        (["10.0.0.128/25", "10.0.0.0/25", "10.0.1.0/24"], ["10.0.0.0/23"]),
        (["10.0.0.0/24", "10.0.0.7/32", "10.0.2.0/24"], ["10.0.0.0/24", "10.0.2.0/24"]),
        # Neighbours of one length that are no halves of one block.
        (["10.0.1.0/24", "10.0.2.0/24"], ["10.0.1.0/24", "10.0.2.0/24"]),
        (["10.0.0.0/24", "10.0.1.0/25"], ["10.0.0.0/24", "10.0.1.0/25"]),
        (["10.0.0.0/25", "10.0.1.0/25"], ["10.0.0.0/25", "10.0.1.0/25"]),
        (["0.0.0.0/1", "128.0.0.0/1"], ["0.0.0.0/0"]),
        (["0.0.0.0/0", "::/0"], ["0.0.0.0/0", "::/0"]),
        (["0.0.0.0/2", "64.0.0.0/2", "::/2", "4000::/2"], ["0.0.0.0/1", "::/1"]),
        (["255.255.255.255/32", "::/32"], ["255.255.255.255/32", "::/32"]),
        ([], []),
    ],
)
def test_blocks_are_merged_into_the_fewest(given, merged):
    assert [str(block) for block in merge(prefixes(*given))] == merged


def test_the_longest_prefix_that_holds_an_address_is_its_match():
    table = PrefixTable(
        (block, str(block))
        for block in prefixes("10.0.0.0/8", "10.1.2.0/24", "10.1.0.0/16", "fd00::/8", "fd00::1")
    )
    expected = {
        "10.1.2.3": "10.1.2.0/24",
        "10.1.3.3": "10.1.0.0/16",
        "10.2.0.1": "10.0.0.0/8",
        "fd00::1": "fd00::1/128",
        "fd00::2": "fd00::/8",
    }
    for text, block in expected.items():
        assert table.match(Address.parse(text)) == (Prefix.parse(block), block)
    assert table.match(Address.parse("11.0.0.1")) is None
    assert table.match(Address.parse("::a01:203")) is None
    assert PrefixTable[str]().match(Address.parse("10.0.0.1")) is None
