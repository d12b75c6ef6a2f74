"""The map for a terminal: two letters for each cell of the curve, and rows for IPv6."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from string import ascii_uppercase
from typing import NamedTuple

from netmgr.drawing import plain
from netmgr.plan.render.map.blocks import Block, blocks
from netmgr.plan.render.map.colours import scheme
from netmgr.plan.render.map.hilbert import point
from netmgr.plan.render.map.model import Picture, Region, Use, Window
from netmgr.prefixes import Address, Family

ORDER = 5
"""32 by 32 cells, which are 64 columns and fit on a terminal of 80."""

FREE, EXCLUDED = "··", "##"
_SHADE = "░"


class Span(NamedTuple):
    """Letters of one colour (#rrggbb), or of the terminal's own if it is empty."""

    text: str
    colour: str


def draw(picture: Picture, order: int = ORDER) -> list[list[Span]]:
    """Lines of spans: each window's cells, then what the letters mean.

    A cell shows the most used thing in it: capitals are in use, small letters held, small
    letters with a shade reserved. Owners beyond the alphabet share letters, not colours.
    """
    colours, letters = scheme(picture).colours, _letters(picture)
    lines = [[Span(plain(picture.title), "")]]
    for window in picture.windows:
        caption = f"{plain(window.name)} {window.prefix}"
        if window.prefix.family is Family.V6:
            lines += [[], [Span(caption, "")], *_rows(picture, window, colours, letters)]
            continue
        if picture.before:
            lines += [[], [Span(f"{caption}, before", "")]]
            lines += _cells(picture.former(window), colours, letters, order)
            caption += ", after"
        lines += [[], [Span(caption, "")], *_cells(window, colours, letters, order)]
    lines += [
        [],
        *([Span(f"{letters[owner]} {plain(owner)}", colours[owner])] for owner in picture.owners()),
    ]
    legend = (
        f"AA in use   aa held, no subnet yet   a{_SHADE} reserved for growth   "
        f"{FREE} free   {EXCLUDED} excluded"
    )
    lines.append([Span(legend, "")])
    return lines


def _rows(
    picture: Picture, window: Window, colours: Mapping[str, str], letters: Mapping[str, str]
) -> Iterator[list[Span]]:
    """A line for each block, below the one that holds it."""
    found = blocks(window, picture.added(window))[1:]
    width = max((2 * row.depth + len(str(row.prefix)) for row in found), default=0)
    for row in found:
        owner = row.region.owner
        name = f"{'  ' * (row.depth - 1)}{row.prefix}".ljust(width)
        new = "  new" if row.is_new else ""
        yield [
            Span(f"{name}  ", ""),
            Span(f"{letters.get(owner, '#')} {plain(owner)}".rstrip(), colours[owner]),
            Span(f"  {plain(_about(row))}{new}", ""),
        ]


def _about(row: Block) -> str:
    parts = (
        row.purpose,
        row.filled.words if row.filled else row.state,
        row.region.note * (not row.region.room),
    )
    return ", ".join(part for part in parts if part)


def _letters(picture: Picture) -> dict[str, str]:
    return {owner: ascii_uppercase[number % 26] for number, owner in enumerate(picture.owners())}


def _cells(
    window: Window, colours: Mapping[str, str], letters: Mapping[str, str], order: int
) -> list[list[Span]]:
    width = window.prefix.family.width
    order = min(order, (width - window.prefix.length) // 2)
    rows = [[Span(FREE, "")] * (1 << order) for _ in range(1 << order)]
    length = window.prefix.length + 2 * order
    table, small = window.table(), _most_used(window, length)
    for index in range(1 << (2 * order)):
        first = Address(window.prefix.family, window.prefix.value + (index << (width - length)))
        region = small.get(first.value) or next(iter((table.match(first) or ())[1:]), None)
        if region is not None:
            column, row = point(index, order)
            rows[row][column] = Span(_sign(region, letters), colours[region.owner])
    return rows


def _most_used(window: Window, length: int) -> dict[int, Region]:
    """The largest of the most used regions in each cell, by the cell's first address."""
    found: dict[int, Region] = {}
    uses = list(Use)
    shift = window.prefix.family.width - length
    ranked = sorted(window.drawn(), key=lambda region: (uses.index(region.use), region.prefix.size))
    for region in ranked:
        if region.prefix.length >= length:
            found[region.prefix.value >> shift << shift] = region
    return found


def _sign(region: Region, letters: Mapping[str, str]) -> str:
    if not region.owner:
        return EXCLUDED
    letter = letters[region.owner]
    return {
        Use.USED: letter * 2,
        Use.HELD: letter.lower() * 2,
        Use.RESERVED: f"{letter.lower()}{_SHADE}",
    }[region.use]
