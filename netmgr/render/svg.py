"""The picture of an address space as one SVG file (SVG 1.1), which needs nothing else to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

from netmgr.prefixes import Prefix, merge
from netmgr.render.hilbert import Rectangle, rectangle
from netmgr.render.picture import Picture, Region, Window, describe, plain

SIDE = 640
"""Width and height of a window, in user units."""

NAMESPACE = "http://www.w3.org/2000/svg"

_FONT = ' font-family="DejaVu Sans, Verdana, sans-serif" font-size="12"'
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
    height = _TITLE + max(len(picture.windows) * row, _CAPTION + len(picture.owners()) * _LINE + 6 * _LINE)
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
    former = next((old for old in picture.before if old.name == window.name), Window(window.name, window.prefix, ()))
    yield from _placed(picture, former, _MARGIN, top, f"{window.name}, before")
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
    """One window: its regions, a grid that shows the curve's quarters, and labels where there is room."""
    marked = set(added)
    numbers = {owner: number for number, owner in enumerate(colours)}
    drawn = window.drawn()
    yield f'<rect width="{SIDE}" height="{SIDE}" fill="#ffffff" stroke="#3c4043"/>'
    yield from _grid()
    for region in drawn:
        fill = f"url(#reserve{numbers[region.owner]})" if region.reserved else colours[region.owner]
        border = ' stroke="#000000" stroke-width="2.5"' if region in marked else ' stroke="#ffffff" stroke-width="0.7"'
        yield (
            f"<rect {_box(rectangle(region.prefix, window.prefix, SIDE))}"
            f" data-prefix={quoteattr(str(region.prefix))}"
            f' fill="{fill}"{border}><title>{_text(describe(region))}</title></rect>'
        )
    for region in drawn:
        yield from _label(region, drawn, window.prefix)


def _grid() -> Iterator[str]:
    for depth in _GRID_DEPTHS:
        step = SIDE / depth
        path = "".join(f"M{_number(i * step)} 0V{SIDE}M0 {_number(i * step)}H{SIDE}" for i in range(1, depth))
        yield f'<path d="{path}" stroke="#dadce0" stroke-width="{_number(3 / depth)}" fill="none"/>'


def _label(region: Region, drawn: list[Region], window: Prefix) -> Iterator[str]:
    """The owner's name, on the part of a region that shows."""
    spot = _spot(region, drawn)
    if spot is None:
        return
    box = rectangle(spot, window, SIDE)
    name = plain(region.owner or region.role)
    fits = int((box.width - 8) / _LETTER)
    if box.height < _ROOM_FOR_LABEL or fits < min(len(name), 4):
        return
    middle = f'x="{_number(box.x + box.width / 2)}" text-anchor="middle" pointer-events="none"'
    colour = "#202124" if region.reserved else "#ffffff"
    low = box.y + box.height / 2
    short = name if len(name) <= fits else name[: fits - 1] + "…"
    yield f'<text {middle} y="{_number(low + 4)}" fill="{colour}" font-weight="bold">{_text(short)}</text>'
    role = "reserve" if region.reserved else plain(region.role)
    if box.height >= 2 * _ROOM_FOR_LABEL and region.owner and len(role) <= fits:
        yield f'<text {middle} y="{_number(low + 18)}" fill="{colour}" font-size="10">{_text(role)}</text>'


def _spot(region: Region, drawn: list[Region]) -> Prefix | None:
    """The largest part of a region, by halving, that regions inside it do not hide; None if they hide it all."""
    inner = merge(other.prefix for other in drawn if other is not region and region.prefix.covers(other.prefix))
    spot = region.prefix
    for _ in range(4):
        if not any(spot.overlaps(other) for other in inner) or spot.length >= spot.family.width:
            break
        low = Prefix(spot.family, spot.value, spot.length + 1)
        high = Prefix(spot.family, spot.value + low.size, spot.length + 1)
        spot = min(high, low, key=lambda half: _hidden(half, inner))
    return spot if _hidden(spot, inner) < spot.size else None


def _hidden(part: Prefix, inner: list[Prefix]) -> int:
    """Addresses of `part` that are in `inner`."""
    return sum(min(part.size, other.size) for other in inner if part.overlaps(other))


def _legend(picture: Picture, left: int, top: int) -> Iterator[str]:
    colours = picture.colours()
    yield f'<g transform="translate({left} {top})">'
    for number, owner in enumerate(picture.owners()):
        yield (
            f'<rect y="{number * _LINE}" width="14" height="14" fill="{colours[owner]}"/>'
            f'<text x="22" y="{number * _LINE + 12}">{_text(_shorten(owner))}</text>'
        )
    low = (len(picture.owners()) + 1) * _LINE
    keys = [("url(#reserve0)", "", "hatched: reserved for growth"), ("#ffffff", "#9aa0a6", "white: free")]
    if picture.before:
        keys.append(("#ffffff", "#000000", "framed: new"))
    for number, (fill, border, meaning) in enumerate(keys):
        stroke = f' stroke="{border}"' if border else ""
        yield (
            f'<rect y="{low + number * _LINE}" width="14" height="14" fill="{fill}"{stroke}/>'
            f'<text x="22" y="{low + number * _LINE + 12}">{meaning}</text>'
        )
    yield "</g>"


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
