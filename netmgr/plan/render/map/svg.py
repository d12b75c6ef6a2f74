"""The map as one SVG file, and as one HTML page that shows what a pointer is on.

Both need nothing else to be shown. Text of the plan gets into the page in two ways: as escaped
markup, and as JSON in which every "<" is written as an escape, so that no name can end the
script around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Any

from netmgr.drawing import (
    NAMESPACE,
    Attribute,
    box,
    document,
    element,
    escaped,
    group,
    number,
    path,
    plain,
    shortened,
    text,
)
from netmgr.plan.render.map.hilbert import Rectangle, rectangle
from netmgr.plan.render.map.model import GREY, Nodes, Picture, Region, Use, Window, describe
from netmgr.prefixes import Prefix

SIDE = 640
"""Width and height of a window, in user units."""

MEANINGS = {
    Use.USED: "in use",
    Use.HELD: "held, no subnet yet",
    Use.RESERVED: "reserved for growth",
}
_MARGIN, _TITLE, _CAPTION, _LEGEND, _LINE = 24, 40, 26, 300, 22
_SMALLEST = 1.5  # a block smaller than this could not be seen
_LETTER = 6.2  # mean width of a letter at the labels' size
_ROOM_FOR_LABEL = 22
_GRID_DEPTHS = (2, 4)


def draw(picture: Picture) -> str:
    """The map as an SVG file, ending with a newline."""
    columns = 2 if picture.before else 1
    left, row = _MARGIN + columns * (SIDE + _MARGIN), _CAPTION + SIDE + _MARGIN
    legend = _CAPTION + (len(picture.owners()) + 7) * _LINE
    height = _TITLE + max(len(picture.windows) * row, legend)
    lines = [
        _hatches(picture.colours()),
        text(_MARGIN, 28, picture.title, font_size=18, font_weight="bold"),
    ]
    for place, window in enumerate(picture.windows):
        top = _TITLE + place * row
        if picture.before:
            lines.append(_captioned(picture, picture.former(window), _MARGIN, top, "before"))
            lines.append(_captioned(picture, window, 2 * _MARGIN + SIDE, top, "after"))
        else:
            lines.append(_captioned(picture, window, _MARGIN, top))
    lines.append(group(left, _TITLE + _CAPTION, _legend(picture)))
    return document(picture.title, (left + _LEGEND, height), lines, font_size=12)


def draw_page(picture: Picture) -> str:
    """The map as an HTML page, ending with a newline."""
    views = [*picture.windows, *picture.before]
    data: dict[str, Any] = {
        "changed": bool(picture.before),
        "meanings": {use.value: meaning for use, meaning in MEANINGS.items()},
        "owners": {plain(owner): colour for owner, colour in picture.colours().items() if owner},
        "views": [_view(window) for window in views],
    }
    shown = len(picture.windows)
    parts = {
        "TITLE": escaped(picture.title),
        "AFTER": "\n".join(_figures(picture, enumerate(views[:shown]))),
        "BEFORE": "\n".join(_figures(picture, enumerate(views[shown:], start=shown))),
        "CHANGED": ", framed is new" if picture.before else "",
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # Split before anything is put in: a name that looks like a mark stays a name.
    pieces = files(__package__).joinpath("map.html").read_text("utf-8").split("@@")
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _captioned(picture: Picture, window: Window, left: int, top: int, when: str = "") -> str:
    name = f"{window.name}, {when}" if when else window.name
    caption = text(0, 16, f"{name}: {window.prefix}", font_weight="bold")
    return group(left, top, [caption, group(0, _CAPTION, _square(picture, window))])


def _hatches(colours: Mapping[str, str]) -> str:
    """A pattern for each owner's reserve."""
    patterns = [
        element(
            "pattern",
            box((0, 0, 8, 8), fill=colour, fill_opacity=0.13)
            + box((0, 0, 2, 8), fill=colour, fill_opacity=0.75),
            id=f"reserve{place}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        )
        for place, colour in enumerate(colours.values())
    ]
    return element("defs", "\n".join(["", *patterns, ""]))


def _fill(use: Use, place: int, colour: str) -> dict[str, Attribute]:
    if use is Use.RESERVED:
        return {"fill": f"url(#reserve{place})"}
    return {"fill": colour, "fill_opacity": 0.3} if use is Use.HELD else {"fill": colour}


def _square(picture: Picture, window: Window) -> Iterator[str]:
    """One window: a grid that shows the curve's quarters, its regions, and names where they fit."""
    colours, added = picture.colours(), picture.added(window)
    places = {owner: place for place, owner in enumerate(colours)}
    yield box((0, 0, SIDE, SIDE), fill="#ffffff", stroke="#3c4043")
    for depth in _GRID_DEPTHS:
        at = [number(step * SIDE / depth) for step in range(1, depth)]
        yield path("".join(f"M{x} 0V{SIDE}M0 {x}H{SIDE}" for x in at), "#dadce0", 3 / depth)
    for region in window.drawn():
        place = rectangle(region.prefix, window.prefix, SIDE)
        width, height = max(place.width, _SMALLEST), max(place.height, _SMALLEST)
        is_new = region in added
        yield box(
            (place.x, place.y, width, height),
            describe(region),
            data_prefix=str(region.prefix),
            **_fill(region.use, places[region.owner], colours[region.owner]),
            stroke="#000000" if is_new else "#ffffff",
            stroke_width=1.8 if is_new else 0.7,
        )
    yield from _labels(window)


def _labels(window: Window) -> Iterator[str]:
    """The owner's name on each block that is not part of a larger one of the same owner."""
    named: dict[str, list[Prefix]] = {}
    for region in window.drawn():
        outer = named.setdefault(region.owner or region.role, [])
        if not any(prefix.covers(region.prefix) for prefix in outer):
            outer.append(region.prefix)
            yield from _label(region, rectangle(region.prefix, window.prefix, SIDE))


def _label(region: Region, place: Rectangle) -> Iterator[str]:
    name = region.owner or region.note or region.role
    fits = int((place.width - 4) / _LETTER)
    if place.height < _ROOM_FOR_LABEL or fits < min(len(name), 4):
        return
    yield text(
        place.x + place.width / 2,
        place.y + place.height / 2 + 4,
        shortened(name, fits),
        "middle",
        pointer_events="none",
        font_weight="bold",
        fill="#202124",
        stroke="#ffffff",
        stroke_width=3,
        stroke_linejoin="round",
        # The white outline below the letters keeps them legible on any colour.
        paint_order="stroke",
    )


def _legend(picture: Picture) -> Iterator[str]:
    """The owners' colours, then what hatched, faint and framed mean."""
    colours, owners = picture.colours(), picture.owners()
    example = owners[0] if owners else ""
    longest = int((_LEGEND - 40) / _LETTER)
    entries: list[tuple[str, dict[str, Attribute]] | None] = []
    entries += [(shortened(owner, longest), {"fill": colours[owner]}) for owner in owners]
    entries.append(None)
    place = 1 if owners else 0
    entries += [(words, _fill(use, place, colours[example])) for use, words in MEANINGS.items()]
    entries.append(("free", {"fill": "#ffffff", "stroke": GREY}))
    if picture.before:
        entries.append(("new", {"fill": "#ffffff", "stroke": "#000000", "stroke_width": 2}))
    for line, entry in enumerate(entries):
        if entry:
            yield box((0, line * _LINE, 14, 14), **entry[1])
            yield text(22, line * _LINE + 12, entry[0])


def _figures(picture: Picture, views: Iterable[tuple[int, Window]]) -> Iterator[str]:
    for place, window in views:
        heading = f"{escaped(window.name)}: {window.prefix}"
        body = [_hatches(picture.colours()), *_square(picture, window)]
        drawn = element(
            "svg",
            "\n".join(["", *body, ""]),
            xmlns=NAMESPACE,
            viewBox=f"0 0 {SIDE} {SIDE}",
            font_size=12,
        )
        yield f'<figure data-view="{place}"><h2>{heading}</h2>\n{drawn}</figure>'


def _view(window: Window) -> dict[str, Any]:
    return _block(window.prefix) | {"regions": [_region(region) for region in window.drawn()]}


def _region(region: Region) -> dict[str, Any]:
    return _block(region.prefix) | {
        "prefix": str(region.prefix),
        "owner": plain(region.owner),
        "role": plain(region.role),
        "use": region.use.value,
        "note": plain(region.note),
        "nodes": _nodes(region.nodes) if region.nodes else None,
    }


def _nodes(nodes: Nodes) -> dict[str, Any]:
    return {
        "stem": nodes.stem,
        "first": nodes.first,
        "base": str(nodes.base),
        "stride": str(nodes.stride),
    }


def _block(prefix: Prefix) -> dict[str, Any]:
    """A prefix as the page's script reads it: JSON numbers have 53 bits, so the value is text."""
    return {"family": int(prefix.family), "value": str(prefix.value), "length": prefix.length}
