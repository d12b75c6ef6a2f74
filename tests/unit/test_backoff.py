"""How long is waited before another attempt, in every part that asks again."""

from __future__ import annotations

from netmgr.backoff import Backoff, regular


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
