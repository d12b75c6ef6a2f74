"""Hourly roll-ups: who used the internet when, bounded, and as exact as the totals."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.errors import OtherSchema, SetupError, StateError
from netmgr.ledger import store
from netmgr.ledger.history import By, HourBucket, Period, Retention, Unwritten, grouped, usage_row
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.mark import Mark
from netmgr.ledger.tables import Amount, Gap
from netmgr.model import PODS, Counter, PodRef, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import (
    IN,
    LINGER,
    OUT,
    WEB,
    Clock,
    counter,
    hook,
    opened,
    pod_bytes,
    reading,
)

HOUR = 3600
START = 500_000  # hours since the epoch
ALL = Period(0, 10_000_000)


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.time = float(START * HOUR)
    return clock


def bounded(path: Path, clock: Clock, hours: int, rows: int = 100_000) -> Ledger:
    return opened(path, clock, retention=Retention(hours, rows))


def spend(ledger: Ledger, pod: PodRef, size: int, number: int = 5) -> None:
    """Have a pod of a moment send so much."""
    mine = counter(address=Address(Family.V4, number))
    ledger.begin([mine], pod)
    ledger.post([reading(size, 1, of=mine)])
    ledger.end([mine])


def test_a_loss_and_a_gap_are_of_the_hours_that_they_were_in() -> None:
    hours = Unwritten()
    hours.lose(2 * HOUR + 1, OUT, 7)
    hours.miss(HOUR - 1, 2 * HOUR, [("a/b", IN)])
    assert hours == {HourBucket(2, "", "", OUT): Amount(7, 0)} | {
        HourBucket(hour, "", "a/b", IN): Amount(0, 1) for hour in range(3)
    }


def test_a_posting_raises_the_hour_of_its_reading(ledger: Ledger, clock: Clock) -> None:
    ledger.begin([counter(IN), counter(OUT)], WEB)
    ledger.post([reading(100, 1)])
    clock.time += HOUR - 1
    ledger.post([reading(250, 2)])
    clock.time += 1
    ledger.post([reading(1000, 9), reading(7, 1, of=counter(IN))])
    assert ledger.usage(ALL, [By.HOUR]) == [
        usage_row(START + 1, "", "", OUT, Amount(750, 7)),
        usage_row(START, "", "", OUT, Amount(250, 2)),
        usage_row(START + 1, "", "", IN, Amount(7, 1)),
    ]
    assert ledger.usage(ALL, [By.POD]) == [
        usage_row(0, "team-a", "web-0", OUT, Amount(1000, 9)),
        usage_row(0, "team-a", "web-0", IN, Amount(7, 1)),
    ]


def test_a_period_is_of_whole_hours_that_hold_any_of_it(ledger: Ledger, clock: Clock) -> None:
    ledger.begin([counter()], WEB)
    for number in range(1, 6):
        ledger.post([reading(10**number, number)])
        clock.time += HOUR
    period = Period.around((START + 1) * HOUR + 1800, (START + 3) * HOUR)
    assert period == Period(START + 1, START + 3)
    assert Period.around(0, HOUR + 1) == Period(0, 2)
    assert Period.around(-1, 1) == Period(-1, 1)
    assert [row["hour"] for row in ledger.usage(period, [By.HOUR])] == [START + 2, START + 1]


def test_rows_that_differ_in_what_groups_do_not_name_are_one() -> None:
    rows = [
        usage_row(hour, namespace, pod, OUT, Amount(size, 1))
        for hour, namespace, pod, size in ((1, "a", "x", 1), (2, "a", "y", 20), (2, "b", "x", 300))
    ]
    assert grouped(rows, [By.CLASS]) == [usage_row(0, "", "", OUT, Amount(321, 3))]
    assert grouped(rows, [By.NAMESPACE]) == [
        usage_row(0, "b", "", OUT, Amount(300, 1)),
        usage_row(0, "a", "", OUT, Amount(21, 2)),
    ]


def test_each_row_has_what_it_may_lack_at_most(ledger: Ledger, clock: Clock) -> None:
    def missing(*by: By) -> dict[tuple[int, str], int | None]:
        return {(one["hour"], one["traffic"]): one["missing"] for one in ledger.usage(ALL, by)}

    sums = [Counter(PODS, Family.V4, traffic) for traffic in (IN, OUT)]
    ledger.begin(sums, None)
    ledger.begin([counter(IN), counter(OUT)], WEB)
    ledger.post([reading(9, 1, of=counter(IN)), reading(100, 9)])
    ledger.post([reading(100, 9, of=sums[1]), reading(0, 0, of=sums[0])])
    assert set(missing(By.POD).values()) == {0}
    clock.time += HOUR
    ledger.post([reading(700, 9, of=sums[1]), reading(150, 9)])
    assert missing(By.POD) == {(0, IN): 0, (0, OUT): 550}
    assert missing(By.HOUR) == {(START, IN): 0, (START, OUT): 0, (START + 1, OUT): 550}
    clock.time += HOUR + 60
    ledger.note(Gap.LATE, clock.monotonic() - 1)
    ledger.post([reading(800, 9, of=sums[1]), reading(250, 9)])
    assert missing(By.POD) == {(0, IN): None, (0, OUT): None}
    assert missing(By.HOUR)[START + 1, OUT] == 550
    assert missing(By.HOUR)[START + 2, OUT] is None


def missing(ledger: Ledger) -> dict[str, int | None]:
    return {one["traffic"]: one["missing"] for one in ledger.usage(ALL, [By.CLASS])}


def test_a_gap_of_an_unknown_size_is_in_every_hour_from_its_beginning_to_its_end(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.begin([counter()], WEB)
    for size in range(1, 6):
        ledger.post([reading(size, size)])
        clock.time += HOUR
    ledger.note(Gap.LATE, clock.monotonic() - 2.5 * HOUR)
    missing = {row["hour"] - START: row["missing"] for row in ledger.usage(ALL, [By.HOUR])}
    assert missing == {0: 0, 1: 0, 2: None, 3: None, 4: None}


def test_hours_of_a_gap_take_no_room_from_hours_with_traffic(path: Path, clock: Clock) -> None:
    ledger = bounded(path, clock, hours=2)
    for _ in range(2):
        spend(ledger, WEB, 9)
        clock.time += HOUR
    clock.time += 20 * HOUR
    ledger.note(Gap.LATE, clock.monotonic() - 19 * HOUR)
    ledger.sweep()
    assert [row["hour"] - START for row in ledger.usage(ALL, [By.HOUR])] == [0, 1]
    ledger.close()


def test_a_gap_of_some_pods_counters_bounds_no_other_pods_rows(path: Path, clock: Clock) -> None:
    ledger = bounded(path, clock, hours=10, rows=9)
    db, other = PodRef("team-a", "db-0"), PodRef("team-b", "web-0")
    addresses = [Address(Family.V4, number) for number in range(3)]
    counters = [counter(Traffic("hub-out"), address) for address in addresses]
    for pod, of in zip((WEB, db, other), counters, strict=True):
        ledger.begin([of], pod)
    samples = [reading(100, 1, of=of) for of in counters]
    ledger.post(samples)
    ledger.restart(counters[:1])
    ledger.post(samples)

    def missing(*by: By) -> dict[str, int | None]:
        rows = ledger.usage(ALL, by)
        return {f"{row['namespace']}/{row['pod']}": row["missing"] for row in rows}

    expected = {"team-a/web-0": None, "team-a/db-0": 0, "team-b/web-0": 0}
    assert missing(By.POD) == missing(By.POD, By.HOUR) == expected
    assert missing(By.NAMESPACE) == {"team-a/": None, "team-b/": 0}
    assert missing(By.CLASS) == {"/": None}
    # Folded with the oldest hours' pods, it is of nobody in particular.
    clock.time += HOUR
    for number in range(9):
        spend(ledger, PodRef("team-a", f"pod-{number}"), 5, number)
    ledger.sweep()
    assert (
        missing(By.POD)["team-b/web-0" if "team-b/web-0" in missing(By.POD) else "team-b/"] is None
    )
    ledger.close()


HUB, HOST = counter(Traffic("hub-out")), Counter("cgroup 7", Family.V4, IN)


def test_what_has_no_sum_lacks_nobody_knows_how_many_bytes(ledger: Ledger) -> None:
    ledger.begin([HUB, counter()], WEB)
    ledger.begin([HOST], PodRef("kube-system", "proxy"))
    samples = [reading(100, of=one) for one in (HUB, HOST, counter())]
    ledger.post(samples)
    assert missing(ledger) == {HUB.traffic: 0, IN: 0, OUT: 0}
    ledger.restart([HUB, HOST, counter()])
    ledger.post(samples)
    assert missing(ledger) == {HUB.traffic: None, IN: None, OUT: 0}


def test_after_a_reboot_or_a_lost_ledger_every_row_may_lack_something(
    path: Path, clock: Clock
) -> None:
    def spent(ledger: Ledger) -> dict[str, int | None]:
        ledger.begin([HUB, counter()], WEB)
        ledger.post([reading(100, of=HUB), reading(100)])
        return missing(ledger)

    with closing(opened(path, clock)) as ledger:
        assert spent(ledger) == {HUB.traffic: 0, OUT: 0}
    with closing(opened(path, clock, "boot-2")) as ledger:
        assert spent(ledger) == {HUB.traffic: None, OUT: None}
    path.unlink()
    with closing(opened(path, clock)) as ledger:
        ledger.examine([Mark(1, 9)], has_counters=False)
        ledger.post([])
        assert spent(ledger) == {HUB.traffic: None, OUT: None}


def test_pods_stay_in_the_history_after_their_series_went(ledger: Ledger, clock: Clock) -> None:
    spend(ledger, WEB, 500)
    clock.time += LINGER
    ledger.sweep()
    assert pod_bytes(ledger) is None
    assert ledger.usage(ALL, [By.POD]) == [usage_row(0, "team-a", "web-0", OUT, Amount(500, 1))]


def test_the_node_itself_is_not_in_the_pods_history(ledger: Ledger) -> None:
    ledger.begin([hook("OUTPUT", OUT)], None)
    ledger.post([reading(500, of=hook("OUTPUT", OUT))])
    assert ledger.usage(ALL, [By.CLASS]) == []


def test_the_latest_hours_are_kept_even_past_an_absurd_clock(path: Path, clock: Clock) -> None:
    ledger = bounded(path, clock, hours=3)
    for number in range(5):
        spend(ledger, WEB, 10**number)
        clock.time += HOUR
        ledger.sweep()
        assert len(ledger.usage(ALL, [By.HOUR])) <= 3
    assert [row["hour"] - START for row in ledger.usage(ALL, [By.HOUR])] == [4, 3, 2]
    clock.time += 50 * 365 * 24 * HOUR
    spend(ledger, WEB, 1)
    ledger.sweep()
    clock.time -= 50 * 365 * 24 * HOUR
    assert len(ledger.usage(ALL, [By.HOUR])) == 3, "one hour of the past went, not all of them"
    ledger.close()


def test_too_many_rows_are_folded_oldest_and_smallest_first(path: Path, clock: Clock) -> None:
    ledger = bounded(path, clock, hours=10, rows=8)
    for _ in range(2):
        for number in range(5):
            spend(ledger, PodRef(f"team-{number % 2}", f"pod-{number}"), 100 + number, number)
        clock.time += HOUR
    before = ledger.usage(ALL, [By.NAMESPACE, By.HOUR])
    ledger.sweep()
    shown = {(row["hour"] - START, row["pod"]) for row in ledger.usage(ALL, [By.HOUR, By.POD])}
    assert shown == {(0, ""), (0, "pod-4")} | {(1, f"pod-{number}") for number in range(5)}
    assert ledger.usage(ALL, [By.NAMESPACE, By.HOUR]) == before
    ledger.close()


def test_rows_of_namespaces_alone_are_bounded_as_well(path: Path, clock: Clock) -> None:
    ledger = bounded(path, clock, hours=10, rows=6)
    for number in range(12):
        spend(ledger, PodRef(f"team-{number}", "pod"), 100, number)
        clock.time += HOUR / 4
    ledger.sweep()
    assert [row["hour"] - START for row in ledger.usage(ALL, [By.HOUR])] == [2]
    ledger.close()


def test_no_history_is_kept_where_none_is_wanted(path: Path, clock: Clock) -> None:
    ledger = opened(path, clock)
    spend(ledger, WEB, 500)
    ledger.close()
    without = bounded(path, clock, hours=0)
    spend(without, WEB, 500)
    without.sweep()
    assert without.usage(ALL, [By.HOUR]) == []
    assert pod_bytes(without) == 1000
    without.close()


def test_what_the_file_could_not_take_is_in_the_answer_and_later_in_the_file_open_or_not(
    ledger: Ledger, path: Path, clock: Clock
) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(100, 1)])
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.post([reading(250, 2)])
        assert not ledger.durable
        assert ledger.usage(ALL, [By.POD]) == [usage_row(0, "team-a", "web-0", OUT, Amount(250, 2))]
        other.rollback()
    clock.time += HOUR
    ledger.post([reading(300, 3)])
    for _ in range(2):
        with store.reading(path) as connection:
            assert store.usage(connection, ALL, [By.HOUR]) == [
                usage_row(START, "", "", OUT, Amount(250, 2)),
                usage_row(START + 1, "", "", OUT, Amount(50, 1)),
            ]
        ledger.close()


def test_a_file_that_is_no_ledger_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_bytes(b"nonsense " * 1000)
    with sqlite3.connect(tmp_path / "other") as other:
        other.execute("PRAGMA user_version = 99")
        other.execute("CREATE TABLE hour (hour)")
    refusals = {"absent": SetupError, "nonsense": StateError, "other": OtherSchema}
    for name, error in refusals.items():
        with pytest.raises(error, match=name), store.reading(tmp_path / name):
            pass


def test_more_pods_than_memory_has_room_for_are_folded_into_namespaces(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netmgr.ledger.history.UNWRITTEN_BUCKETS", 3)
    counters = [Counter.of_pod(Address(Family.V4, number), OUT) for number in range(6)]
    for number, mine in enumerate(counters):
        ledger.begin([mine], PodRef("team-a", f"pod-{number}"))
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        ledger.post([reading(10, 1, of=mine) for mine in counters])
        other.rollback()
    shown = {row["pod"]: row["bytes"] for row in ledger.usage(ALL, [By.POD])}
    assert shown == {"pod-0": 10, "pod-1": 10, "pod-2": 10, "": 30}
