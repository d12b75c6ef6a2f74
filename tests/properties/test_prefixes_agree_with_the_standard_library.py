"""Prefix arithmetic on integers says what `ipaddress` and netaddr say."""

from __future__ import annotations

import ipaddress

import netaddr
from hypothesis import given
from hypothesis import strategies as st

from netmgr.prefixes import Address, Family, Prefix, PrefixTable, merge, overlaps


@st.composite
def prefixes(draw, family: Family | None = None, shortest: int = 0) -> Prefix:
    family = family or draw(st.sampled_from(Family))
    length = draw(st.integers(shortest, family.width))
    value = (
        draw(st.integers(0, (1 << family.width) - 1))
        >> (family.width - length)
        << (family.width - length)
    )
    return Prefix(family, value, length)


# Short lengths in a small corner, so that neighbours and overlaps really occur.
crowded = st.builds(
    lambda value, length: Prefix(
        Family.V4, (0x0A000000 | value) >> (32 - length) << (32 - length), length
    ),
    st.integers(0, 255),
    st.integers(26, 32),
)


def standard(prefix: Prefix):
    return ipaddress.ip_network(str(prefix))


@given(prefixes())
def test_text_is_read_back_and_means_the_same(prefix):
    assert Prefix.parse(str(prefix)) == prefix
    network = standard(prefix)
    assert (int(network.network_address), network.prefixlen) == (prefix.value, prefix.length)
    assert (network.num_addresses, int(network[-1])) == (prefix.size, prefix.last)


@given(crowded, crowded)
def test_overlap_and_cover(one, other):
    assert one.overlaps(other) == standard(one).overlaps(standard(other))
    assert one.covers(other) == standard(other).subnet_of(standard(one))


@given(st.lists(crowded, max_size=12))
def test_merging_gives_the_same_addresses_in_the_fewest_blocks(blocks):
    assert [str(block) for block in merge(blocks)] == [
        str(cidr) for cidr in netaddr.cidr_merge(list(map(str, blocks)))
    ]


@given(st.lists(crowded, max_size=10, unique=True))
def test_the_sweep_finds_an_overlap_when_there_is_one(blocks):
    quadratic = any(a.overlaps(b) for i, a in enumerate(blocks) for b in blocks[i + 1 :])
    found = list(overlaps(blocks, lambda block: block))
    assert bool(found) == quadratic
    assert all(a.overlaps(b) for a, b in found)


@given(st.lists(crowded, unique=True), st.integers(0, 255))
def test_the_longest_prefix_wins(blocks, offset):
    address = Address(Family.V4, 0x0A000000 + offset)
    holding = [block for block in blocks if block.holds(address)]
    best = max(holding, key=lambda block: block.length, default=None)
    match = PrefixTable((block, str(block)) for block in blocks).match(address)
    assert match == ((best, str(best)) if best else None)
