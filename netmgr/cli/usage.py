"""`netmgr usage`: who used the internet when, from the hourly totals that the agents keep.

Asked for a cluster, it has rows of every node. What prices are given for has its cost beside it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from netmgr.cli import focus, options, terminal
from netmgr.cli.asking import ask
from netmgr.cli.output import Table, short, show, size
from netmgr.cli.status import connect
from netmgr.errors import ConfigError, RequestError, TryAgainLater
from netmgr.ledger.history import FARTHEST, By, Period, entire, usage_row, view, wire_unknown
from netmgr.ledger.tables import NOTHING
from netmgr.printable import plain, shortened

if TYPE_CHECKING:
    from netmgr.api.snapshot import UnreadNode, UsageRow, UsageView
    from netmgr.documents.prices import Prices
    from netmgr.kube.client.api import Api

_DURATION = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS = {"today": 0, "yesterday": 1}
_COLUMNS = {
    "hour": ("hour",),
    "namespace": ("namespace",),
    "pod": ("namespace", "pod"),
    "class": (),
}
_FIGURES = ("traffic", "bytes", "packets", "missing", "wire", "wire_unknown")
_WAYS = ("in", "out")
_RECORDS = [By.HOUR, By.POD, By.CLASS]
# The ledger folds the smallest pods of its oldest hours into their namespaces.
_FOLDED = "(others)"
_HOUR_SECONDS = 3600


class UsageFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    FOCUS = "focus"


Ledger = Annotated[
    Path,
    typer.Option("--ledger", help="The ledger's file, which root can read while no agent runs."),
]
Groups = Annotated[list[By], typer.Option(help="Group by this; may be given more than once.")]
PriceTable = Annotated[
    Path | None,
    typer.Option("--prices", metavar="FILE", help="What traffic costs: a document of kind Prices."),
]
DEFAULT_LEDGER = Path("/var/lib/netmgr/ledger.sqlite")


def usage(  # noqa: PLR0913  one a command-line option
    *,
    since: Annotated[
        str, typer.Option(help="90m, 24h, 7d, 2w, today, yesterday, or a date and time (UTC).")
    ] = "24h",
    until: Annotated[str, typer.Option(help="As --since.", show_default="now")] = "",
    by: Groups = [By.NAMESPACE],  # noqa: B006  typer copies it
    output: Annotated[
        UsageFormat,
        typer.Option(
            "--output",
            "-o",
            help="table for people, json or csv for programs, focus for what reads FOCUS 1.4: CSV "
            "by hour, pod and class.",
        ),
    ] = (UsageFormat.TABLE),
    prices: PriceTable = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Every node of kubectl's context, not this node.")
    ] = False,
    context: options.Context = "",
    namespace: options.Namespaces = None,
    timeout: Annotated[
        float, options.seconds(help="How long the nodes' exporters are asked.")
    ] = 300,
    kubeconfig: options.Kubeconfig = None,
    service_account: options.ServiceAccount = options.SERVICE_ACCOUNT,
    socket: options.Socket = None,
    ledger: Ledger = DEFAULT_LEDGER,
) -> None:
    """Show pods' internet traffic in past hours, deleted pods included.

    Hours are whole and in UTC: an hour that overlaps the given time is counted in full.

    With --cluster, each row is of one node, and says how many nodes existed in its time whose rows
    nobody has: they do not answer, or are gone.
    """
    is_focus = output is UsageFormat.FOCUS
    if is_focus and prices is None:
        raise ConfigError("-o focus is of what traffic costs; give --prices FILE, or use -o csv")
    table, period = _prices(prices), _period(since, until)
    wanted = _RECORDS if is_focus else list(dict.fromkeys(by))
    if cluster:
        api = connect(kubeconfig, service_account, context)
        answer = _ask_cluster(api, namespace, period, wanted, timeout)
    elif context or namespace:
        # If they were ignored, this node's rows would pass for the cluster's.
        raise ConfigError("--context and --namespace are of --cluster; add it")
    else:
        answer = entire(partial(_ask, socket, ledger, wanted), period, wanted)
    _show(answer, output, table)


def _show(answer: UsageView, output: UsageFormat, prices: Prices | None) -> None:
    if output is UsageFormat.TABLE:
        show(*as_table(answer, prices), *notes(answer, prices))
        return
    if output is UsageFormat.JSON:
        typer.echo(as_json(answer, prices))
        return
    wants_focus = output is UsageFormat.FOCUS
    text = as_focus(answer, prices) if prices and wants_focus else as_csv(answer, prices)
    typer.echo(text, nl=False)
    for note in notes(answer, prices):
        typer.echo(f"netmgr: {note}", err=True)


def _period(since: str, until: str) -> Period:
    now = time.time()
    begin, end = moment("--since", since, now), moment("--until", until, now) if until else now
    if end <= begin:
        raise RequestError(f"--until {until or 'now'} is not later than --since {since}")
    return Period.around(begin, end)


def _prices(path: Path | None) -> Prices | None:
    from netmgr.documents import loader
    from netmgr.documents.prices import Prices

    return loader.load(path, Prices) if path else None


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


def _ask(socket: Path | None, ledger: Path, by: list[By], period: Period) -> UsageView:
    since, until = (str(hour * _HOUR_SECONDS) for hour in (period.first, period.end))
    try:
        answer = ask(socket, "usage", since=since, until=until, by=",".join(by))
    # No agent runs: its file has the same totals, for those who may read it.
    except TryAgainLater as error:
        if not os.access(ledger, os.R_OK):
            raise TryAgainLater(
                f"{error.message}; and {ledger} is not there, or not readable"
            ) from None
        typer.echo(f"netmgr: {error.message}; reading {ledger}", err=True)
        from netmgr.ledger import store

        with store.reading(ledger) as connection:
            return view(period, by, store.usage(connection, period, by))
    return cast("UsageView", answer)


def _ask_cluster(
    api: Api, namespaces: list[str] | None, period: Period, by: list[By], seconds: float
) -> UsageView:
    from netmgr.kube.diagnose import cluster_usage
    from netmgr.kube.diagnose.bundle import NAMESPACES

    with terminal.progress() as progress:
        task = progress.add_task("reading", total=None)

        def advance(total: int) -> None:
            progress.update(task, total=total, advance=1)

        return cluster_usage.read(
            api, tuple(namespaces or NAMESPACES), period, by, seconds, advance
        )


def as_json(answer: UsageView, prices: Prices | None = None) -> str:
    """One object; times in ISO 8601, bytes with IP headers."""
    document: dict[str, object] = {
        "version": 1,
        "since": _time(answer["since"]),
        "until": _time(answer["until"]),
        "by": [By(group) for group in answer["by"]],
        "rows": list(_rows(answer, prices)),
        "left_out": answer["left_out"],
    }
    if prices:
        document["currency"] = prices.currency
    if "nodes" in answer:
        document |= {"nodes": answer["nodes"], "unread": list(map(_existence, answer["unread"]))}
    return json.dumps(document, indent=2)


def _existence(node: UnreadNode) -> dict[str, object]:
    times = {name: node[name] for name in ("since", "until")}
    shown = {name: _time(at) if 0 < at < FARTHEST else None for name, at in times.items()}
    return {"node": node["node"], "reason": node["reason"], **shown}


def as_csv(answer: UsageView, prices: Prices | None = None) -> str:
    of_cluster = ("node", "unread_nodes") if "nodes" in answer else ()
    cost = ("cost",) if prices else ()
    columns = (*_columns(answer), *_FIGURES, *of_cluster, *cost)
    return _written(columns, _rows(answer, prices))


def as_focus(answer: UsageView, prices: Prices) -> str:
    columns = focus.focus_row(usage_row(0, "", "", "", NOTHING), prices)
    rows = [{**row, "pod": row["pod"] or _FOLDED} for row in answer["rows"]]
    return _written(columns, (focus.focus_row(cast("UsageRow", row), prices) for row in rows))


def _written(columns: Iterable[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    # By default the module ends lines by CR LF, and shells' tools leave the CR in the last column.
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(answer: UsageView, prices: Prices | None = None) -> Iterator[dict[str, object]]:
    columns, shown = _columns(answer), (*_FIGURES, "node", "unread_nodes")
    for row in answer["rows"]:
        names = dict(zip(columns, _key(row, columns), strict=True))
        figures = {"wire": 0, **row, "wire_unknown": wire_unknown(row)}
        document = names | {name: figures[name] for name in shown if name in figures}
        if prices:
            # As text: a number of JSON is a binary fraction to most readers.
            document["cost"] = focus.written(prices.cost(row["traffic"], focus.billed(row, prices)))
        yield document


def as_table(answer: UsageView, prices: Prices | None = None) -> Iterator[Table | str]:
    """A line for each group and class of traffic, in and out beside each other, of all nodes."""
    columns, lines = _columns(answer), _lines(answer, prices)
    by_class = "class" in answer["by"] or len({line[1] for line in lines}) > 1
    ways = [*_WAYS, *(["wire in", "wire out"] if _shows_wires(answer) else [])]
    headings = [*columns, *(["class"] if by_class else []), *(f"{way}>" for way in ways)]
    headings += [f"{prices.currency}>"] if prices else []
    table = Table(*headings, title=f"{_time(answer['since'])} until {_time(answer['until'])}")
    for key, kind, figures in lines:
        names = [*map(short, key), *([kind] if by_class else [])]
        table.row(*names, *(size(figures[way]) for way in ways), *_cost(kind, figures, prices))
    yield table
    if not lines:
        yield "no traffic in these hours"
    yield from _lacking(answer)


def _cost(kind: str, figures: Mapping[str, int], prices: Prices | None) -> list[str]:
    if prices is None:
        return []
    return [f"{sum(prices.cost(f'{kind}-{way}', figures[f'billed {way}']) for way in _WAYS):.2f}"]


def notes(answer: UsageView, prices: Prices | None) -> Iterator[str]:
    """What an answer leaves out as a whole."""
    if answer["left_out"]:
        left_out = f"{answer['left_out']} smaller rows are left out; ask for a shorter time"
        yield typer.style(left_out, fg="yellow")
    if unread := answer.get("unread"):
        named = shortened([f"{node['node']} ({plain(node['reason'])})" for node in unread])
        yield typer.style(f"without the rows of {named}", fg="yellow")
    if prices and (free := {row["traffic"] for row in answer["rows"]} - prices.traffic.keys()):
        yield f"free, since there is no price for it: {', '.join(sorted(free))}"
    unknown = sum(map(wire_unknown, answer["rows"]))
    if prices and prices.charge == "wire" and unknown:
        yield f"priced by their IP bytes, since nobody knows their wire bytes: {size(unknown)}"


def _lacking(answer: UsageView) -> Iterator[str]:
    missing = [row.get("missing", 0) for row in answer["rows"]]
    if None in missing:
        yield "rows may lack bytes that nobody counted: `netmgr node audit` has the gaps"
    elif most := max(filter(None, missing), default=0):
        yield f"each row may lack up to {size(most)}, which are known to be lost"
    unknown = sum(map(wire_unknown, answer["rows"]))
    if _shows_wires(answer) and unknown:
        yield f"wire bytes are without {size(unknown)} (IP), whose segments nobody knows"


def _shows_wires(answer: UsageView) -> bool:
    return any(row.get("wire") for row in answer["rows"])


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


def _lines(
    answer: UsageView, prices: Prices | None
) -> list[tuple[tuple[str, ...], str, Mapping[str, int]]]:
    """Key, class, and bytes by way; by time where hours are shown, else by bytes."""
    columns = _columns(answer)
    sums: dict[tuple[tuple[str, ...], str], defaultdict[str, int]] = {}
    for row in answer["rows"]:
        kind, _, way = row["traffic"].rpartition("-")
        figures = sums.setdefault((_key(row, columns), kind), defaultdict(int))
        figures[way] += row["bytes"]
        figures[f"wire {way}"] += row.get("wire", 0)
        figures[f"billed {way}"] += focus.billed(row, prices) if prices else 0
    lines = [(key, kind, ways) for (key, kind), ways in sums.items()]
    if "hour" in columns:
        return sorted(lines, key=lambda line: (line[0][0], -line[2]["in"] - line[2]["out"]))
    return sorted(lines, key=lambda line: (-line[2]["in"] - line[2]["out"], line[0]))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%MZ")
