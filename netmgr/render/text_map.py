"""The picture of an address space for a terminal: two columns of letters for each cell of the curve."""

from __future__ import annotations

from string import ascii_uppercase
from typing import NamedTuple

from netmgr.prefixes import Address, Prefix
from netmgr.render.hilbert import point
from netmgr.render.picture import Picture, Region, Window, plain

ORDER = 5
"""32 by 32 cells: 64 columns, which fits beside nothing else on the smallest terminal."""

FREE, NOBODYS = "··", "##"
_SHADE = "░"


class Span(NamedTuple):
    """Letters of one colour (#rrggbb), or of the terminal's own if it is empty."""

    text: str
    colour: str


def draw(picture: Picture, order: int = ORDER) -> list[list[Span]]:
    """Lines of spans: each window's cells, then what the letters mean.

    A cell shows what most of its addresses are for: capitals are used, small letters with a
    shade are reserved. Owners beyond the alphabet share letters, not colours.
    """
    colours, letters = picture.colours(), _letters(picture)
    lines = [[Span(plain(picture.title), "")]]
    pairs = {old.name: old for old in picture.before}
    for window in picture.windows:
        if picture.before:
            former = pairs.get(window.name, Window(window.name, window.prefix, ()))
            lines += [[], [Span(f"{plain(window.name)} {former.prefix}, before", "")]]
            lines += _cells(former, colours, letters, order)
        lines += [[], [Span(f"{plain(window.name)} {window.prefix}" + (", after" if picture.before else ""), "")]]
        lines += _cells(window, colours, letters, order)
    lines += [[], *([Span(f"{letters[owner]} {plain(owner)}", colours[owner])] for owner in picture.owners())]
    lines.append([Span(f"a{_SHADE} reserved for growth   {FREE} free   {NOBODYS} excluded", "")])
    return lines


def _letters(picture: Picture) -> dict[str, str]:
    return {owner: ascii_uppercase[number % 26] for number, owner in enumerate(picture.owners())}


def _cells(window: Window, colours: dict[str, str], letters: dict[str, str], order: int) -> list[list[Span]]:
    width = window.prefix.family.width
    order = min(order, (width - window.prefix.length) // 2)
    rows = [[Span(FREE, "")] * (1 << order) for _ in range(1 << order)]
    length = window.prefix.length + 2 * order
    seen = _Seen(window)
    for index in range(1 << (2 * order)):
        cell = Prefix(window.prefix.family, window.prefix.value + (index << (width - length)), length)
        region = seen.mostly(cell)
        if region is not None:
            column, row = point(index, order)
            rows[row][column] = Span(_sign(region, letters), colours[region.owner])
    return rows


def _sign(region: Region, letters: dict[str, str]) -> str:
    if not region.owner:
        return NOBODYS
    letter = letters[region.owner]
    return f"{letter.lower()}{_SHADE}" if region.reserved else letter * 2


class _Seen:
    """What is seen where in a window."""

    def __init__(self, window: Window) -> None:
        self._table = window.table()
        self._drawn = window.drawn()

    def mostly(self, cell: Prefix) -> Region | None:
        """The region that takes most of a cell, if all regions together take any of it."""
        small = [region for region in self._drawn if cell.covers(region.prefix)]
        if small:
            return max(small, key=lambda region: (not region.reserved, region.prefix.size))
        found = self._table.match(Address(cell.family, cell.value))
        return found[1] if found else None
