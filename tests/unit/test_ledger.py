"""The ledger on a real file: what it counts and what it survives."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import cast

import pytest

from netmgr.api.snapshot import NamespaceTotals, PodTotals, TrafficTotals
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.tables import Gap
from netmgr.model import PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import (
    ADDRESS6,
    IN,
    LINGER,
    OUT,
    WEB,
    Clock,
    counter,
    gaps,
    hook,
    namespace_bytes,
    opened,
    pod_bytes,
    reading,
)


def node_total(traffic: Traffic, size: int, packets: int) -> TrafficTotals:
    return {"traffic": traffic, "bytes": size, "packets": packets}


def namespace_total(size: int, packets: int) -> NamespaceTotals:
    return {"namespace": WEB.namespace, **node_total(OUT, size, packets)}


def pod_total(traffic: Traffic, size: int, packets: int) -> PodTotals:
    of_pod = {"namespace": WEB.namespace, "pod": WEB.name, "live": True}
    return cast(PodTotals, {**of_pod, **node_total(traffic, size, packets)})


def test_a_series_begins_at_zero_before_the_first_byte(ledger: Ledger) -> None:
    ledger.begin([counter(IN), counter(OUT)], WEB)
    assert ledger.totals().pods == [pod_total(IN, 0, 0), pod_total(OUT, 0, 0)]
    assert [gap["reason"] for gap in ledger.totals().gaps] == list(Gap)


def test_one_posting_raises_pod_and_namespace(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(1500, 3)])
    ledger.post([reading(4000, 5)])
    totals = ledger.totals()
    assert totals.pods == [pod_total(OUT, 4000, 5)]
    assert totals.namespaces == [namespace_total(4000, 5)]


def test_both_addresses_of_a_dual_stack_pod_add_up(ledger: Ledger) -> None:
    ledger.begin([counter(), counter(address=ADDRESS6)], WEB)
    ledger.post([reading(100), reading(23, of=counter(address=ADDRESS6))])
    assert pod_bytes(ledger) == 123


def test_the_same_reading_twice_changes_nothing(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    before = ledger.totals()
    ledger.post([reading(500), reading(500)])
    assert ledger.totals() == before


def test_beginning_twice_keeps_the_reading(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.begin([counter()], WEB)
    ledger.begin([counter()], PodRef("team-a", "web-0"))  # found again without its UID
    ledger.post([reading(700)])
    assert (pod_bytes(ledger), gaps(ledger)) == (700, {})


@pytest.mark.parametrize("after", [reading(80), reading(600, 1)], ids=["bytes", "packets alone"])
def test_a_reset_by_someone_else_is_a_gap_and_its_bytes_still_count(
    ledger: Ledger, after: Sample
) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500, 10)])
    ledger.post([after])
    assert (pod_bytes(ledger), gaps(ledger)) == (500 + after.bytes, {"reset": 1})


def test_a_removed_counter_starts_over_and_is_a_gap(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.restart([counter(), counter(IN)])
    ledger.post([reading(700)])
    assert (pod_bytes(ledger), gaps(ledger)) == (1200, {"removed": 1})


def test_readings_of_unknown_counters_are_ignored(ledger: Ledger) -> None:
    ledger.post([reading(500)])
    ledger.end([counter()])
    assert ledger.totals().pods == []
    assert ledger.counters() == {}


def test_a_late_reading_of_an_ended_counter_is_not_counted_again(ledger: Ledger) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    ledger.post([reading(500)])
    assert pod_bytes(ledger) == 500


def test_a_series_lingers_then_goes_and_its_namespace_stays(ledger: Ledger, clock: Clock) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    clock.time += LINGER - 1
    ledger.sweep()
    assert [total["live"] for total in ledger.totals().pods] == [False]
    clock.time += 1
    ledger.sweep()
    assert ledger.totals().pods == []
    assert namespace_bytes(ledger) == 500


def test_a_pod_lives_as_long_as_one_of_its_counters(ledger: Ledger) -> None:
    ledger.begin([counter(), counter(address=ADDRESS6)], WEB)
    ledger.end([counter()])
    assert [total["live"] for total in ledger.totals().pods] == [True]
    ledger.end([counter(address=ADDRESS6)])
    assert [total["live"] for total in ledger.totals().pods] == [False]


def test_a_pod_that_returns_within_the_lingering_continues_its_series(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    clock.time += LINGER / 2
    ledger.begin([counter(address=Address.parse("10.1.0.9"))], PodRef("team-a", "web-0", "uid-2"))
    clock.time += LINGER * 2
    ledger.sweep()
    ledger.post([reading(70, of=counter(address=Address.parse("10.1.0.9")))])
    assert (pod_bytes(ledger), namespace_bytes(ledger)) == (570, 570)


def test_a_pod_that_returns_after_the_lingering_starts_over_but_its_namespace_does_not(
    ledger: Ledger, clock: Clock
) -> None:
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    ledger.end([counter()])
    clock.time += LINGER
    ledger.sweep()
    ledger.begin([counter()], WEB)
    ledger.post([reading(70)])
    assert (pod_bytes(ledger), namespace_bytes(ledger)) == (70, 570)


def test_a_clock_that_steps_back_does_not_keep_series_for_ever(
    ledger: Ledger, clock: Clock
) -> None:
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
    assert ledger.totals().namespaces == [namespace_total(1100, 11)]


def test_node_totals_are_local_and_forwarded_traffic_of_both_families(ledger: Ledger) -> None:
    amounts = {
        hook("INPUT", IN): 1,
        hook("FORWARD", IN): 20,
        hook("OUTPUT", OUT): 300,
        hook("FORWARD", OUT): 4000,
        hook("FORWARD", OUT, Family.V6): 50_000,
    }
    ledger.begin(amounts, None)
    ledger.post([Sample(which, size, 1) for which, size in amounts.items()])
    totals = ledger.totals()
    assert totals.node == [node_total(IN, 21, 2), node_total(OUT, 54_300, 3)]
    assert {sample.counter: sample.bytes for sample in totals.rules} == amounts


def test_a_zeroed_rule_shows_as_zeroed_while_the_node_total_goes_on(ledger: Ledger) -> None:
    ledger.begin([hook("INPUT", IN)], None)
    ledger.post([Sample(hook("INPUT", IN), 500, 5)])
    ledger.post([Sample(hook("INPUT", IN), 40, 1)])
    totals = ledger.totals()
    assert totals.rules == [Sample(hook("INPUT", IN), 40, 1)]
    assert totals.node[0] == node_total(IN, 540, 6)


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


def test_what_is_written_but_neither_closed_nor_checkpointed_is_there(
    path: Path, clock: Clock, tmp_path: Path
) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter()], WEB)
    ledger.post([reading(500)])
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{tmp_path}/copy.db{suffix}")
    survivor = opened(tmp_path / "copy.db", clock)
    assert survivor.totals() == ledger.totals()
    survivor.close()
    ledger.close()


def test_a_reboot_drops_kernel_counters_ends_pods_and_keeps_totals(
    path: Path, clock: Clock
) -> None:
    ledger = opened(path, clock)
    ledger.begin([counter()], WEB)
    ledger.begin([hook("INPUT", IN)], None)
    ledger.post([reading(500), Sample(hook("INPUT", IN), 7, 1)])
    ledger.close()
    after = opened(path, clock, "boot-2")
    assert after.counters() == {}
    totals = after.totals()
    assert [(total["bytes"], total["live"]) for total in totals.pods] == [(500, False)]
    assert (namespace_bytes(after), totals.node[0]["bytes"], totals.rules) == (500, 7, [])
    assert gaps(after) == {"reboot": 1}
    after.close()
    same_boot = opened(path, clock, "boot-2")
    assert gaps(same_boot) == {"reboot": 1}
    same_boot.close()


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
    for size in range(50, 500):
        ledger.checkpoint()
        ledger.post([reading(size)])
    assert log.stat().st_size == grown


def test_postings_never_touch_the_disk_beyond_the_log_until_a_checkpoint(
    path: Path, ledger: Ledger
) -> None:
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
