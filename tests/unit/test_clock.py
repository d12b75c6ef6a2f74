"""Stamps of the wall clock keep their age when somebody sets the clock."""

from __future__ import annotations

import pytest

from netmgr.clock import Stamps


class TwoClocks:
    def __init__(self) -> None:
        self.wall, self.steady = 1e9, 500.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


STEPS = [0.0, 0.2, 3600.0, -3600.0, 3e7, -3e7]


@pytest.mark.parametrize("step", STEPS)
def test_what_was_stamped_before_the_clock_was_set_is_as_old_as_it_is(step: float) -> None:
    clock = TwoClocks()
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.wall
    clock.pass_time(2)
    clock.wall += step
    clock.pass_time(3)
    assert stamps.age(stamp) == pytest.approx(5, abs=0.21)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_stamped_after_the_clock_was_set_is_as_old_as_it_is(step: float) -> None:
    clock = TwoClocks()
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamps.age(clock.wall)
    clock.wall += step
    clock.pass_time(1)
    stamp = clock.wall
    clock.pass_time(4)
    assert stamps.age(stamp) == pytest.approx(4)
    clock.wall -= step
    assert stamps.age(stamp) == pytest.approx(4, abs=0.21)


@pytest.mark.parametrize("step", STEPS)
def test_what_was_stamped_before_anybody_looked_is_no_older_than_can_be(step: float) -> None:
    clock = TwoClocks()
    stamp = clock.wall
    clock.pass_time(30)
    clock.wall += step
    stamps = Stamps(clock, 40)
    clock.pass_time(1)
    assert 0 <= stamps.age(stamp) <= 41


def test_a_stamp_keeps_its_age_however_often_the_clock_is_set() -> None:
    clock = TwoClocks()
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.wall
    for step in (3600.0, 7200.0, -50.0):
        clock.wall += step
        clock.pass_time(1)
        stamps.age(clock.wall)
    assert stamps.age(stamp) == pytest.approx(3)


def test_half_a_second_is_still_a_clock_that_is_slewed() -> None:
    clock = TwoClocks()
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp = clock.wall
    clock.wall += 0.5
    clock.pass_time(5)
    assert stamps.age(stamp) == 5.5


def test_a_stamp_is_forgotten_once_the_clock_was_set_nine_times() -> None:
    clock = TwoClocks()
    stamps = Stamps(clock, 0)
    clock.pass_time(10)
    stamp, ages = clock.wall, []
    for _ in range(9):
        clock.wall += 1e6
        clock.pass_time(1)
        ages.append(stamps.age(stamp))
    assert ages == [pytest.approx(age) for age in (*range(1, 9), 0)]


def test_what_is_stamped_in_the_future_has_no_age() -> None:
    clock = TwoClocks()
    assert Stamps(clock, 10).age(clock.wall + 100) == 0
