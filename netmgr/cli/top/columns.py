"""The columns of rows: which of them fit a width, and what each shows of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from netmgr.cli.output import size
from netmgr.cli.top.rates import Reading, Row, Share, Trend
from netmgr.cli.top.view import Group, Sort

_HIGH, _FULL = 0.8, 0.95
_GAP = 2
_NARROWEST_NAME, _WIDEST_NAME = 24, 64
_BAR = 10
_THOUSAND, _MILLION = 1_000, 1_000_000


class Tone(Enum):
    """How a piece of text looks; figures say the same, so that none is said by colour alone."""

    PLAIN = auto()
    DIM = auto()
    BOLD = auto()
    GOOD = auto()
    HIGH = auto()
    FULL = auto()
    BAR = auto()


class Cell(NamedTuple):
    """A piece of a line."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Letters that pictures are made of: `levels` from the lowest to the highest."""

    levels: str = "▁▂▃▄▅▆▇█"
    full: str = "█"
    empty: str = "░"
    ellipsis: str = "…"
    sorted: str = "▾"


UNICODE = Glyphs()
ASCII = Glyphs("_.-=+*#@", "#", "-", "~", "v")
"""For terminals of another encoding than UTF-8."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `sort` is what its rows are sorted by where its heading is marked."""

    heading: str
    width: int
    show: Callable[[Row, int, Glyphs], Cell]
    sort: Sort | None = None
    is_right: bool = True
    needs: Callable[[Reading], bool] = lambda _reading: True

    def aligned(self, text: str) -> str:
        """The text in the column's width."""
        return text.rjust(self.width) if self.is_right else text.ljust(self.width)


def bar(of: Share, width: int, glyphs: Glyphs) -> str:
    """A bar of `width` letters, full only where nothing is left."""
    filled = width if of.part >= 1 else min(width - 1, round(of.part * width))
    return glyphs.full * filled + glyphs.empty * (width - filled)


def tone_of(of: Share) -> Tone:
    """How near to its end it is."""
    if of.part >= _FULL:
        return Tone.FULL
    return Tone.HIGH if of.part >= _HIGH else Tone.PLAIN


def percent(of: Share) -> str:
    """Never "100%" while something is left."""
    return f"{min(int(of.part * 100), 999)}%"


def compact(count: float) -> str:
    """A number of pieces in at most five letters, up to a billion."""
    count = int(count)
    if count < 10 * _THOUSAND:
        return str(count)
    if count < _MILLION:
        return f"{count // _THOUSAND}k"
    return f"{count // _MILLION}M"


def bits(rate: float) -> str:
    """A limit's rate: in bits, as it is written."""
    return f"{size(rate).removesuffix('B')}bit/s"


def spark(trend: Trend, width: int, glyphs: Glyphs) -> str:
    """A trend in `width` letters at most, to its own scale; each is the highest of its readings."""
    step = max(1, -(-len(trend) // width))
    # Counted from the newest, so that a letter keeps its readings while others come.
    parts = [trend[max(0, end - step) : end] for end in range(len(trend), 0, -step)][::-1]
    known = [[rate for rate in part if rate is not None] for part in parts]
    top = max((max(part) for part in known if part), default=0.0)
    return "".join(_level(max(part), top, glyphs) if part else " " for part in known)[-width:]


def _level(rate: float, top: float, glyphs: Glyphs) -> str:
    last = len(glyphs.levels) - 1
    return glyphs.levels[round(rate / top * last) if top else 0]


def middle_cut(words: str, most: int, glyphs: Glyphs) -> str:
    """Words of at most `most` letters: pods' names differ at their ends, so the middle goes."""
    if len(words) <= most:
        return words
    head = (most - 1) // 2
    return words[:head] + glyphs.ellipsis + words[len(words) - (most - 1 - head) :]


def _fullest(row: Row) -> Share | None:
    return max(row.limits.values(), key=lambda one: one.part, default=None)


def _limit(row: Row, width: int, glyphs: Glyphs) -> Cell:
    of = _fullest(row)
    if of is None:
        return Cell("")
    text = f"{of.words.removeprefix('internet-'):3} {percent(of):>4}"
    if width > len(text) + _BAR:
        text = f"{bar(of, _BAR, glyphs)} {text} of {bits(of.most)}"
    return Cell(text, tone_of(of))


def _quota(row: Row, width: int, glyphs: Glyphs) -> Cell:
    of = row.quota
    if of is None:
        return Cell("")
    text = f"{percent(of):>4}"
    if width > len(text) + _BAR:
        text = f"{bar(of, _BAR, glyphs)} {text} {of.words}"
    return Cell(text, tone_of(of))


def _connections(row: Row, _width: int, _glyphs: Glyphs) -> Cell:
    return Cell("" if row.connections is None else compact(row.connections))


def _trend(row: Row, width: int, glyphs: Glyphs) -> Cell:
    return Cell(spark(row.trend, width, glyphs))


def _has_limits(reading: Reading) -> bool:
    return bool(reading.snapshot.get("limits"))


def _has_quotas(reading: Reading) -> bool:
    return bool(reading.snapshot.get("quotas"))


def _has_tracking(reading: Reading) -> bool:
    return "tracking" in reading.snapshot


_IN = Column("in/s", 8, lambda row, _width, _glyphs: Cell(size(row.received)), Sort.IN)
_OUT = Column("out/s", 8, lambda row, _width, _glyphs: Cell(size(row.sent)), Sort.OUT)
_TOTAL = Column("both/s", 8, lambda row, _width, _glyphs: Cell(size(row.total)), Sort.TOTAL)
_CONNECTIONS = Column("conns", 6, _connections, Sort.CONNECTIONS, needs=_has_tracking)


def _trend_of(width: int) -> Column:
    return Column("last minute"[:width], width, _trend, is_right=True)


def _limit_of(width: int) -> Column:
    return Column("limit", width, _limit, is_right=False, needs=_has_limits)


def _quota_of(width: int) -> Column:
    return Column("quota", width, _quota, is_right=False, needs=_has_quotas)


_LAYOUTS: tuple[tuple[Column, ...], ...] = (
    (_IN, _OUT, _TOTAL, _CONNECTIONS, _trend_of(30), _limit_of(35), _quota_of(27)),
    (_IN, _OUT, _TOTAL, _CONNECTIONS, _trend_of(15), _limit_of(35), _quota_of(5)),
    (_IN, _OUT, _CONNECTIONS, _trend_of(11), _limit_of(8), _quota_of(5)),
    (_IN, _OUT, _CONNECTIONS, _trend_of(8), _limit_of(8), _quota_of(5)),
    (_IN, _OUT, _trend_of(6)),
    (_IN, _OUT),
)
"""From the richest to the poorest; the first that leaves room for names is taken."""


def chosen(reading: Reading, width: int) -> tuple[int, Sequence[Column]]:
    """The width of names, and the columns beside them."""
    room = 0
    columns: tuple[Column, ...] = ()
    for layout in _LAYOUTS:
        columns = tuple(column for column in layout if column.needs(reading))
        room = width - sum(column.width + _GAP for column in columns)
        if room >= _NARROWEST_NAME:
            break
    return max(8, min(room, _WIDEST_NAME)), columns


def heading(name_width: int, columns: Sequence[Column], sort: Sort, glyphs: Glyphs) -> str:
    """The line above the rows; a mark shows what they are sorted by."""
    parts = [("namespace/pod" + glyphs.sorted * (sort is Sort.NAME)).ljust(name_width)]
    for column in columns:
        mark = glyphs.sorted if column.sort is sort else ""
        parts.append(column.aligned(mark + column.heading))
    return (" " * _GAP).join(parts)


def drawn(
    row: Row, name_width: int, columns: Sequence[Column], group: Group, glyphs: Glyphs
) -> list[Cell]:
    """A row's cells, as wide as the heading's."""
    name = middle_cut(_name(row, group), name_width, glyphs).ljust(name_width)
    cells = [Cell(name, _tone(row, group))]
    for column in columns:
        cell = column.show(row, column.width, glyphs)
        cells += [Cell(" " * _GAP), cell._replace(text=column.aligned(cell.text))]
    return cells


def _name(row: Row, group: Group) -> str:
    namespace, pod = row.name
    if row.is_namespace:
        return namespace
    return f"  {pod}" if group is Group.BOTH else f"{namespace}/{pod}"


def _tone(row: Row, group: Group) -> Tone:
    return Tone.BOLD if row.is_namespace and group is Group.BOTH else Tone.PLAIN
