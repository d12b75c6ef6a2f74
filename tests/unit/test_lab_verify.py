"""The printed matrix: what was expected beside what happened, and a sentence that counts what is
wrong.
"""

from __future__ import annotations

from dataclasses import replace

from click import unstyle

from netmgr.cli.output import Table
from tests.lab.matrix import Target
from tests.lab.tables import drops, matrix
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


def printed(rows: Table) -> list[list[str]]:
    lines = [unstyle(line) for line in rows.lines()]
    assert all(len(line) <= 80 for line in lines)
    return [line.split() for line in lines]


def test_every_line_fits_an_ordinary_terminal() -> None:
    lines = printed(matrix(SOUND))
    assert [
        "researcher",
        "(hub)",
        "spoke-1",
        "everything",
        "as",
        "researcher",
        "as",
        "researcher",
        "20",
    ] in lines
    assert [
        "pod-1",
        "(spoke-1)",
        "spoke-2",
        "everything",
        *["dropped,", "counted"] * 2,
        "12",
    ] in lines


def test_only_machines_that_had_something_to_drop_are_listed() -> None:
    idle = Drops(Pair("router-0.hub", "spoke-1", "spoke-2"), 0, 0)
    found = printed(drops(replace(SOUND, drops=(COUNTED, idle))))
    assert ["spoke-1-cpu-0", "spoke-1", "spoke-2", "12", "12"] in found
    assert not any("router-0.hub" in line for line in found)


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
