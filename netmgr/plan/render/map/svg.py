"""The map as one SVG file: a square for each IPv4 window, rows for each of IPv6, and a legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from netmgr.drawing import (
    MONOSPACE,
    Attribute,
    box,
    document,
    group,
    path,
    shortened,
    text,
)
from netmgr.palette import CARD, EDGE, FAINT, INK, LINE
from netmgr.plan.render.map.blocks import STATES, Block, blocks, levels, room
from netmgr.plan.render.map.colours import Scheme, scheme
from netmgr.plan.render.map.model import Picture, Region, Window
from netmgr.plan.render.map.square import SIDE, look, patterns, square
from netmgr.prefixes import Family

_MARGIN, _TITLE, _CAPTION, _LEGEND, _LINE = 24, 40, 26, 230, 22
_WIDTH = _MARGIN + 2 * (SIDE + _MARGIN) + _LEGEND
_LETTER = 6.4  # mean width of a letter in the legend
_ROW, _INDENT, _APART = 20, 14, 20
_OWNER, _PURPOSE, _FILLED, _BAR, _RULER = 330, 480, 700, 90, 1000
"""Where the columns of rows begin, and how long a bar is."""


def draw(picture: Picture) -> str:
    """The map as an SVG file, ending with a newline."""
    key = scheme(picture)
    squares = list(_squares(picture, key))
    legend = list(_legend(picture, key))
    lines = [
        patterns(key),
        text(_MARGIN, 28, picture.title, font_size=18, font_weight="bold"),
        group(_WIDTH - _LEGEND, _TITLE + _CAPTION, legend),
    ]
    top: float = _TITLE
    for first in range(0, len(squares), 2):
        for column, drawn in enumerate(squares[first : first + 2]):
            lines.append(group(_MARGIN + column * (SIDE + _MARGIN), top, drawn))
        top += _CAPTION + SIDE + _MARGIN
    top = max(top, _TITLE + _CAPTION + len(legend) * _LINE + _MARGIN)
    for window in picture.windows:
        if window.prefix.family is Family.V6:
            found = blocks(window, picture.added(window))
            lines.append(group(_MARGIN, top, _rows(window, found, key)))
            top += _CAPTION + len(found) * _ROW + _MARGIN
    return document(picture.title, (_WIDTH, top), lines, font_size=12, summary=_summary(picture))


def _summary(picture: Picture) -> str:
    """The windows and how full they are."""
    return "; ".join(f"{each.name} {each.prefix}: {room(each)}" for each in picture.windows)


def _squares(picture: Picture, key: Scheme) -> Iterator[list[str]]:
    """Captioned squares; of a change each as it was, then as it will be."""
    for window in picture.windows:
        if window.prefix.family is Family.V4 and picture.before:
            yield _captioned(picture, picture.former(window), key, ", before")
            yield _captioned(picture, window, key, ", after")
        elif window.prefix.family is Family.V4:
            yield _captioned(picture, window, key)


def _captioned(picture: Picture, window: Window, key: Scheme, when: str = "") -> list[str]:
    return [
        text(0, 16, f"{window.name}{when}: {window.prefix}", font_weight="bold"),
        text(SIDE, 16, room(window), "end", fill=FAINT),
        group(0, _CAPTION, square(picture, window, key)),
    ]


class Ruler:
    """Prefix lengths along a line from `left` to `right`: a step to the right halves a block."""

    def __init__(self, rows: Sequence[Block], left: float, right: float) -> None:
        lengths = levels(rows)
        self._first, self._span = lengths[0], max(1, lengths[-1] - lengths[0])
        self._left, self._across = left, right - left
        self.named: list[int] = []
        for length in lengths:
            if not self.named or self.at(length) - self.at(self.named[-1]) >= _APART:
                self.named.append(length)

    def at(self, length: int) -> float:
        """Where a length is."""
        return self._left + self._across * (length - self._first) / self._span

    def span(self, row: Block) -> tuple[float, float]:
        """Where a block's bar begins, and how long it is: from its length to its parts'."""
        left = self.at(row.prefix.length)
        return left, max(2.0, self.at(row.divided) - left)


def _rows(window: Window, found: Sequence[Block], key: Scheme) -> Iterator[str]:
    ruler = Ruler(found, _RULER, _WIDTH - 2 * _MARGIN)
    yield text(0, 16, f"{window.name}: {window.prefix}", font_weight="bold")
    bottom = _CAPTION + len(found) * _ROW
    for length in ruler.named:
        yield text(ruler.at(length), 16, f"/{length}", "middle", fill=FAINT, font_size=10)
        yield path(f"M{ruler.at(length):.1f} {_CAPTION - 6}V{bottom}", LINE, 1)
    for number, row in enumerate(found):
        yield group(0, _CAPTION + number * _ROW, _row(row, key, ruler))


def _row(row: Block, key: Scheme, ruler: Ruler) -> Iterator[str]:
    owner, base = row.region.owner, 14
    weight = "bold" if row.is_new else "normal"
    address: dict[str, Attribute] = {
        "font_family": MONOSPACE,
        "font_size": 11,
        "font_weight": weight,
    }
    yield text(row.depth * _INDENT, base, str(row.prefix), **address)
    if owner:
        yield from _swatch(owner, key, _OWNER)
        yield text(_OWNER + 26, base, shortened(owner, 16))
    purpose = f"{row.purpose}, new" if row.is_new else row.purpose
    yield text(_PURPOSE, base, shortened(purpose, 30), font_weight=weight)
    if row.filled:
        part = max(1.0, row.filled.share * _BAR) if row.filled.taken else 0
        yield box((_FILLED, 4, _BAR, 12), fill=CARD, stroke=EDGE)
        yield box((_FILLED, 4, part, 12), fill=key.colours[owner])
        yield text(_FILLED + _BAR + 8, base, row.filled.words)
    left, length = ruler.span(row)
    region = replace(row.region, use=row.use)
    frame: dict[str, Attribute] = look(region, key) if row.depth else {"fill": CARD}
    yield box((left, 4, length, 12), **({"stroke": EDGE} | frame))


def _swatch(owner: str, key: Scheme, left: float) -> Iterator[str]:
    """An owner's colour, and the number that small blocks have for it."""
    yield box((left, 1, 20, 16), rx=2, fill=key.colours[owner])
    yield text(
        left + 10,
        13,
        str(key.numbers[owner]),
        "middle",
        font_size=10,
        font_weight="bold",
        stroke=CARD,
        stroke_width=2.5,
        paint_order="stroke",
    )


def _legend(picture: Picture, key: Scheme) -> Iterator[str]:
    """The owners, then what solid, faint, hatched and framed mean."""
    longest = int((_LEGEND - 60) / _LETTER)
    lines = [
        [*_swatch(owner, key, 0), text(26, 13, shortened(owner, longest))] for owner in key.numbers
    ]
    lines += [
        [box((0, 2, 20, 14), **attributes), text(26, 13, words)]
        for words, attributes in meanings(picture, key)
    ]
    for number, drawn in enumerate(lines):
        yield group(0, number * _LINE, drawn)


def meanings(picture: Picture, key: Scheme) -> Iterator[tuple[str, dict[str, Attribute]]]:
    """What the looks of blocks mean, each with the attributes of an example."""
    example, anything = next(iter(key.numbers), ""), picture.windows[0].prefix
    for use, words in STATES.items():
        yield words, look(Region(anything, example, "", use), key)
    yield "excluded", look(Region(anything, "", ""), key)
    yield "free", {"fill": CARD, "stroke": EDGE}
    if picture.before:
        yield "new", {"fill": CARD, "stroke": INK, "stroke_width": 2}
