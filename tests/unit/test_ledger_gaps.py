"""Gaps carry how long counting was possibly incomplete, whatever the wall clock does meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr.ledger.ledger import Ledger
from netmgr.ledger.tables import Gap
from tests.fakes.ledger_tools import (
    ADDRESS6,
    IN,
    OUT,
    WEB,
    TwoClocks,
    counter,
    gap_seconds,
    gaps,
    hook,
    opened,
    reading,
)


@pytest.fixture
def clock() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
def ledger(path: Path, clock: TwoClocks) -> Iterator[Ledger]:
    ledger = opened(path, clock)
    ledger.begin([counter(IN), counter(OUT)], WEB)
    yield ledger
    ledger.close()


def seconds(ledger: Ledger, gap: Gap) -> float:
    return gap_seconds(ledger, gap)


def test_a_reset_is_as_long_as_the_time_since_the_counters_last_reading(
    ledger: Ledger, clock: TwoClocks
) -> None:
    ledger.post([reading(500)])
    clock.pass_time(5)
    ledger.post([reading(500)])
    clock.pass_time(3)
    clock.time -= 86_400
    ledger.post([reading(100)])
    assert (gaps(ledger), seconds(ledger, Gap.RESET)) == ({"reset": 1}, 3)


def test_counters_that_went_together_are_one_stretch_of_time(
    ledger: Ledger, clock: TwoClocks
) -> None:
    ledger.post([reading(500)])
    clock.pass_time(2)
    ledger.post([reading(7, of=counter(IN))])
    clock.pass_time(2)
    ledger.restart([counter(IN), counter(OUT)])
    assert (gaps(ledger), seconds(ledger, Gap.REMOVED)) == ({"removed": 2}, 4)


STEPS = [0, 3600, -3600, 1e9]
"""Seconds by which somebody sets the wall clock."""


@pytest.mark.parametrize("step", STEPS)
def test_a_reboot_is_as_long_as_the_machine_is_up_and_the_longest_pause_between_readings_before(
    path: Path, clock: TwoClocks, step: float
) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter(), hook("INPUT", IN)][:1], WEB)
    ledger.post([reading(500)])
    clock.pass_time(10)
    ledger.post([reading(500)])  # nothing new, and read all the same
    ledger.sweep()
    clock.pass_time(60)
    ledger._store.close()  # power is cut
    clock.uptime = 20.0
    clock.time += 7 + step
    after = opened(path, clock, "boot-2")
    assert (gaps(after), seconds(after, Gap.REBOOT)) == ({"reboot": 1}, 20 + 10)
    after.close()


def test_a_reboot_without_live_counters_is_no_gap(path: Path, clock: TwoClocks) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    ledger.close()
    clock.pass_time(60)
    after = opened(path, clock, "boot-2")
    assert (gaps(after), seconds(after, Gap.REBOOT)) == ({}, 0.0)
    assert after.totals().pods[0]["bytes"] == 500
    after.close()


@pytest.mark.parametrize("step", STEPS)
def test_what_an_agent_finds_removed_was_so_since_its_predecessor_read_last(
    path: Path, clock: TwoClocks, step: float
) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter(), counter(address=ADDRESS6)], WEB)
    ledger.post([reading(500)])
    ledger.close()
    clock.pass_time(33)
    clock.time += step
    after = opened(path, clock)
    after.restart([counter()])
    assert seconds(after, Gap.REMOVED) == 33
    after.post([reading(1), reading(1, of=counter(address=ADDRESS6))])
    after.close()


def test_not_durable_lasts_until_it_is_written_and_that_is_written_too(
    ledger: Ledger, path: Path, clock: TwoClocks
) -> None:
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.post([reading(100)])
        clock.pass_time(5)
        assert seconds(ledger, Gap.NOT_DURABLE) == 5
        ledger.post([reading(200)])
        clock.pass_time(2)
        assert seconds(ledger, Gap.NOT_DURABLE) == 7
        other.rollback()
    clock.pass_time(1)
    ledger.post([reading(300)])
    clock.pass_time(50)
    assert (gaps(ledger), seconds(ledger, Gap.NOT_DURABLE)) == ({"not-durable": 1}, 8)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count, seconds FROM gap").fetchall() == [(1, 8)]


def test_a_late_pod_is_as_late_as_told(ledger: Ledger) -> None:
    ledger.note(Gap.LATE, 0.25)
    ledger.note(Gap.LATE, 0.5)
    assert (gaps(ledger), seconds(ledger, Gap.LATE)) == ({"late": 2}, 0.75)


def test_a_wrapped_counter_is_no_gap_and_sums_stay_within_the_file(
    ledger: Ledger, path: Path
) -> None:
    ledger.post([reading((1 << 63) - 400, 5)])
    ledger.post([reading((1 << 64) - 100, 6)])
    ledger.post([reading(250, 7)])
    assert (gaps(ledger), ledger.durable) == ({}, True)
    assert ledger.totals().pods[1]["bytes"] == (1 << 63) * 2 + 250 - (1 << 63)
    again = opened(path, TwoClocks())
    assert again.totals().pods[1]["packets"] == 7
    again.close()


def test_when_the_last_gap_of_each_reason_was_noted_outlives_the_agent(
    ledger: Ledger, path: Path, clock: TwoClocks
) -> None:
    def dates(of: Ledger) -> dict[str, float]:
        return {one["reason"]: one["last"] for one in of.totals().gaps if one["last"]}

    assert dates(ledger) == {}
    first = clock.time
    ledger.note(Gap.LATE)
    clock.pass_time(100)
    ledger.note(Gap.REMOVED)
    clock.pass_time(100)
    ledger.note(Gap.LATE)
    assert dates(ledger) == {Gap.LATE: round(first + 200), Gap.REMOVED: round(first + 100)}
    clock.pass_time(100)
    ledger.post([reading(10)])
    ledger.close()
    again = opened(path, clock)
    assert dates(again) == {Gap.LATE: round(first + 200), Gap.REMOVED: round(first + 100)}
    again.close()
