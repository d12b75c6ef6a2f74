"""The comparison says what differs, and says so of everything that could be wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netmgr.model import Traffic
from tests.lab import tables
from tests.lab.capture import Tally
from tests.lab.comparison import compare, parse, result, wait_for
from tests.lab.traffic import Column, Sent

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
SENT = Sent(
    {
        Column("research", "pod-10", OUT): Tally(1500, 1),
        Column("research", "pod-2", OUT): Tally(40, 1),
    }
    | {
        Column("research", "pod-10", IN): Tally(60, 1),
        Column("research", "pod-2", IN): Tally(0, 0),
    },
    {"pod-2": 7},
)


def test_what_agrees_is_in_reading_order_and_passes() -> None:
    rows = compare(SENT, dict(SENT.internet))
    assert [(row.column.pod, row.column.traffic) for row in rows] == [
        ("pod-2", OUT),
        ("pod-2", IN),
        ("pod-10", OUT),
        ("pod-10", IN),
    ]
    agrees, message = result(rows, SENT)
    assert agrees
    assert "1,600 bytes to and from the internet by 2 pods" in message


@pytest.mark.parametrize(
    "wrong",
    [
        {Column("research", "pod-2", OUT): Tally(39, 1)},
        {Column("research", "pod-2", OUT): Tally(40, 2)},
        {Column("research", "pod-2", IN): Tally(1, 1)},
        {Column("research", "pod-2", OUT): Tally()},
        {Column("elsewhere", "pod-2", OUT): Tally(40, 1)},
    ],
)
def test_one_byte_or_packet_too_few_or_too_many_is_a_difference(wrong: dict[Column, Tally]) -> None:
    rows = compare(SENT, {**SENT.internet, **wrong})
    assert result(rows, SENT) == (False, "Sent and counted differ for pod-2.")
    shown = str(tables.comparison(rows, SENT))
    assert shown.count("differs") == sum(not row.agrees for row in rows) >= 1


def test_a_pod_the_exporter_does_not_know_is_a_difference() -> None:
    counted = {column: tally for column, tally in SENT.internet.items() if column.pod != "pod-10"}
    assert result(compare(SENT, counted), SENT) == (False, "Sent and counted differ for pod-10.")


def test_nothing_compared_is_no_success() -> None:
    nothing = Sent({}, {})
    assert result(compare(nothing, {}), nothing)[0] is False


def test_a_page_of_metrics_gives_each_pods_totals_exactly() -> None:
    page = """
# TYPE netmgr_pod_traffic_bytes_total counter
netmgr_pod_traffic_bytes_total{namespace="research",pod="pod-2",traffic="internet-out"} 1.655354e+06
netmgr_pod_traffic_bytes_total{namespace="a \\"b\\"",pod="pod-2",traffic="internet-in"} \
9.007199254740991e+15
# TYPE netmgr_pod_traffic_packets_total counter
netmgr_pod_traffic_packets_total{namespace="research",pod="pod-2",traffic="internet-out"} 477.0
netmgr_namespace_traffic_bytes_total{namespace="research",traffic="internet-out"} 5.0
"""
    assert parse(page) == {
        Column("research", "pod-2", OUT): Tally(1_655_354, 477),
        Column('a "b"', "pod-2", IN): Tally(9_007_199_254_740_991, 0),
    }


def test_a_count_that_runs_behind_may_catch_up() -> None:
    right = {Column("research", "pod-2", OUT): Tally(2, 1)}
    looks: Iterator[dict[Column, Tally]] = iter(
        [{}, {Column("research", "pod-2", OUT): Tally(1, 1)}, right]
    )
    assert wait_for(lambda: next(looks), right, patience=60) == right


def test_a_count_that_stays_wrong_is_returned_as_it_is() -> None:
    wrong = {Column("research", "pod-2", OUT): Tally(1, 1)}
    assert wait_for(lambda: wrong, {}, patience=0) == wrong
