"""What `netmgr usage` prints: a table, JSON or CSV of the same rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from netmgr.cli.tables import size

if TYPE_CHECKING:
    from netmgr.snapshot import UsageRow, UsageView

_COLUMNS = {"hour": ("hour",), "namespace": ("namespace",), "pod": ("namespace", "pod"), "class": ()}
_FOLDED = "(others)"
_HOUR_SECONDS = 3600


def as_json(answer: UsageView) -> str:
    """One object; times in ISO 8601, bytes with IP headers."""
    columns = _columns(answer)
    document = {
        "since": _time(answer["since"]),
        "until": _time(answer["until"]),
        "by": answer["by"],
        "rows": [
            dict(zip(columns, _key(row, columns), strict=True))
            | {"traffic": row["traffic"], "bytes": row["bytes"], "packets": row["packets"]}
            for row in answer["rows"]
        ],
        "left_out": answer["left_out"],
    }
    return json.dumps(document, indent=2)


def as_csv(answer: UsageView) -> str:
    """A line for each row, after one of names."""
    columns = _columns(answer)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "traffic", "bytes", "packets"])
    writer.writerows([*_key(row, columns), row["traffic"], row["bytes"], row["packets"]] for row in answer["rows"])
    return text.getvalue()


def show(answer: UsageView) -> None:
    """A line for each group and class of traffic, in and out beside each other."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    columns, lines = _columns(answer), _lines(answer)
    by_class = "class" in answer["by"] or len({line[1] for line in lines}) > 1
    table = Table(
        title=f"{_time(answer['since'])} until {_time(answer['until'])}",
        title_justify="left",
        box=None,
        header_style="dim",
    )
    for name in (*columns, *(["class"] if by_class else [])):
        table.add_column(name)
    for name in ("in", "out"):
        table.add_column(name, justify="right")
    for key, kind, incoming, outgoing in lines:
        table.add_row(*map(escape, key), *([kind] if by_class else []), size(incoming), size(outgoing))
    console = Console(highlight=False)
    console.print(table)
    if not lines:
        console.print("no traffic in these hours")
    if answer["left_out"]:
        console.print(f"[yellow]{answer['left_out']} smaller rows are left out; ask for a shorter time[/]")


def _columns(answer: UsageView) -> tuple[str, ...]:
    named = {column for one in answer["by"] for column in _COLUMNS[one]}
    return tuple(column for column in ("hour", "namespace", "pod") if column in named)


def _key(row: UsageRow, columns: Iterable[str]) -> tuple[str, ...]:
    told = {"hour": _time(row["hour"] * _HOUR_SECONDS), "namespace": row["namespace"], "pod": row["pod"] or _FOLDED}
    return tuple(told[column] for column in columns)


def _lines(answer: UsageView) -> list[tuple[tuple[str, ...], str, int, int]]:
    """Key, class, bytes in and out; by time where hours are shown, else most bytes first."""
    columns = _columns(answer)
    sums: dict[tuple[tuple[str, ...], str], dict[str, int]] = {}
    for row in answer["rows"]:
        kind, _, way = row["traffic"].rpartition("-")
        sums.setdefault((_key(row, columns), kind), {"in": 0, "out": 0})[way] += row["bytes"]
    lines: Iterator[tuple[tuple[str, ...], str, int, int]] = (
        (key, kind, ways["in"], ways["out"]) for (key, kind), ways in sums.items()
    )
    if "hour" in columns:
        return sorted(lines, key=lambda line: (line[0][0], -line[2] - line[3]))
    return sorted(lines, key=lambda line: (-line[2] - line[3], line[0]))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
