"""Stamps of the wall clock keep their age when somebody sets the clock; how long is waited before
another attempt, in every part that asks again.
"""

from __future__ import annotations

import pytest

from netmgr.backoff import Backoff, regular
from netmgr.clock import Stamps
from tests.fakes.ledger_tools import TwoClocks


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


STEPS = [0.0, 0.2, 3600.0, -3600.0, 3e7, -3e7]


@pytest.mark.parametrize("step", STEPS)
def test_what_was_stamped_before_the_clock_was_set_is_as_old_as_it_is(
    clock: TwoClocks, step: float
) -> None:
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.time
    clock.pass_time(2)
    clock.time += step
    clock.pass_time(3)
    assert stamps.age(stamp) == pytest.approx(5, abs=0.21)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_stamped_after_the_clock_was_set_is_as_old_as_it_is(
    clock: TwoClocks, step: float
) -> None:
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamps.age(clock.time)
    clock.time += step
    clock.pass_time(1)
    stamp = clock.time
    clock.pass_time(4)
    assert stamps.age(stamp) == pytest.approx(4)
    clock.time -= step
    assert stamps.age(stamp) == pytest.approx(4, abs=0.21)


@pytest.mark.parametrize("step", STEPS)
def test_what_was_stamped_before_anybody_looked_is_no_older_than_can_be(
    clock: TwoClocks, step: float
) -> None:
    stamp = clock.time
    clock.pass_time(30)
    clock.time += step
    stamps = Stamps(clock, 40)
    clock.pass_time(1)
    assert 0 <= stamps.age(stamp) <= 41


def test_a_stamp_keeps_its_age_however_often_the_clock_is_set(clock: TwoClocks) -> None:
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.time
    for step in (3600.0, 7200.0, -50.0):
        clock.time += step
        clock.pass_time(1)
        stamps.age(clock.time)
    assert stamps.age(stamp) == pytest.approx(3)


def test_half_a_second_is_still_a_clock_that_is_slewed(clock: TwoClocks) -> None:
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.time
    clock.time += 0.5
    clock.pass_time(5)
    assert stamps.age(stamp) == 5.5


def test_a_stamp_is_forgotten_once_the_clock_was_set_nine_times(clock: TwoClocks) -> None:
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp, ages = clock.time, []
    for _ in range(9):
        clock.time += 1e6
        clock.pass_time(1)
        ages.append(stamps.age(stamp))
    assert ages == [pytest.approx(age) for age in (*range(1, 9), 0)]


def test_what_is_stamped_in_the_future_has_no_age(clock: TwoClocks) -> None:
    assert Stamps(clock, 10).age(clock.time + 100) == 0


def test_waits_double_with_jitter_up_to_a_bound_and_begin_anew() -> None:
    longest, shortest = (Backoff(first=1, most=8, chance=lambda c=c: c) for c in (1.0, 0.0))
    assert [longest.next() for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert [shortest.next() for _ in range(6)] == [0.5, 1, 2, 4, 4, 4]
    for _ in range(5000):
        assert 4 <= shortest.next() <= 8
    longest.reset()
    assert longest.next() == 1


def test_a_server_that_names_a_time_is_not_asked_sooner_and_not_by_all_at_once() -> None:
    soonest, latest = (Backoff(first=2, most=120, chance=lambda c=c: c) for c in (0.0, 1.0))
    assert (soonest.next(at_least=200), latest.next(at_least=200)) == (200, 300)
    soonest.reset()
    assert [soonest.next() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_regular_waits_differ_from_machine_to_machine() -> None:
    assert (regular(40, lambda: 0.0), regular(40, lambda: 1.0)) == (30, 50)
