"""`netmgr usage`: who used the internet when, from the hourly roll-ups that the agent keeps."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from netmgr.errors import RequestError, TryAgainLater
from netmgr.ledger.history import FARTHEST, By, Period, grouped, view

if TYPE_CHECKING:
    from netmgr.snapshot import UsageView

_DURATION = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS = {"today": 0, "yesterday": 1}


class Output(StrEnum):
    """Whom the answer is for."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Socket = Annotated[Path, typer.Option("--socket", help="The agent's read-only socket.", envvar="NETMGR_SOCKET")]
Ledger = Annotated[Path, typer.Option("--ledger", help="The ledger's file, read while the agent is away (as root).")]
DEFAULT_SOCKET = Path("/run/netmgr/ledger.sock")
DEFAULT_LEDGER = Path("/var/lib/netmgr/ledger.sqlite")


def usage(
    *,
    since: Annotated[str, typer.Option(help="90m, 24h, 7d, 2w, today, yesterday, or a date and time (UTC).")] = "24h",
    until: Annotated[str, typer.Option(help="As --since.", show_default="now")] = "",
    by: Annotated[list[By], typer.Option(help="What a line stands for; may be given more than once.")] = [  # noqa: B006  typer copies it
        By.NAMESPACE
    ],
    output: Annotated[Output, typer.Option("--output", "-o", help="table for people, json or csv for programs.")] = (
        Output.TABLE
    ),
    socket: Socket = DEFAULT_SOCKET,
    ledger: Ledger = DEFAULT_LEDGER,
) -> None:
    """Show what pods exchanged with the internet in past hours, pods that are gone included.

    Hours are whole and in UTC: one that holds any of the time asked for is counted in full.
    """
    from netmgr.cli import usage_output

    now = time.time()
    begin, end = moment("--since", since, now), moment("--until", until, now) if until else now
    if end <= begin:
        raise RequestError(f"--until {until or 'now'} is not later than --since {since}")
    answer = _asked(socket, ledger, (begin, end), by)
    match output:
        case Output.JSON:
            typer.echo(usage_output.as_json(answer))
        case Output.CSV:
            typer.echo(usage_output.as_csv(answer), nl=False)
        case Output.TABLE:
            usage_output.show(answer)


def moment(option: str, text: str, now: float) -> float:
    """Seconds since the epoch of what a person wrote: a time ago, a day, or a date with or without a time (UTC).

    Raises:
        RequestError: it is none of these.
    """
    try:
        seconds = _meant(text, datetime.fromtimestamp(now, UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < FARTHEST:
        raise RequestError(
            f"{option} {text!r} is no time: give one like 90m, 24h, 7d, 2w, today, yesterday, 2026-03-01 or "
            f"2026-03-01T12:00 (UTC)"
        )
    return seconds


def _meant(text: str, now: datetime) -> datetime:
    if found := _DURATION.fullmatch(text):
        return now - timedelta(**{_UNITS[found[2]]: int(found[1])})
    if text in _DAYS:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=_DAYS[text])
    given = datetime.fromisoformat(text)
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _asked(socket: Path, ledger: Path, period: tuple[float, float], by: list[By]) -> UsageView:
    from netmgr.readers import ask

    names = ",".join(dict.fromkeys(by))
    try:
        answer = ask(socket, "usage", since=str(period[0]), until=str(period[1]), by=names)
    except TryAgainLater as error:
        if not ledger.is_file():
            raise
        typer.echo(f"netmgr: {error.message}; reading {ledger}", err=True)
        return _read(ledger, period, by)
    return cast("UsageView", answer)


def _read(ledger: Path, period: tuple[float, float], by: list[By]) -> UsageView:
    from netmgr.ledger import rollups

    hours, names = Period.around(*period), list(dict.fromkeys(by))
    with rollups.reading(ledger) as connection:
        rows = rollups.usage(connection, hours, names)
    return view(hours, names, grouped(rows, names))
