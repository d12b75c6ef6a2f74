"""The ledger on a real file: what it counts and what it survives; and for how long counting was
possibly incomplete, whatever the wall clock does meanwhile.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.api.snapshot import AccountingGaps
from netmgr.errors import StateError
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.tables import Gap
from netmgr.model import Counter, PodRef, Sample
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import (
    ADDRESS,
    ADDRESS6,
    IN,
    LINGER,
    OUT,
    WEB,
    Clock,
    TwoClocks,
    counter,
    gap_seconds,
    gaps,
    hook,
    namespace_bytes,
    opened,
    pod_bytes,
    reading,
)


def test_a_series_begins_at_zero_before_the_first_byte(ledger: Ledger) -> None:
    ledger.begin([counter(IN), counter(OUT)], WEB)
    shown = [(total["traffic"], total["bytes"], total["packets"]) for total in ledger.totals().pods]
    assert shown == [(IN, 0, 0), (OUT, 0, 0)]
    assert [gap["reason"] for gap in ledger.totals().gaps] == list(Gap)


def test_beginning_twice_keeps_the_reading(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.begin([counter()], WEB)
    ledger.begin([counter()], PodRef("team-a", "web-0"))  # found again without its UID
    ledger.post([reading(700)])
    assert (pod_bytes(ledger), gaps(ledger)) == (700, {})


def test_a_late_reading_of_an_ended_counter_is_not_counted_again(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    ledger.post([reading(500)])
    ledger.end([counter()])
    assert (pod_bytes(ledger), ledger.counters()) == (500, {})


def test_a_pod_lives_as_long_as_one_of_its_counters(ledger: Ledger) -> None:
    ledger.begin([counter(), counter(address=ADDRESS6)], WEB)
    ledger.end([counter()])
    assert [total["live"] for total in ledger.totals().pods] == [True]
    ledger.end([counter(address=ADDRESS6)])
    assert [total["live"] for total in ledger.totals().pods] == [False]


def test_a_pod_that_returns_while_it_lingers_continues(ledger: Ledger, clock: Clock) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    clock.time += LINGER / 2
    again = counter(address=ADDRESS6)
    ledger.begin([again], PodRef("team-a", "web-0", "uid-2"))
    clock.time += LINGER * 2
    ledger.sweep()
    ledger.post([reading(70, of=again)])
    assert (pod_bytes(ledger), namespace_bytes(ledger)) == (570, 570)


def test_a_pod_that_returns_after_the_lingering_starts_over_but_its_namespace_does_not(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    clock.time += LINGER - 1
    ledger.sweep()
    assert [total["live"] for total in ledger.totals().pods] == [False]
    clock.time += 1
    ledger.sweep()
    assert (ledger.totals().pods, namespace_bytes(ledger)) == ([], 500)
    ledger.begin([counter()], WEB)
    ledger.post([reading(70)])
    assert (pod_bytes(ledger), namespace_bytes(ledger)) == (70, 570)


def test_a_clock_that_steps_back_keeps_no_series_for_ever(ledger: Ledger, clock: Clock) -> None:
    ledger.begin([counter()], WEB)
    ledger.end([counter()])
    clock.time -= 1_000_000
    ledger.sweep()
    clock.time += LINGER
    ledger.sweep()
    assert ledger.totals().pods == []


def test_an_address_that_changed_hands_unended_is_a_gap_and_starts_over(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.begin([counter()], PodRef("team-b", "db-0", "uid-9"))
    ledger.post([reading(30)])
    assert (pod_bytes(ledger), pod_bytes(ledger, "db-0"), gaps(ledger)) == (500, 30, {"removed": 1})
    assert [total["live"] for total in ledger.totals().pods if total["pod"] == "web-0"] == [False]


def test_an_owner_without_a_uid_is_not_taken_for_just_any_pod(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.begin([counter()], PodRef("team-a", "web-1"))
    ledger.post([reading(600)])
    assert (pod_bytes(ledger), pod_bytes(ledger, "web-1")) == (500, 600)
    assert namespace_bytes(ledger) == 1100


def test_a_name_that_is_no_text_is_refused_before_it_bars_every_write(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        ledger.begin([counter()], PodRef("team-a", "\udcff"))
    ledger.begin([counter()], WEB)
    assert ledger.durable


def test_everything_is_there_after_closing_and_opening(path: Path, clock: Clock) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter(IN), counter(OUT)], WEB)
    ledger.begin([hook("FORWARD", OUT, Family.V6)], None)
    ledger.post([reading(500), Sample(hook("FORWARD", OUT, Family.V6), 900, 9)])
    ledger.post([reading(80)])
    ledger.begin([counter(address=ADDRESS6)], PodRef("team-b", "db-0"))
    ledger.end([counter(address=ADDRESS6)])
    before = ledger.totals(), ledger.counters()
    ledger.close()
    again = opened(path, clock)
    assert (again.totals(), again.counters()) == before
    again.post([reading(100)])
    assert pod_bytes(again) == 600
    again.close()


def test_a_reboot_drops_counters_ends_pods_and_keeps_totals(path: Path, clock: Clock) -> None:
    with closing(opened(path, clock)) as ledger:
        ledger.begin([counter()], WEB)
        ledger.begin([hook("INPUT", IN)], None)
        ledger.post([reading(500), Sample(hook("INPUT", IN), 7, 1)])
    with closing(opened(path, clock, "boot-2")) as after:
        assert after.counters() == {}
        totals = after.totals()
        assert [(total["bytes"], total["live"]) for total in totals.pods] == [(500, False)]
        assert (namespace_bytes(after), totals.node[0]["bytes"], totals.rules) == (500, 7, [])
        assert gaps(after) == {"reboot": 1}
    with closing(opened(path, clock, "boot-2")) as same_boot:
        assert gaps(same_boot) == {"reboot": 1}


def test_the_log_is_bounded_by_checkpoints_and_unchanged_readings_write_nothing(
    path: Path, ledger: Ledger
) -> None:
    log = Path(f"{path}-wal")
    ledger.begin([counter()], WEB)
    for size in range(1, 50):
        ledger.post([reading(size)])
    grown = log.stat().st_size
    for _ in range(50):
        ledger.post([reading(49)])
    assert log.stat().st_size == grown
    for size in range(50, 100):
        ledger.checkpoint()
        ledger.post([reading(size)])
    assert log.stat().st_size == grown


def test_postings_touch_only_the_log_until_a_checkpoint(path: Path, ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.checkpoint()
    before = path.read_bytes()
    for size in range(1, 1100):
        ledger.post([reading(size)])
    assert path.read_bytes() == before
    ledger.checkpoint()
    assert path.read_bytes() != before


def test_many_threads_lose_nothing(ledger: Ledger) -> None:
    def live(number: int) -> None:
        mine, pod = counter(address=Address(Family.V4, number)), PodRef("team-a", f"pod-{number}")
        ledger.begin([mine], pod)
        for size in range(1, 26):
            ledger.post([reading(size, of=mine)])
            ledger.totals()
        ledger.end([mine])

    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (namespace_bytes(ledger), gaps(ledger), ledger.counters()) == (8 * 25, {}, {})


@pytest.fixture
def clocks() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
def counting(path: Path, clocks: TwoClocks) -> Iterator[Ledger]:
    ledger = opened(path, clocks)
    ledger.begin([counter(IN), counter(OUT)], WEB)
    yield ledger
    ledger.close()


def test_a_reset_is_as_long_as_since_the_last_reading(counting: Ledger, clocks: TwoClocks) -> None:
    counting.post([reading(500)])
    clocks.pass_time(5)
    counting.post([reading(500)])
    clocks.pass_time(3)
    clocks.time -= 86_400
    counting.post([reading(100)])
    assert (gaps(counting), gap_seconds(counting, Gap.RESET)) == ({"reset": 1}, 3)


def test_counters_that_went_together_are_one_time(counting: Ledger, clocks: TwoClocks) -> None:
    counting.post([reading(500)])
    clocks.pass_time(2)
    counting.post([reading(7, of=counter(IN))])
    clocks.pass_time(2)
    counting.restart([counter(IN), counter(OUT)])
    assert (gaps(counting), gap_seconds(counting, Gap.REMOVED)) == ({"removed": 1}, 4)


STEPS = [-3600, 1e9]
"""Seconds by which somebody sets the wall clock."""


@pytest.mark.parametrize("step", STEPS)
def test_a_reboot_is_as_long_as_the_machine_is_up_and_the_longest_pause_between_readings_before(
    path: Path, clocks: TwoClocks, step: float
) -> None:
    ledger = opened(path, clocks)
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    clocks.pass_time(10)
    ledger.post([reading(500)])  # nothing new, and read all the same
    ledger.sweep()
    clocks.pass_time(60)
    ledger._store.close()  # power is cut
    clocks.uptime = 20.0
    clocks.time += 7 + step
    after = opened(path, clocks, "boot-2")
    assert (gaps(after), gap_seconds(after, Gap.REBOOT)) == ({"reboot": 1}, 20 + 10)
    after.close()


def test_a_reboot_without_live_counters_is_no_gap(path: Path, clocks: TwoClocks) -> None:
    with closing(opened(path, clocks)) as ledger:
        ledger.begin([counter()], WEB)
        ledger.post([reading(500)])
        ledger.end([counter()])
    clocks.pass_time(60)
    with closing(opened(path, clocks, "boot-2")) as after:
        assert (gaps(after), gap_seconds(after, Gap.REBOOT)) == ({}, 0.0)
        assert after.totals().pods[0]["bytes"] == 500


@pytest.mark.parametrize("step", STEPS)
def test_what_an_agent_finds_removed_was_so_since_its_predecessor_read_last(
    path: Path, clocks: TwoClocks, step: float
) -> None:
    with closing(opened(path, clocks)) as ledger:
        ledger.begin([counter(), counter(address=ADDRESS6)], WEB)
        ledger.post([reading(500)])
    clocks.pass_time(33)
    clocks.time += step
    with closing(opened(path, clocks)) as after:
        after.restart([counter()])
        assert gap_seconds(after, Gap.REMOVED) == 33
        after.post([reading(1), reading(1, of=counter(address=ADDRESS6))])


def test_not_durable_lasts_until_it_is_written_and_that_is_written_too(
    counting: Ledger, path: Path, clocks: TwoClocks
) -> None:
    with sqlite3.connect(path) as other:
        other.execute("BEGIN IMMEDIATE")
        counting.post([reading(100)])
        clocks.pass_time(5)
        assert gap_seconds(counting, Gap.NOT_DURABLE) == 5
        assert not counting.durable
        counting.post([reading(200)])
        clocks.pass_time(2)
        assert gap_seconds(counting, Gap.NOT_DURABLE) == 7
        other.rollback()
    clocks.pass_time(1)
    counting.post([reading(300)])
    assert (counting.durable, counting.totals().durable) == (True, True)
    clocks.pass_time(50)
    assert (gaps(counting), gap_seconds(counting, Gap.NOT_DURABLE)) == ({"not-durable": 1}, 8)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count, seconds FROM gap").fetchall() == [(1, 8)]


def test_a_wrapped_counter_is_no_gap_and_its_sum_is_kept(counting: Ledger, path: Path) -> None:
    counting.post([reading((1 << 63) - 400, 5)])
    counting.post([reading((1 << 64) - 100, 6)])
    counting.post([reading(250, 7)])
    assert (gaps(counting), counting.durable) == ({}, True)
    assert counting.totals().pods[1]["bytes"] == (1 << 63) * 2 + 250 - (1 << 63)
    again = opened(path, TwoClocks())
    assert again.totals().pods[1]["packets"] == 7
    again.close()


@pytest.mark.parametrize(
    ("life", "shown", "counted", "found"),
    [
        (5, Sample(counter(), 700, 7, 5), 700, {}),
        (5, Sample(counter(), 500, 5, 5), 500, {}),
        (5, Sample(counter(), 300, 3, 5), 500, {"restored": 1}),
        (5, Sample(counter(), 900, 9, 4), 500, {"restored": 1}),
        (5, Sample(counter(), 300, 3, 4), 500, {"restored": 1}),
        (5, Sample(counter(), 300, 3), 800, {"reset": 1}),
        (5, Sample(counter(), 900, 9), 1400, {"reset": 1}),
        (0, reading(80), 580, {"reset": 1}),
        (0, reading(600, 1), 1100, {"reset": 1}),
        # The node's counters live as long as their table.
        (7, Sample(hook("INPUT", IN), 300, 3, 7), 800, {"reset": 1}),
        (7, Sample(hook("INPUT", IN), 300, 3, 8), 500, {"restored": 1}),
        (7, Sample(hook("INPUT", IN), 900, 9, 8), 500, {"restored": 1}),
    ],
    ids=[
        *("more", "the same", "less", "another life", "less in it", "zeroed", "zeroed and more"),
        *("fewer bytes of no life", "fewer packets of no life"),
        *("zeroed table", "less in another table", "more in another table"),
    ],
)
def test_what_was_put_back_is_not_counted_and_what_was_zeroed_is(
    ledger: Ledger, life: int, shown: Sample, counted: int, found: dict[str, int]
) -> None:
    def sizes() -> list[int]:
        totals = ledger.totals()
        return [total["bytes"] for total in (*totals.pods, *totals.node)]

    of = shown.counter
    ledger.begin([of], WEB if of.is_pod else None)
    ledger.post([Sample(of, 500, 5, life)])
    ledger.post([shown])
    assert (sizes(), gaps(ledger)) == ([counted], found)
    ledger.post([shown._replace(bytes=shown.bytes + 40)])
    assert sizes() == [counted + 40]


def test_a_gap_has_from_and_to_the_counters_concerned_and_bytes_where_these_are_known(
    path: Path, clocks: TwoClocks
) -> None:
    def told(of: Ledger) -> AccountingGaps:
        (gap,) = (one for one in of.totals().gaps if one["count"])
        return gap

    pods = Counter("PODS", Family.V4, OUT)
    began = clocks.time
    with closing(opened(path, clocks)) as ledger:
        ledger.begin([pods], None)
        ledger.begin([counter()], WEB)
        ledger.post([reading(100, of=pods), reading(100)])
        clocks.pass_time(60)
        ledger.post([reading(350, of=pods), reading(30, 1)])
        expected = {
            "reason": "reset",
            "count": 1,
            "seconds": 60.0,
            "bytes": 250 - 30,
            "since": round(began),
            "last": round(began + 60),
            "concerned": 1,
            "counters": [f"{ADDRESS} internet-out"],
        }
        assert told(ledger) == expected
    with closing(opened(path, clocks)) as again:
        assert told(again) == expected
        clocks.pass_time(10)
        again.post([reading(390, of=pods), reading(30, 1)])
        more = {"count": 2, "seconds": 70.0, "bytes": 250 - 30 + 40}
        more |= {
            "since": round(began + 60),
            "last": round(began + 70),
            "concerned": 0,
            "counters": [],
        }
        assert told(again) == expected | more


def many_pods(path: Path) -> bytearray:
    """The content of a ledger of several pages."""
    ledger = opened(path, Clock())
    for number in range(200):
        pod = PodRef("team-a", f"pod-{number}")
        ledger.begin([counter(address=Address(Family.V4, number))], pod)
    ledger.close()
    return bytearray(path.read_bytes())


def overwrite_a_page(path: Path) -> None:
    content = many_pods(path)
    content[8192:12288] = b"\xa5" * 4096
    path.write_bytes(content)


def execute(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        ledger = opened(path, Clock())
        ledger.begin([counter()], WEB)
        ledger.close()
        with sqlite3.connect(path) as connection:
            connection.execute(statement)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(many_pods(path)[:5000]),
        overwrite_a_page,
        execute("UPDATE counter SET subject = 'localhost'"),
        execute("DROP TABLE counter"),
        execute("REPLACE INTO fact VALUES ('read_at_steady', 'many')"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_was(
    path: Path, clock: Clock, damage: Callable[[Path], object]
) -> None:
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StateError, match=str(path)):
        opened(path, clock)
    assert path.read_bytes() == before
