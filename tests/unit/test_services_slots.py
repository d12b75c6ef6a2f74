"""How endpoints are laid out in slots: few move when one comes or goes, and shares stay even."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netmgr.prefixes import Address
from netmgr.services.model import Endpoint
from netmgr.services.slots import rearranged, rendezvous, slot_count

ENDPOINTS = [
    Endpoint(Address.parse(f"10.9.{number >> 8}.{number & 255}"), 80) for number in range(400)
]
SLOTS = [0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 2, 1, 0, 3, 1, 0, 0, 3, 2, 0, 2, 0, 0]
some_endpoints = st.frozensets(st.sampled_from(ENDPOINTS[:12]))


@pytest.mark.parametrize(
    ("endpoints", "slots"),
    [(1, 256), (16, 256), (17, 2048), (128, 2048), (129, 16384), (1024, 16384)],
)
def test_slots_come_in_few_steps_with_sixteen_for_each_endpoint(endpoints: int, slots: int):
    assert slot_count(endpoints) == slots
    assert slots >= 16 * endpoints


def test_the_last_one_moves_into_the_place_of_one_that_went():
    first = rearranged((), ENDPOINTS[:4])
    assert first == tuple(ENDPOINTS[:4])
    assert rearranged(first, [ENDPOINTS[0], ENDPOINTS[2], ENDPOINTS[3]]) == (
        ENDPOINTS[0],
        ENDPOINTS[3],
        ENDPOINTS[2],
    )


@given(st.lists(some_endpoints, min_size=1, max_size=6))
def test_every_wanted_endpoint_has_one_slot_and_as_few_slots_as_possible_change(states):
    slots: tuple[Endpoint, ...] = ()
    for wanted in states:
        after = rearranged(slots, wanted)
        assert sorted(after) == sorted(wanted)
        stayed = sum(old == new for old, new in zip(slots, after, strict=False))
        # Those that are wanted still can stay unless their slot is beyond the new end.
        assert stayed == sum(one in wanted for one in slots[: len(after)])
        slots = after


@pytest.mark.parametrize("number", [1, 2, 3, 10, 16, 17, 100, 128, 400])
def test_sticky_shares_are_about_even(number: int):
    slots = rendezvous(ENDPOINTS[:number], slot_count(number))
    shares = Counter(slots)
    assert len(shares) == number
    fair = len(slots) / number
    assert fair >= 16
    assert all(fair / 3 < share < fair * 2 for share in shares.values())


@given(st.frozensets(st.sampled_from(ENDPOINTS[:16]), min_size=2), st.data())
def test_only_the_clients_of_an_endpoint_that_goes_move(endpoints, data):
    going = data.draw(st.sampled_from(sorted(endpoints)))
    before = rendezvous(endpoints, 256)
    after = rendezvous(endpoints - {going}, 256)
    assert all(old in (new, going) for old, new in zip(before, after, strict=True))
    assert going not in after


def test_every_release_and_every_host_has_the_same_slots():
    """Else an upgrade would move clients, and two NAT hosts would disagree."""
    v6 = Endpoint(Address.parse("fd00:9::1"), 8080)
    numbers = {endpoint: number for number, endpoint in enumerate([*ENDPOINTS[:3], v6])}
    found = rendezvous(numbers, 24)
    assert [numbers[endpoint] for endpoint in found] == SLOTS


def test_without_endpoints_there_are_no_slots():
    assert rendezvous((), 256) == ()
    assert rearranged(ENDPOINTS[:3], ()) == ()
