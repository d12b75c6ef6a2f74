"""What `netmgr usage` makes of times and rows, for people and for programs."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from netmgr.api.snapshot import UsageView
from netmgr.cli.output import show
from netmgr.cli.usage import as_csv, as_json, as_table, moment, notes
from netmgr.errors import RequestError
from netmgr.ledger.history import By, Period, view

NOW = datetime(2026, 3, 10, 15, 30, tzinfo=UTC).timestamp()
HOUR = int(datetime(2026, 3, 10, 14, tzinfo=UTC).timestamp()) // 3600


def usage(*by: By) -> UsageView:
    rows: Any = [
        {"hour": HOUR, "namespace": namespace, "pod": pod, "traffic": traffic, "bytes": size}
        | {"packets": 1}
        for namespace, pod, traffic, size in (
            ("team-a", 'we"b,\n', "internet-out", 5_000_000),
            ("team-a", "", "internet-in", 2000),
            ("team-[b]", "db", "hub-out", 40),
        )
    ]
    return view(Period(HOUR, HOUR + 1), by, rows) | {"left_out": 3}


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90m", "2026-03-10T14:00"),
        ("24h", "2026-03-09T15:30"),
        ("7d", "2026-03-03T15:30"),
        ("2w", "2026-02-24T15:30"),
        ("today", "2026-03-10T00:00"),
        ("yesterday", "2026-03-09T00:00"),
        ("2026-03-01", "2026-03-01T00:00"),
        ("2026-03-01T12:15", "2026-03-01T12:15"),
        ("2026-03-01T12:15+02:00", "2026-03-01T10:15"),
    ],
)
def test_a_time_is_what_a_person_means_by_it(text, meant):
    expected = datetime.fromisoformat(meant).replace(tzinfo=UTC).timestamp()
    assert moment("--since", text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    ["", "soon", "24", "-3h", "3.5h", "99999999999w", "2026-13-01", "0001-01-01T00:00+20:00"],
)
def test_what_is_no_time_is_refused_with_examples(text):
    with pytest.raises(RequestError, match=r"--since .* is no time: give one like 90m"):
        moment("--since", text, NOW)


def test_csv_has_a_line_for_each_row_whatever_its_names_hold():
    lines = list(csv.reader(as_csv(usage(By.POD, By.HOUR)).splitlines(keepends=True)))
    figures = ["bytes", "packets", "missing", "wire", "wire_unknown"]
    assert lines[0] == ["hour", "namespace", "pod", "traffic", *figures]
    expected = ["2026-03-10T14:00Z", "team-a", 'we"b,\n', "internet-out", "5000000", "1", ""]
    assert lines[1] == [*expected, "0", "5000000"]
    assert lines[2][2] == "(others)"


def test_json_tells_the_whole_answer():
    document = json.loads(as_json(usage(By.NAMESPACE)))
    hours = ("2026-03-10T14:00Z", "2026-03-10T15:00Z")
    assert (document["since"], document["until"]) == hours
    assert document["left_out"] == 3
    row = {"namespace": "team-[b]", "traffic": "hub-out", "bytes": 40, "packets": 1}
    assert document["rows"][2] == row | {"wire": 0, "wire_unknown": 40}


@pytest.mark.parametrize(
    ("missing", "words"),
    [(2_000_000, "each row may lack up to 2.0 MB"), (None, "rows may lack bytes that nobody")],
)
def test_what_rows_may_lack_is_shown(
    missing: int | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = usage(By.NAMESPACE)
    answer["rows"][0]["missing"] = missing
    show(*as_table(answer))
    assert words in capsys.readouterr().out
    assert json.loads(as_json(answer))["rows"][0]["missing"] == missing


def test_rows_have_wire_bytes_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    answer = usage(By.NAMESPACE)
    answer["rows"][0] |= {"wire": 5_200_000, "measured": 4_999_000}
    assert as_csv(answer).splitlines()[:3] == [
        "namespace,traffic,bytes,packets,missing,wire,wire_unknown",
        "team-a,internet-out,5000000,1,,5200000,1000",
        "team-a,internet-in,2000,1,,0,2000",
    ]
    assert json.loads(as_json(answer))["rows"][0]["wire"] == 5_200_000
    show(*as_table(answer))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["namespace", "class", "in", "out", "wire", "in", "wire", "out"] in shown
    cells = ["2.0", "kB", "5.0", "MB", "0", "B", "5.2", "MB"]
    assert ["team-a", "internet", *cells] in shown
    assert "wire bytes are without 3.0 kB" in " ".join(" ".join(line) for line in shown)


def test_a_table_has_in_and_out_beside_each_other_and_a_class_where_there_are_several(capsys):
    show(*as_table(usage(By.NAMESPACE)), *notes(usage(By.NAMESPACE), None))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["namespace", "class", "in", "out"] in shown
    assert ["team-a", "internet", "2.0", "kB", "5.0", "MB"] in shown
    assert ["team-[b]", "hub", "0", "B", "40", "B"] in shown
    assert "3 smaller rows are left out" in " ".join(shown[-1])


def test_an_empty_answer_says_so(capsys):
    show(*as_table({**usage(By.POD), "rows": [], "left_out": 0}))
    assert "no traffic in these hours" in capsys.readouterr().out
