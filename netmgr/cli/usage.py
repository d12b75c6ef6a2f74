"""`netmgr usage`: who used the internet when, from the hourly totals that the agent keeps."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from netmgr.cli.asking import ask
from netmgr.cli.options import Socket
from netmgr.cli.output import Table, short, show, size
from netmgr.errors import RequestError, TryAgainLater
from netmgr.ledger.history import FARTHEST, By, Period, view

if TYPE_CHECKING:
    from netmgr.api.snapshot import UsageRow, UsageView

_DURATION = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS = {"today": 0, "yesterday": 1}
_COLUMNS = {
    "hour": ("hour",),
    "namespace": ("namespace",),
    "pod": ("namespace", "pod"),
    "class": (),
}
_FIGURES = ("traffic", "bytes", "packets", "missing")
# The ledger folds the smallest pods of its oldest hours into their namespaces.
_FOLDED = "(others)"
_HOUR_SECONDS = 3600


class UsageFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Ledger = Annotated[
    Path,
    typer.Option("--ledger", help="The ledger's file, which root can read while no agent runs."),
]
Groups = Annotated[list[By], typer.Option(help="Group by this; may be given more than once.")]
DEFAULT_LEDGER = Path("/var/lib/netmgr/ledger.sqlite")


def usage(
    *,
    since: Annotated[
        str, typer.Option(help="90m, 24h, 7d, 2w, today, yesterday, or a date and time (UTC).")
    ] = "24h",
    until: Annotated[str, typer.Option(help="As --since.", show_default="now")] = "",
    by: Groups = [By.NAMESPACE],  # noqa: B006  typer copies it
    output: Annotated[
        UsageFormat,
        typer.Option("--output", "-o", help="table for people, json or csv for programs."),
    ] = (UsageFormat.TABLE),
    socket: Socket = None,
    ledger: Ledger = DEFAULT_LEDGER,
) -> None:
    """Show pods' internet traffic in past hours, deleted pods included.

    Hours are whole and in UTC: an hour that overlaps the given time is counted in full.
    """
    now = time.time()
    begin, end = moment("--since", since, now), moment("--until", until, now) if until else now
    if end <= begin:
        raise RequestError(f"--until {until or 'now'} is not later than --since {since}")
    answer = _ask(socket, ledger, (begin, end), by)
    match output:
        case UsageFormat.JSON:
            typer.echo(as_json(answer))
        case UsageFormat.CSV:
            typer.echo(as_csv(answer), nl=False)
        case UsageFormat.TABLE:
            show(*as_table(answer))


def moment(option: str, text: str, now: float) -> float:
    """Seconds since the epoch of a time ago, a day, or a date with or without a time (UTC)."""
    try:
        seconds = _parse(text, datetime.fromtimestamp(now, UTC)).timestamp()
    # A duration of many digits exceeds what timedelta takes.
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < FARTHEST:
        raise RequestError(
            f"{option} {text!r} is no time: give one like 90m, 24h, 7d, 2w, today, yesterday, "
            "2026-03-01 or 2026-03-01T12:00 (UTC)"
        )
    return seconds


def _parse(text: str, now: datetime) -> datetime:
    if match := _DURATION.fullmatch(text):
        return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
    if text in _DAYS:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=_DAYS[text])
    given = datetime.fromisoformat(text)
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _ask(socket: Path | None, ledger: Path, period: tuple[float, float], by: list[By]) -> UsageView:
    names = list(dict.fromkeys(by))
    since, until = map(str, period)
    try:
        answer = ask(socket, "usage", since=since, until=until, by=",".join(names))
    # No agent runs: its file has the same totals, for those who may read it.
    except TryAgainLater as error:
        if not os.access(ledger, os.R_OK):
            raise
        typer.echo(f"netmgr: {error.message}; reading {ledger}", err=True)
        from netmgr.ledger import store

        hours = Period.around(*period)
        with store.reading(ledger) as connection:
            return view(hours, names, store.usage(connection, hours, names))
    return cast("UsageView", answer)


def as_json(answer: UsageView) -> str:
    """One object; times in ISO 8601, bytes with IP headers."""
    document = {
        "version": 1,
        "since": _time(answer["since"]),
        "until": _time(answer["until"]),
        "by": [By(group) for group in answer["by"]],
        "rows": list(_rows(answer)),
        "left_out": answer["left_out"],
    }
    return json.dumps(document, indent=2)


def as_csv(answer: UsageView) -> str:
    text = io.StringIO()
    # By default the module ends lines by CR LF, and shells' tools leave the CR in the last column.
    writer = csv.DictWriter(text, [*_columns(answer), *_FIGURES], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(answer))
    return text.getvalue()


def _rows(answer: UsageView) -> Iterator[dict[str, object]]:
    columns = _columns(answer)
    for row in answer["rows"]:
        names = dict(zip(columns, _key(row, columns), strict=True))
        figures: Mapping[str, object] = row
        yield names | {name: figures[name] for name in _FIGURES if name in figures}


def as_table(answer: UsageView) -> Iterator[Table | str]:
    """A line for each group and class of traffic, in and out beside each other."""
    columns, lines = _columns(answer), _lines(answer)
    by_class = "class" in answer["by"] or len({line[1] for line in lines}) > 1
    headings = (*columns, *(["class"] if by_class else []), "in>", "out>")
    table = Table(*headings, title=f"{_time(answer['since'])} until {_time(answer['until'])}")
    for key, kind, incoming, outgoing in lines:
        table.row(*map(short, key), *([kind] if by_class else []), size(incoming), size(outgoing))
    yield table
    if not lines:
        yield "no traffic in these hours"
    yield from _lacking(answer)
    if answer["left_out"]:
        left_out = f"{answer['left_out']} smaller rows are left out; ask for a shorter time"
        yield typer.style(left_out, fg="yellow")


def _lacking(answer: UsageView) -> Iterator[str]:
    missing = [row.get("missing", 0) for row in answer["rows"]]
    if None in missing:
        yield "rows may lack bytes that nobody counted: `netmgr node audit` has the gaps"
    elif most := max(filter(None, missing), default=0):
        yield f"each row may lack up to {size(most)}, which are known to be lost"


def _columns(answer: UsageView) -> tuple[str, ...]:
    named = {column for group in answer["by"] for column in _COLUMNS[group]}
    return tuple(column for column in ("hour", "namespace", "pod") if column in named)


def _key(row: UsageRow, columns: Iterable[str]) -> tuple[str, ...]:
    values = {
        "hour": _time(row["hour"] * _HOUR_SECONDS),
        "namespace": row["namespace"],
        "pod": row["pod"] or _FOLDED,
    }
    return tuple(values[column] for column in columns)


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
