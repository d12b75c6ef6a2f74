"""What judges the lab's runs says so of everything that could be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netmgr.model import Traffic
from tests.lab import tables, verify
from tests.lab.capture import Tally
from tests.lab.comparison import compare, parse, result
from tests.lab.matrix import Target
from tests.lab.traffic import Column, Sent
from tests.lab.verify import Drops, HalfOpen, Pair, Row, Verification

OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
SENT = Sent(
    {
        Column("research", "pod-10", OUT): Tally(1500, 1),
        Column("research", "pod-2", OUT): Tally(40, 1),
        Column("research", "pod-10", IN): Tally(60, 1),
        Column("research", "pod-2", IN): Tally(0, 0),
    },
    {"pod-2": 7},
)


def test_what_agrees_passes() -> None:
    agrees, message = result(compare(SENT, dict(SENT.internet)), SENT)
    assert agrees
    assert "1,600 bytes to and from the internet by 2 pods" in message
    nothing = Sent({}, {})
    assert result(compare(nothing, {}), nothing)[0] is False, "nothing was compared"


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


def test_a_page_of_metrics_gives_each_pods_totals_exactly() -> None:
    page = """
# TYPE netmgr_pod_traffic_bytes_total counter
netmgr_pod_traffic_bytes_total{namespace="research",pod="pod-2",traffic="internet-out"} 1.655354e+06
netmgr_pod_traffic_packets_total{namespace="research",pod="pod-2",traffic="internet-out"} 477.0
netmgr_namespace_traffic_bytes_total{namespace="research",traffic="internet-out"} 5.0
"""
    assert parse(page) == {Column("research", "pod-2", OUT): Tally(1_655_354, 477)}


def test_one_wrong_line_counter_or_half_open_connection_is_enough_to_disagree() -> None:
    everything, expected = (Target.NODES, Target.PODS, Target.SERVICES), "as researcher"
    reached = Row("researcher", "hub", "spoke-1", everything, expected, expected, 20, agrees=True)
    counted = Drops(Pair("spoke-1-cpu-0", "spoke-1", "spoke-2"), 12, 12)
    sound = Verification((reached, reached), (counted,))
    wrong_row = replace(sound, rows=(replace(reached, agrees=False), reached))
    wrong_count = replace(sound, drops=(replace(counted, counted=11),))
    half = replace(sound, half_open=(HalfOpen("nat-0.spoke-1", "tcp SYN_SENT src=…"),))
    assert [verified.agrees for verified in (sound, wrong_row, wrong_count, half)] == [
        True,
        *[False] * 3,
    ]
    assert verify.result(wrong_row).startswith("1 of 2 lines and 0 counters")
    assert verify.result(wrong_count).startswith("0 of 2 lines and 1 counters")
    assert verify.result(half).endswith("1 connections are half-open.")
