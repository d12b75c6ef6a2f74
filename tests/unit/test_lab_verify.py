"""The sentence that concludes a verification counts what is wrong."""

from __future__ import annotations

from dataclasses import replace

from tests.lab.matrix import Target
from tests.lab.verify import Drops, HalfOpen, Pair, Row, Verification, result

EVERYTHING = (Target.NODES, Target.PODS, Target.SERVICES)
REACHED = Row(
    "researcher", "hub", "spoke-1", EVERYTHING, "as researcher", "as researcher", 20, agrees=True
)
DROPPED = Row(
    "pod-1",
    "spoke-1",
    "spoke-2",
    EVERYTHING,
    "dropped, counted",
    "dropped, counted",
    12,
    agrees=True,
)
COUNTED = Drops(Pair("spoke-1-cpu-0", "spoke-1", "spoke-2"), 12, 12)
SOUND = Verification((REACHED, DROPPED), (COUNTED,))


def test_what_agrees_is_told_in_numbers() -> None:
    assert SOUND.agrees
    assert "All 32 probes" in result(SOUND)
    assert "12 packets" in result(SOUND)


def test_one_wrong_line_counter_or_half_open_connection_is_enough_to_disagree() -> None:
    wrong_row = replace(
        SOUND, rows=(replace(REACHED, happened="nothing arrived", agrees=False), DROPPED)
    )
    wrong_count = replace(SOUND, drops=(replace(COUNTED, counted=11),))
    half = replace(SOUND, half_open=(HalfOpen("nat-0.spoke-1", "tcp SYN_SENT src=…"),))
    for found in (wrong_row, wrong_count, half):
        assert not found.agrees
    assert result(wrong_row).startswith("1 of 2 lines and 0 counters")
    assert result(wrong_count).startswith("0 of 2 lines and 1 counters")
    assert result(half).endswith("1 connections are half-open.")
