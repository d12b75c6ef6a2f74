"""What is on the screen: as many lines as the terminal has, from a reading and a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import typer

from netmgr.cli.output import size
from netmgr.cli.top.columns import (
    Cell,
    Glyphs,
    Tone,
    bar,
    chosen,
    compact,
    drawn,
    heading,
    percent,
    spark,
    tone_of,
)
from netmgr.cli.top.rates import Reading, Row, Share
from netmgr.cli.top.view import View, rows
from netmgr.drawing import plain

_KEYS = "q quit  / filter  g group  t i o c n sort  ? help"
_HELP = (
    ("t  i  o", "sort by traffic in both directions, in, out"),
    ("c  n", "sort by connections, by name"),
    ("g", "rows of pods, of namespaces, or of both"),
    ("/", "show names that contain a regular expression; Esc shows all"),
    ("arrows, Home…", "scroll"),
    ("space", "pause the screen; what passes meanwhile is measured"),
    ("q, Ctrl-C", "quit"),
    ("", ""),
    ("conns", "connections the pod began; of ten pods with the most"),
    ("last minute", "to each row's own scale; blank: the agent did not answer"),
    ("limit", "share of what limits let pass, in the fuller direction"),
    ("quota", "share of the quota of which the most is used"),
)
_TREND, _BAR, _APART = 30, 10, "   "
_STYLES: Mapping[Tone, Mapping[str, Any]] = {
    Tone.PLAIN: {},
    Tone.DIM: {"dim": True},
    Tone.BOLD: {"bold": True},
    Tone.GOOD: {"fg": "green", "bold": True},
    Tone.HIGH: {"fg": "yellow", "bold": True},
    Tone.FULL: {"fg": "red", "bold": True},
    Tone.BAR: {"reverse": True},
}


class Size(NamedTuple):
    """Of a terminal, in characters."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal can show: its letters, and whether colours are wanted."""

    glyphs: Glyphs
    is_coloured: bool = True

    def painted(self, cells: Iterable[Cell], width: int) -> str:
        """One line, cut at `width`."""
        line = ""
        for text, tone in cells:
            # A name must not carry escape sequences to the terminal.
            shown = plain(text)[:width]
            width -= len(shown)
            style = {
                key: value
                for key, value in _STYLES[tone].items()
                if self.is_coloured or key != "fg"
            }
            line += typer.style(shown, **style) if shown and style else shown
        return line


@dataclass(frozen=True, slots=True)
class Status:
    """What is beside the rows: seconds between readings, and why the agent does not answer now."""

    interval: float
    fault: str = ""


class Frame(NamedTuple):
    """A whole screen: its lines, the number of the first row in it, and how many rows fit."""

    lines: list[str]
    first: int
    page: int


def frame(reading: Reading | None, view: View, status: Status, shape: Size, look: Look) -> Frame:
    """The screen, scrolled no further than there are rows."""
    lines = list(_head(reading, view, status, shape.columns, look.glyphs))
    page = max(1, shape.lines - len(lines) - 2)
    foot = _KEYS
    if view.is_helping:
        lines += _help()
        foot = "any key: back"
    elif reading is None:
        lines.append([Cell("measuring", Tone.DIM)])
    else:
        found = rows(reading, view)
        view = view.scrolled(len(found), page)
        lines += _table(reading, view, found[view.first : view.first + page], shape, look.glyphs)
        foot = _between(_prompt(view), _position(view, len(found), page), shape.columns)
    painted = [look.painted(cells, shape.columns) for cells in lines[: shape.lines - 1]]
    painted += [""] * (shape.lines - 1 - len(painted))
    painted.append(look.painted([Cell(foot.ljust(shape.columns), Tone.BAR)], shape.columns))
    return Frame(painted, view.first, page)


def _head(
    reading: Reading | None, view: View, status: Status, width: int, glyphs: Glyphs
) -> Iterator[Sequence[Cell]]:
    """Who it is, what the node as a whole does, what it may run out of, and what is wrong."""
    if reading is not None:
        yield _who(reading, view, status, width)
        yield _node(reading, glyphs)
        yield _budgets(reading.budgets, width, glyphs)
    if status.fault:
        yield [Cell(f"no answer, figures are old: {status.fault}", Tone.FULL)]
    elif view.is_paused:
        yield [Cell("paused: space goes on", Tone.HIGH)]
    elif reading is not None and (problems := reading.snapshot.get("problems")):
        yield [Cell("; ".join(f"{one['reason']}: {one['message']}" for one in problems), Tone.HIGH)]


def _who(reading: Reading, view: View, status: Status, width: int) -> Sequence[Cell]:
    snapshot = reading.snapshot
    taken = datetime.fromtimestamp(snapshot["taken_at"], UTC).strftime("%H:%M:%SZ")
    right = f"  by {view.sort}, every {status.interval:g} s  {taken}"
    left = max(0, width - len(right))
    name = str(snapshot["node"])[:left]
    state = " ready" if snapshot["ready"] else f" not ready: {snapshot['reason']}"
    tone = Tone.GOOD if snapshot["ready"] else Tone.FULL
    state = state[: left - len(name)].ljust(left - len(name))
    return Cell(name, Tone.BOLD), Cell(state, tone), Cell(right)


def _node(reading: Reading, glyphs: Glyphs) -> Sequence[Cell]:
    node = reading.node
    rates = f"in {size(node.received)}/s  out {size(node.sent)}/s"
    return Cell(rates, Tone.BOLD), Cell(f"  last minute {spark(node.trend, _TREND, glyphs)}")


def _budgets(budgets: Sequence[Share], width: int, glyphs: Glyphs) -> list[Cell]:
    """With bars, with figures or with percentages alone, as there is room."""
    forms: Sequence[Callable[[Share], str]] = (
        lambda of: f"{of.words} {bar(of, _BAR, glyphs)} {percent(of)} of {of.most:,}",
        lambda of: f"{of.words} {percent(of)} of {compact(of.most)}",
        lambda of: f"{of.words} {percent(of)}",
    )
    shown = [[Cell(form(of), tone_of(of)) for of in budgets] for form in forms]
    fitting = (cells for cells in shown if _length(cells) <= width)
    cells = next(fitting, shown[-1])
    return [cell._replace(text=f"{cell.text}{_APART}") for cell in cells]


def _length(cells: Sequence[Cell]) -> int:
    return sum(len(cell.text) + len(_APART) for cell in cells) - len(_APART)


def _table(
    reading: Reading, view: View, shown: Sequence[Row], shape: Size, glyphs: Glyphs
) -> Iterator[Sequence[Cell]]:
    name_width, columns = chosen(reading, shape.columns)
    line = heading(name_width, columns, view.sort, glyphs)
    yield [Cell(line.ljust(shape.columns), Tone.BAR)]
    for row in shown:
        yield drawn(row, name_width, columns, view.group, glyphs)
    if not shown:
        yield [Cell("no pods" + f" match {view.pattern}" * bool(view.pattern), Tone.DIM)]


def _help() -> Iterator[Sequence[Cell]]:
    for keys, meaning in _HELP:
        yield Cell(f"{keys:16}", Tone.BOLD), Cell(meaning)


def _prompt(view: View) -> str:
    if view.typed is not None:
        return f"filter: {view.typed}_  Enter: keep, Esc: all"
    return f"filter: {view.pattern}  / change  Esc: all  ? help" if view.pattern else _KEYS


def _between(left: str, right: str, width: int) -> str:
    return left + right.rjust(width - len(left)) if len(left) + len(right) < width else left


def _position(view: View, count: int, page: int) -> str:
    return f"  {min(view.first + 1, count)}-{min(count, view.first + page)} of {count} "
