"""Free address space: what is free, and which block is chosen for what."""

from __future__ import annotations

import pytest

from netmgr.plan.allocate.space import Space, enclosing, halves, length_for, subtract
from netmgr.prefixes import Family, Prefix


def prefixes(*written: str) -> list[Prefix]:
    return list(map(Prefix.parse, written))


def space(*free: str, family: Family = Family.V4) -> Space:
    return Space(family, prefixes(*free))


def shown(found: Space) -> list[str]:
    return [str(block) for block in found.blocks()]


def test_blocks_are_joined_listed_by_size_and_of_one_family():
    found = space("10.0.0.128/25", "10.0.0.0/25", "10.1.0.0/25", "10.0.4.0/24", "fd00::/64")
    assert shown(found) == ["10.0.0.0/24", "10.0.4.0/24", "10.1.0.0/25"]
    assert found.size == 256 + 256 + 128
    assert shown(space("10.0.0.0/8", "fd00::/64", family=Family.V6)) == ["fd00::/64"]
    assert space().size == 0


def test_a_copy_is_a_space_of_its_own():
    first = space("10.0.0.0/24")
    twin = first.copy()
    twin.take(Prefix.parse("10.0.0.0/25"))
    first.take(Prefix.parse("10.0.0.128/25"))
    assert (shown(first), shown(twin)) == (["10.0.0.0/25"], ["10.0.0.128/25"])
    assert twin.family is Family.V4


@pytest.mark.parametrize(
    ("prefix", "is_free"),
    [
        ("10.0.0.0/24", True),
        ("10.0.0.255/32", True),
        ("10.0.0.0/23", False),
        ("10.0.1.0/32", False),
        ("9.255.255.255/32", False),
        ("::a00:0/120", False),
    ],
)
def test_a_prefix_is_free_if_a_free_block_covers_it(prefix, is_free):
    assert space("10.0.0.0/24").is_free(Prefix.parse(prefix)) is is_free


def test_what_is_taken_leaves_the_largest_blocks_around_it():
    found = space("10.0.0.0/24", "10.0.2.0/24")
    found.take(Prefix.parse("10.0.0.64/26"))
    assert shown(found) == ["10.0.2.0/24", "10.0.0.128/25", "10.0.0.0/26"]
    found.take(Prefix.parse("10.0.2.0/24"))
    assert shown(found) == ["10.0.0.128/25", "10.0.0.0/26"]
    for used in ("10.0.0.64/26", "10.0.0.0/24", "fd00::/64"):
        with pytest.raises(ValueError, match=f"^{used} is not free$"):
            found.take(Prefix.parse(used))


def test_what_is_given_back_is_joined_with_its_free_buddies():
    found = space("10.0.0.0/24")
    for used in prefixes("10.0.0.0/26", "10.0.0.64/26"):
        found.take(used)
    found.give(Prefix.parse("10.0.0.64/26"))
    assert shown(found) == ["10.0.0.128/25", "10.0.0.64/26"]
    found.give(Prefix.parse("10.0.0.0/26"))
    assert shown(found) == ["10.0.0.0/24"]
    everything = space()
    for half in prefixes("128.0.0.0/1", "0.0.0.0/1"):
        everything.give(half)
    assert shown(everything) == ["0.0.0.0/0"]


def test_what_is_withdrawn_may_be_free_in_part_or_not_at_all():
    found = space("10.0.0.0/24", "10.0.2.0/24", "10.0.3.0/25")
    found.withdraw(Prefix.parse("10.0.0.0/25"))
    assert shown(found) == ["10.0.2.0/24", "10.0.0.128/25", "10.0.3.0/25"]
    found.withdraw(Prefix.parse("10.0.2.0/23"))
    assert shown(found) == ["10.0.0.128/25"]
    for elsewhere in prefixes("10.9.0.0/16", "::/0", "10.0.0.0/26"):
        found.withdraw(elsewhere)
    assert shown(found) == ["10.0.0.128/25"]


FREE = ("10.0.0.0/24", "10.0.2.0/25", "10.1.0.0/24", "10.2.0.128/25")


@pytest.mark.parametrize(
    ("length", "packed", "topmost", "sparse"),
    [
        (26, "10.0.2.0/26", "10.2.0.192/26", "10.0.0.0/26"),
        (25, "10.0.2.0/25", "10.2.0.128/25", "10.0.0.0/25"),
        (24, "10.0.0.0/24", "10.1.0.0/24", "10.0.0.0/24"),
        (32, "10.0.2.0/32", "10.2.0.255/32", "10.0.0.0/32"),
        (23, "None", "None", "None"),
    ],
)
def test_each_way_of_choosing_keeps_something_else_together(length, packed, topmost, sparse):
    found = space(*FREE)
    assert str(found.packed(length)) == packed
    assert str(found.topmost(length)) == topmost
    assert str(found.sparse(length)) == sparse


def names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def test_a_name_chooses_among_places_that_are_equally_good():
    found = space("10.0.0.0/12")
    for choose in (found.sparse, found.topmost, found.packed):
        chosen = {choose(28, name) for name in names(100)}
        assert len(chosen) > 97
        assert choose(28, "c1") == choose(28, "c1")
    end = space("10.15.0.0/16")
    assert all(end.is_free(block) for name in names(100) if (block := found.topmost(28, name)))
    first = space("10.0.0.0/14")
    assert all(
        first.is_free(block) for name in names(100) if (block := found.packed(28, name, share=4))
    )


def test_wherever_it_is_taken_from_a_block_leaves_as_much_behind():
    for name in names(20):
        left = space("10.0.0.0/16", "10.64.0.0/16")
        for _ in range(2):
            left.take(left.sparse(20, name))
        assert [block.length for block in left.blocks()] == [17, 17, 18, 18, 19, 19, 20, 20]


def test_the_end_is_taken_wherever_it_is_where_little_is_free():
    nearly_full = space("10.0.0.0/28", "10.9.0.0/28")
    for name in names(20):
        assert nearly_full.topmost(28, name) in prefixes("10.0.0.0/28", "10.9.0.0/28")
        assert nearly_full.packed(28, name) in prefixes("10.0.0.0/28", "10.9.0.0/28")
        assert nearly_full.sparse(27, name) is None
        assert nearly_full.topmost(27, name) is None


def test_all_addresses_are_a_block_like_any_other():
    found = space("0.0.0.0/0")
    assert [str(choose(0)) for choose in (found.packed, found.sparse, found.topmost)] == [
        "0.0.0.0/0"
    ] * 3
    assert (str(found.packed(1)), str(found.topmost(1))) == ("0.0.0.0/1", "128.0.0.0/1")
    assert str(found.reach(Prefix.parse("0.0.0.0/0"))) == "0.0.0.0/0"
    assert found.grown(Prefix.parse("0.0.0.0/0"), -1) is None


def test_a_prefix_grows_as_far_as_its_buddies_are_free():
    found = space("10.0.0.0/22")
    held = Prefix.parse("10.0.0.64/26")
    found.take(held)
    assert str(found.grown(held, 26)) == "10.0.0.64/26"
    assert str(found.grown(held, 25)) == "10.0.0.0/25"
    assert str(found.grown(held, 22)) == "10.0.0.0/22"
    assert str(found.grown(held, 21)) == "None"
    assert str(found.reach(held)) == "10.0.0.0/22"
    found.take(Prefix.parse("10.0.1.0/32"))
    assert (str(found.grown(held, 24)), str(found.grown(held, 23))) == ("10.0.0.0/24", "None")
    assert str(found.reach(held)) == "10.0.0.0/24"
    assert str(space("0.0.0.0/1").reach(Prefix.parse("128.0.0.0/1"))) == "0.0.0.0/0"


@pytest.mark.parametrize(
    ("addresses", "length"), [(0, 32), (1, 32), (2, 31), (3, 30), (4, 30), (5, 29), (1 << 32, 0)]
)
def test_a_length_is_the_longest_with_room(addresses, length):
    assert length_for(addresses, Family.V4) == length
    assert length_for(addresses, Family.V6) == length + 96


def test_halves_enclosures_and_what_is_left_around_a_block():
    low, high = halves(Prefix.parse("10.0.0.0/24"))
    assert (str(low), str(high)) == ("10.0.0.0/25", "10.0.0.128/25")
    assert str(enclosing(high, 23)) == "10.0.0.0/23"
    assert str(enclosing(high, 25)) == "10.0.0.128/25"
    assert list(map(str, subtract(Prefix.parse("10.0.0.0/24"), Prefix.parse("10.0.0.64/26")))) == [
        "10.0.0.0/26",
        "10.0.0.128/25",
    ]
    assert subtract(low, low) == []
