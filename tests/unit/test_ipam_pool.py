"""The order in which addresses are given and return."""

from __future__ import annotations

import pytest

from netmgr.errors import AddressUnavailable, CapacityError
from netmgr.ipam.pool import FamilyPool, Timing
from netmgr.model import AttachmentKey
from netmgr.prefixes import Address, Prefix

KEY = AttachmentKey("container", "eth0")


def pool(*ranges: str) -> FamilyPool:
    family = Prefix.parse(ranges[0]).family
    return FamilyPool(family, map(Prefix.parse, ranges), Timing(cooldown=30, connection_wait=60))


def states(block: FamilyPool) -> tuple[int, int, int, int | None]:
    shown = block.occupancy()
    return shown["allocated"], shown["cooldown"], shown["free"], shown.get("withdrawn")


def given(block: FamilyPool, count: int) -> list[str]:
    return [str(block.take(KEY, 1000)) for _ in range(count)]


def test_every_address_of_a_block_is_given_first_and_last_included():
    block = pool("10.0.0.0/30", "10.0.0.9/32")
    assert given(block, 5) == ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"]
    # A range of 2 to the 64 costs nothing.
    wide = pool("2001:db8::/64")
    assert given(wide, 2) == ["2001:db8::", "2001:db8::1"]
    assert states(wide) == (2, 0, 2**64 - 2, 0)


def test_an_empty_pool_says_who_has_the_addresses_and_when_one_returns():
    block = pool("10.0.0.0/31")
    first = block.take(KEY, 0)
    block.take(KEY, 0)
    block.release(first, 100)
    words = "no IPv4 address is free: 1 held, 1 in cooldown; the next may be free in 20 s"
    with pytest.raises(CapacityError, match=words):
        block.take(KEY, 110)


def test_never_used_addresses_come_before_returned_ones_and_those_oldest_first():
    block = pool("10.0.0.0/30")
    taken = [block.take(KEY, 0) for _ in range(3)]
    for at, address in ((1, taken[2]), (2, taken[0])):
        block.release(address, at)
        assert block.end_cooldown(address, 100, named=False)
    assert given(block, 3) == ["10.0.0.3", str(taken[2]), str(taken[0])]


def test_an_address_that_a_connection_names_waits_but_not_for_ever():
    block = pool("10.0.0.0/32")
    address = block.take(KEY, 0)
    block.release(address, 0)
    assert block.cooled_down(29) == []
    assert block.cooled_down(30) == [address]
    assert not block.end_cooldown(address, 31, named=True)
    assert block.occupancy()["cooldown"] == 1
    assert block.end_cooldown(address, 90, named=True)
    assert block.take(KEY, 90) == address


def test_of_the_cooled_down_those_of_its_family_that_are_asked_for_are_looked_at():
    block = pool("10.0.0.0/31")
    first, second = (block.take(KEY, 0) for _ in range(2))
    for address in (first, second):
        block.release(address, 0)
    other = Address.parse("2001:db8::1")
    assert block.cooled_down(30, [second, other]) == [second]
    assert block.cooled_down(30, [other]) == [first, second]


@pytest.mark.parametrize("released", [0, 7])
def test_a_cooldown_counts_from_the_release_whenever_that_was(released: int):
    block = pool("10.0.0.0/32")
    address = block.take(KEY, 0)
    block.release(address, released)
    for after, named, ends in ((29, False, False), (89, True, False), (30, False, True)):
        assert block.end_cooldown(address, released + after, named=named) is ends


def test_what_an_attachment_never_got_is_free_at_once_and_what_nobody_holds_stays():
    block = pool("10.0.0.0/31")
    address = block.take(KEY, 0)
    block.put_back(address)
    assert states(block) == (0, 0, 2, 0)
    assert given(block, 2) == ["10.0.0.1", "10.0.0.0"]
    unknown = Address.parse("10.0.0.9")
    block.put_back(unknown)
    block.release(unknown, 0)
    assert states(block) == (2, 0, 0, 0)


def test_what_the_kernel_holds_is_in_no_cooldown_and_returns_to_nobody():
    block = pool("10.0.0.0/30")
    one, other = Address.parse("10.0.0.0"), Address.parse("10.0.0.1")
    block.restore({}, {one: 5.0}, [other])
    block.restore({one: KEY, other: KEY})
    assert states(block) == (2, 0, 2, 0)
    assert given(block, 2) == ["10.0.0.2", "10.0.0.3"]
    with pytest.raises(CapacityError, match=r"4 held, 0 in cooldown$"):
        block.take(KEY, 0)


def test_what_returned_before_its_range_was_withdrawn_is_not_given_after_a_start():
    block = pool("10.0.0.0/32")
    block.restore({}, returned=[Address.parse("10.0.9.9")])
    assert given(block, 1) == ["10.0.0.0"]
    with pytest.raises(CapacityError):
        block.take(KEY, 0)


def test_a_wait_that_is_over_is_none():
    block = pool("10.0.0.0/32")
    address = block.take(KEY, 0)
    block.release(address, 0)
    with pytest.raises(CapacityError, match=r"may be free in 0 s$"):
        block.take(KEY, 500)
    words = r"in cooldown for 0 s more, longer while connections name it$"
    with pytest.raises(AddressUnavailable, match=words):
        block.take(KEY, 500, address)
    assert block.occupancy()["family"] == "ipv4"
    assert states(block) == (0, 1, 0, 0)


def test_what_is_remembered_of_a_large_range_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("netmgr.ipam.pool.MOST_RETURNED", 3)
    block = pool("2001:db8::/64")
    taken = []
    for now in range(0, 1000, 100):
        taken.append(block.take(KEY, now))
        block.release(taken[-1], now)
        block.end_cooldown(taken[-1], now + 99, named=False)
    assert taken == taken[:3] * 3 + taken[:1]


def test_withdrawn_addresses_are_never_given_again_whether_fresh_in_cooldown_returned_or_held():
    block = pool("10.0.0.0/30")
    returned, in_cooldown, held = (block.take(KEY, 0) for _ in range(3))
    block.release(returned, 1)
    assert block.end_cooldown(returned, 100, named=False)
    block.release(in_cooldown, 990)
    block.set_ranges([Prefix.parse("10.0.0.8/31")])
    assert block.withdrawn() == [held]
    assert states(block) == (0, 0, 2, 1)
    block.release(held, 1000)
    for address in (in_cooldown, held):
        assert block.end_cooldown(address, 2000, named=False)
    assert given(block, 2) == ["10.0.0.8", "10.0.0.9"]
    with pytest.raises(CapacityError):
        block.take(KEY, 2000)
    assert not block.withdrawn()


def test_new_addresses_join_while_others_are_held_and_released_ones_keep_their_cooldown():
    block = pool("10.0.0.0/31")
    first, _ = given(block, 1), block.take(KEY, 0)
    block.set_ranges([Prefix.parse("10.0.0.0/30")])
    assert [*first, *given(block, 2)] == ["10.0.0.0", "10.0.0.2", "10.0.0.3"]
    returned = Prefix.parse("10.0.0.0").network
    block.release(returned, 1000)
    block.set_ranges([])
    block.set_ranges([Prefix.parse("10.0.0.0/30")])
    with pytest.raises(CapacityError, match="1 in cooldown"):
        block.take(KEY, 1001)
    assert block.end_cooldown(returned, 1031, named=False)
    assert given(block, 1) == ["10.0.0.0"]


def test_an_address_that_is_asked_for_is_given_once_and_never_by_chance_meanwhile():
    block = pool("10.0.0.0/30")
    asked = Address.parse("10.0.0.1")
    assert block.take(KEY, 0, asked) == asked
    words = r"10\.0\.0\.1 is asked for, and is held by container eth0"
    with pytest.raises(AddressUnavailable, match=words):
        block.take(AttachmentKey("other", "eth0"), 0, asked)
    assert asked not in [block.take(KEY, 0) for _ in range(3)]


def test_an_address_that_is_asked_for_has_to_be_free_and_of_the_ranges():
    block = pool("10.0.0.0/30")
    with pytest.raises(AddressUnavailable, match="in none of this node's ranges"):
        block.take(KEY, 0, Address.parse("10.0.0.4"))
    asked = block.take(KEY, 0)
    block.release(asked, 100)
    with pytest.raises(AddressUnavailable, match="in cooldown for 20 s more"):
        block.take(KEY, 110, asked)
    assert block.end_cooldown(asked, 130, named=False)
    assert block.take(KEY, 130, asked) == asked
    assert states(block) == (1, 0, 3, 0)
    assert asked not in [block.take(KEY, 130) for _ in range(3)]
    with pytest.raises(CapacityError):
        block.take(KEY, 130)


def test_an_address_that_was_asked_for_returns_like_any_other():
    block = pool("10.0.0.0/31")
    asked = block.take(KEY, 0, Address.parse("10.0.0.1"))
    block.release(asked, 0)
    block.end_cooldown(asked, 100, named=False)
    assert given(block, 2) == ["10.0.0.0", "10.0.0.1"]
    with pytest.raises(CapacityError):
        block.take(KEY, 100)
