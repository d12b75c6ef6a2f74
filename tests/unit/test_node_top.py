"""What `netmgr node top` makes of an agent's snapshots, and what of it fits on a screen."""

from __future__ import annotations

from copy import deepcopy

import click
import pytest

from netmgr.cli.top import plain
from netmgr.cli.top.columns import (
    ASCII,
    UNICODE,
    Tone,
    bar,
    compact,
    middle_cut,
    percent,
    spark,
    tone_of,
)
from netmgr.cli.top.rates import NODE, Meter, Reading, Share, budgets
from netmgr.cli.top.screen import Look, Size, Status, frame
from netmgr.cli.top.view import Group, Sort, View, rows
from netmgr.drawing import plain as printable
from tests.fakes.agent_socket import snapshot

SECONDS = 2.0
HOSTILE = "\x1b[2Jpod\nnext"


def after(before: dict, gained: dict[str, tuple[int, int]], seconds: float = SECONDS) -> dict:
    """A snapshot in which pods, by their numbers, have received and sent so many bytes more."""
    now = deepcopy(before)
    now["taken_at"] += seconds
    for one in now["pods"]:
        pair = gained.get(one["pod"].rpartition("-")[2], (0, 0))
        one["bytes"] += pair[one["traffic"] == "internet-out"]
    return now


def measured(before: dict, now: dict) -> Reading:
    return Meter(before, SECONDS).read(now)


def names(reading: Reading, **choices: object) -> list[str]:
    return ["/".join(filter(None, row.name)) for row in rows(reading, View(**choices))]


def pod(number: int, namespace: int = 0) -> str:
    return f"team-{namespace}/training-worker-{number}"


def test_rates_are_those_between_two_readings() -> None:
    before = snapshot(2, 1)
    reading = measured(before, after(before, {"0": (4000, 1000), "1": (500, 0)}))
    by_name = {row.name[1]: row for row in (*reading.pods, *reading.namespaces)}
    assert (by_name["training-worker-0"].received, by_name["training-worker-0"].sent) == (2000, 500)
    assert by_name[""].total == 2750
    assert by_name[""].trend == (2750,)


def test_a_pod_that_was_not_there_before_is_counted_from_its_beginning() -> None:
    before, now = snapshot(1, 1), after(snapshot(2, 1), {})
    for one in now["pods"][2:]:
        one["bytes"] = 800
    rates = {row.name[1]: row.sent for row in measured(before, now).pods}
    assert rates == {"training-worker-0": 0, "training-worker-1": 400}


def test_a_ledger_that_begins_anew_is_no_negative_rate() -> None:
    before = snapshot(1, 1)
    now = after(before, {})
    for one in (*now["pods"], *now["node_totals"]):
        one["bytes"] = 10
    reading = measured(before, now)
    assert (reading.node.total, reading.pods[0].total) == (0, 0)


def test_a_clock_that_is_set_back_is_no_peak() -> None:
    before = snapshot(1, 1)
    reading = measured(before, after(before, {"0": (6, 0)}, -3600.0))
    assert reading.pods[0].received == 6 / SECONDS


def test_pods_that_are_gone_are_forgotten_and_outages_are_blanks_of_the_trend() -> None:
    both, one = snapshot(2, 1), snapshot(1, 1)
    meter = Meter(both, SECONDS)
    meter.read(after(both, {"1": (20, 0)}))
    meter.miss()
    meter.read(after(one, {"0": (8, 0)}, 2 * SECONDS))
    reading = meter.read(after(both, {"0": (8, 0)}, 3 * SECONDS))
    trends = {row.name[1]: row.trend for row in reading.pods}
    assert trends["training-worker-0"] == (0, None, 4, 0)
    assert len(trends["training-worker-1"]) == 1


def test_the_trend_is_of_one_minute() -> None:
    now = snapshot(1, 1)
    meter = Meter(now, 2.0)
    for _ in range(40):
        now = after(now, {})
        reading = meter.read(now)
    assert len(reading.pods[0].trend) == 30


def test_usage_is_beside_limits_and_the_fullest_quota() -> None:
    before = snapshot(1, 1)
    limit = {"namespace": "team-0", "pod": "", "traffic": "internet-out", "rate": 8000, "bytes": 50}
    quota = {"namespace": "team-0", "pod": "training-worker-0", "traffic": "internet-in"}
    before["limits"] = [limit]
    before["quotas"] = [
        {**quota, "period": "day", "used": 10, "budget": 100},
        {**quota, "period": "month", "used": 25, "budget": 100},
    ]
    now = after(before, {})
    now["limits"] = [{**limit, "bytes": 1050}]
    reading = measured(before, now)
    (namespace,), (only,) = reading.namespaces, reading.pods
    assert namespace.limits["internet-out"].part == pytest.approx(0.5)
    assert (only.quota.words, only.quota.part) == ("in a month", 0.25)
    assert (only.limits, namespace.quota) == ({}, None)


def test_what_cannot_run_out_is_no_budget() -> None:
    shown = {one.words: (one.used, one.most) for one in budgets(snapshot())}
    assert shown == {
        "IPv4": (253, 506),
        "connections": (20_100, 262_144),
        "IPv4 tcp ports": (16_128, 64_512),
    }


def test_rows_are_sorted_by_what_is_asked_for_and_unknown_connections_come_last() -> None:
    before = snapshot(3, 1)
    before["tracking"]["pods"] = [
        {"namespace": "team-0", "pod": "training-worker-2", "connections": 0},
        {"namespace": "team-0", "pod": "training-worker-1", "connections": 9},
    ]
    reading = measured(before, after(before, {"0": (1, 9), "1": (6, 1), "2": (5, 6)}))
    orders = {sort: [name[-1] for name in names(reading, sort=sort)] for sort in Sort}
    assert orders == {
        Sort.TOTAL: ["2", "0", "1"],
        Sort.IN: ["1", "2", "0"],
        Sort.OUT: ["0", "2", "1"],
        Sort.CONNECTIONS: ["1", "2", "0"],
        Sort.NAME: ["0", "1", "2"],
    }


def test_a_pattern_shows_pods_of_a_namespace_or_by_name_and_half_a_pattern_is_letters() -> None:
    before = snapshot(4, 2)
    reading = measured(before, after(before, {}))
    assert names(reading, pattern="^TEAM-1/") == [pod(1, 1), pod(3, 1)]
    assert names(reading, pattern="worker-[02]$", group=Group.NAMESPACE) == ["team-0"]
    assert names(reading, pattern="worker-[") == []


def test_each_namespace_comes_before_its_pods() -> None:
    before = snapshot(4, 2)
    reading = measured(before, after(before, {"0": (1, 0), "3": (9, 0), "2": (2, 0)}))
    shown = names(reading, group=Group.BOTH)
    assert shown == ["team-1", pod(3, 1), pod(1, 1), "team-0", pod(2), pod(0)]


def test_a_trend_is_drawn_to_its_own_scale_and_newest_at_the_right() -> None:
    assert spark((0.0, 1.0, None, 7.0), 8, UNICODE) == "▁▂ █"
    assert spark((0.0, 0.0), 8, UNICODE) == "▁▁"
    assert spark((9.0, *[1.0] * 7), 4, ASCII) == "@..."
    assert spark((), 8, UNICODE) == ""
    assert len(spark(tuple(map(float, range(31))), 10, UNICODE)) <= 10


def test_a_bar_is_full_only_where_nothing_is_left_of_it() -> None:
    assert bar(Share("", 99, 100), 10, UNICODE) == "█" * 9 + "░"
    assert bar(Share("", 101, 100), 10, UNICODE) == "█" * 10
    assert percent(Share("", 999, 1000)) == "99%"
    assert percent(Share("", 5, 0)) == "0%"
    assert [tone_of(Share("", used, 100)) for used in (79, 80, 95)] == [
        Tone.PLAIN,
        Tone.HIGH,
        Tone.FULL,
    ]


def test_numbers_are_short_and_names_keep_both_ends() -> None:
    assert [compact(count) for count in (9_999, 20_100, 4_200_000)] == ["9999", "20k", "4M"]
    assert middle_cut("team-1/training-worker-17", 12, UNICODE) == "team-…ker-17"


@pytest.mark.parametrize("group", Group)
@pytest.mark.parametrize("lines", [1, 2, 6, 24, 60])
def test_a_frame_has_the_size_of_its_terminal(group: Group, lines: int) -> None:
    before = snapshot(30, 4)
    before["pods"][0]["pod"] = HOSTILE
    reading = measured(before, after(before, {}))
    for columns in (*range(1, 30, 4), 80, *range(81, 220, 20)):
        for view in (View(group=group), View(is_helping=True), View(pattern="x", typed="x" * 300)):
            shape = Size(columns, lines)
            shown = frame(reading, view, Status(2.0, "away"), shape, Look(UNICODE)).lines
            plain_lines = [click.unstyle(line) for line in shown]
            assert len(shown) == lines
            assert max(map(len, plain_lines)) <= columns
            assert all(line == printable(line) for line in plain_lines)


def test_a_frame_before_the_first_figures_says_so() -> None:
    lines = frame(None, View(), Status(2.0), Size(80, 24), Look(UNICODE)).lines
    assert click.unstyle(lines[0]) == "measuring"


def test_a_plain_table_has_only_the_columns_that_say_something() -> None:
    before = snapshot(2, 1)
    before["limits"] = before["quotas"] = []
    del before["tracking"]
    bare, *_ = plain.parts(measured(before, after(before, {})), View(), 20)
    assert click.unstyle(str(bare)).splitlines()[1].split() == ["namespace", "pod", "in/s", "out/s"]
    full = snapshot(2, 1)
    full["quotas"][0] |= {"namespace": "team-0", "pod": "training-worker-1"}
    shown, tail = plain.parts(measured(full, after(full, {})), View(), 20)
    assert "50% of 246.9 GB in a month" in str(shown)
    assert tail.startswith("IPv4: 253 of 506 (50%)")


def test_the_nodes_own_row_is_not_among_the_others() -> None:
    before = snapshot(2, 1)
    reading = measured(before, after(before, {}))
    assert reading.node.name == NODE
    assert NODE not in {row.name for row in (*reading.pods, *reading.namespaces)}
