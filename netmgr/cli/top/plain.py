"""A reading as a plain table: for pipes and files, nothing cut, nothing moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from netmgr.cli.output import Table, size
from netmgr.cli.top.columns import bits, percent
from netmgr.cli.top.rates import IN, OUT, Reading, Row, Share
from netmgr.cli.top.view import View, rows

_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("namespace", lambda row: row.name[0]),
    ("pod", lambda row: row.name[1]),
    ("in/s>", lambda row: size(row.received)),
    ("out/s>", lambda row: size(row.sent)),
    ("conns>", lambda row: "" if row.connections is None else f"{row.connections:,}"),
    ("in of its limit>", lambda row: _limit(row.limits.get(IN))),
    ("out of its limit>", lambda row: _limit(row.limits.get(OUT))),
    ("quota", lambda row: _quota(row.quota)),
)
_ALWAYS = 4
"""So many columns are there even if nothing is in them."""


def parts(reading: Reading, view: View, most: int) -> Iterator[Table | str]:
    """At most `most` rows, and what the node may run out of."""
    shown = rows(reading, view)[:most]
    columns = [
        (heading, show)
        for number, (heading, show) in enumerate(_COLUMNS)
        if number < _ALWAYS or any(map(show, shown))
    ]
    title = f"{reading.snapshot['node']}: internet traffic"
    table = Table(*(heading for heading, _ in columns), title=title)
    for row in shown:
        table.row(*(show(row) for _, show in columns))
    yield table
    if reading.budgets:
        yield "; ".join(map(_budget, reading.budgets))


def _limit(of: Share | None) -> str:
    return f"{percent(of)} of {bits(of.most)}" if of else ""


def _quota(of: Share | None) -> str:
    return f"{percent(of)} of {size(of.most)} {of.words}" if of else ""


def _budget(of: Share) -> str:
    return f"{of.words}: {of.used:,} of {of.most:,} ({percent(of)})"
