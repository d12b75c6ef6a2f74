"""The picture of an address space as one SVG file (SVG 1.1), which needs nothing else to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

from netmgr.prefixes import Prefix
from netmgr.render.hilbert import Rectangle, rectangle
from netmgr.render.picture import Picture, Region, Use, Window, describe, plain

SIDE = 640
"""Width and height of a window, in user units."""

NAMESPACE = "http://www.w3.org/2000/svg"

_FONT = ' font-family="DejaVu Sans, Verdana, sans-serif" font-size="12"'
MEANINGS = {Use.USED: "in use", Use.HELD: "held, no subnet yet", Use.RESERVED: "reserved for growth"}
_FILLS = {
    Use.RESERVED: 'fill="url(#reserve{number})"',
    Use.HELD: 'fill="{colour}" fill-opacity="0.3"',
    Use.USED: 'fill="{colour}"',
}
_MARGIN, _TITLE, _CAPTION, _LEGEND, _LINE = 24, 40, 26, 300, 22
_SMALLEST = 1.5  # a block smaller than this would not be seen
_LETTER = 6.2  # mean width of a letter at the labels' size
_ROOM_FOR_LABEL = 22
_GRID_DEPTHS = (2, 4)


def draw(picture: Picture) -> str:
    """The picture as a document of its own, ending with a newline."""
    columns = 2 if picture.before else 1
    width = _MARGIN + columns * (SIDE + _MARGIN) + _LEGEND
    row = _CAPTION + SIDE + _MARGIN
    height = _TITLE + max(len(picture.windows) * row, _CAPTION + (len(picture.owners()) + 7) * _LINE)
    lines = [
        f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"{_FONT}>',
        f"<title>{_text(picture.title)}</title>",
        *definitions(picture.colours()),
        f'<rect width="{width}" height="{height}" fill="#fcfcfa"/>',
        f'<text x="{_MARGIN}" y="28" font-size="18" font-weight="bold">{_text(picture.title)}</text>',
    ]
    for number, window in enumerate(picture.windows):
        top = _TITLE + number * row
        lines += _row(picture, window, top)
    lines += _legend(picture, _MARGIN + columns * (SIDE + _MARGIN), _TITLE + _CAPTION)
    return "\n".join([*lines, "</svg>", ""])


def _row(picture: Picture, window: Window, top: int) -> Iterator[str]:
    if not picture.before:
        yield from _placed(picture, window, _MARGIN, top, window.name)
        return
    yield from _placed(picture, picture.former(window), _MARGIN, top, f"{window.name}, before")
    yield from _placed(picture, window, _MARGIN + SIDE + _MARGIN, top, f"{window.name}, after")


def _placed(picture: Picture, window: Window, left: int, top: int, caption: str) -> Iterator[str]:
    yield f'<g transform="translate({left} {top})">'
    yield f'<text y="16" font-weight="bold">{_text(caption)}: {window.prefix}</text>'
    yield f'<g transform="translate(0 {_CAPTION})">'
    yield from square(window, picture.colours(), picture.added(window))
    yield "</g></g>"


def definitions(colours: Mapping[str, str]) -> Iterator[str]:
    """Patterns that hatch each owner's reserve."""
    yield "<defs>"
    for number, colour in enumerate(colours.values()):
        yield (
            f'<pattern id="reserve{number}" width="8" height="8" patternUnits="userSpaceOnUse"'
            f' patternTransform="rotate(45)"><rect width="8" height="8" fill="{colour}" fill-opacity="0.13"/>'
            f'<rect width="2" height="8" fill="{colour}" fill-opacity="0.75"/></pattern>'
        )
    yield "</defs>"


def square(window: Window, colours: Mapping[str, str], added: Iterable[Region] = ()) -> Iterator[str]:
    """One window: a grid that shows the curve's quarters, its regions, and names where there is room."""
    marked = set(added)
    numbers = {owner: number for number, owner in enumerate(colours)}
    drawn = window.drawn()
    yield f'<rect width="{SIDE}" height="{SIDE}" fill="#ffffff" stroke="#3c4043"/>'
    yield from _grid()
    for region in drawn:
        fill = _FILLS[region.use].format(number=numbers[region.owner], colour=colours[region.owner])
        border = ' stroke="#000000" stroke-width="1.8"' if region in marked else ' stroke="#ffffff" stroke-width="0.7"'
        yield (
            f"<rect {_box(rectangle(region.prefix, window.prefix, SIDE))}"
            f" data-prefix={quoteattr(str(region.prefix))}"
            f" {fill}{border}><title>{_text(describe(region))}</title></rect>"
        )
    yield from _labels(drawn, window.prefix)


def _grid() -> Iterator[str]:
    for depth in _GRID_DEPTHS:
        step = SIDE / depth
        path = "".join(f"M{_number(i * step)} 0V{SIDE}M0 {_number(i * step)}H{SIDE}" for i in range(1, depth))
        yield f'<path d="{path}" stroke="#dadce0" stroke-width="{_number(3 / depth)}" fill="none"/>'


def _labels(drawn: list[Region], window: Prefix) -> Iterator[str]:
    """The owner's name across each block that is not part of a larger one of the same owner."""
    table: dict[str, list[Prefix]] = {}
    for region in drawn:
        outer = table.setdefault(region.owner or region.role, [])
        if not any(prefix.covers(region.prefix) for prefix in outer):
            outer.append(region.prefix)
            yield from _label(region, rectangle(region.prefix, window, SIDE))


def _label(region: Region, box: Rectangle) -> Iterator[str]:
    name = plain(region.owner or region.note or region.role)
    fits = int((box.width - 4) / _LETTER)
    if box.height < _ROOM_FOR_LABEL or fits < min(len(name), 4):
        return
    short = name if len(name) <= fits else name[: fits - 1] + "…"
    place = f'x="{_number(box.x + box.width / 2)}" y="{_number(box.y + box.height / 2 + 4)}"'
    yield (
        f'<text {place} text-anchor="middle" pointer-events="none" font-weight="bold" fill="#202124"'
        f' stroke="#ffffff" stroke-width="3" stroke-linejoin="round" paint-order="stroke">{_text(short)}</text>'
    )


def _legend(picture: Picture, left: int, top: int) -> Iterator[str]:
    colours = picture.colours()
    yield f'<g transform="translate({left} {top})">'
    for number, owner in enumerate(picture.owners()):
        yield (
            f'<rect y="{number * _LINE}" width="14" height="14" fill="{colours[owner]}"/>'
            f'<text x="22" y="{number * _LINE + 12}">{_text(_shorten(owner))}</text>'
        )
    low = (len(picture.owners()) + 1) * _LINE
    first = next(iter(picture.owners()), "")
    for number, (use, meaning) in enumerate(MEANINGS.items()):
        fill = _FILLS[use].format(number=1 if first else 0, colour=colours[first])
        yield from _key(low + number * _LINE, fill, meaning)
    low += len(MEANINGS) * _LINE
    yield from _key(low, 'fill="#ffffff" stroke="#9aa0a6"', "free")
    if picture.before:
        yield from _key(low + _LINE, 'fill="#ffffff" stroke="#000000" stroke-width="2"', "new")
    yield "</g>"


def _key(top: int, fill: str, meaning: str) -> Iterator[str]:
    yield f'<rect y="{top}" width="14" height="14" {fill}/><text x="22" y="{top + 12}">{meaning}</text>'


def _shorten(name: str) -> str:
    longest = int((_LEGEND - 40) / _LETTER)
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _box(box: Rectangle) -> str:
    width, height = max(box.width, _SMALLEST), max(box.height, _SMALLEST)
    return f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(width)}" height="{_number(height)}"'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(text: str) -> str:
    return escape(plain(text))
