"""One window as a square: its regions where the curve has them, and names where they fit."""

from __future__ import annotations

from collections.abc import Iterator

from netmgr.drawing import Attribute, box, element, number, path, shortened, text
from netmgr.palette import CARD, EDGE, INK, LINE, SERIES
from netmgr.plan.render.map.colours import Scheme
from netmgr.plan.render.map.hilbert import Rectangle, rectangle
from netmgr.plan.render.map.model import Picture, Region, Use, Window, describe
from netmgr.prefixes import Prefix

SIDE = 640
"""Width and height, in user units."""

_SMALLEST = 1.5  # a block smaller than this could not be seen
_LETTER = 7.2  # mean width of a bold letter at the labels' size
_ROOM_FOR_LABEL, _ROOM_FOR_NUMBER = 20, 13
_GRID_DEPTHS = (2, 4)


def patterns(scheme: Scheme) -> str:
    """A hatch for each colour's reserves, and one for what is excluded: lines the other way."""
    used = [colour for colour in SERIES if colour in scheme.colours.values()]
    hatches = [_hatch(_reserve(colour), colour) for colour in used]
    return element("defs", "\n".join(["", *hatches, _hatch("excluded", EDGE, -45), ""]))


def _reserve(colour: str) -> str:
    return f"reserve{SERIES.index(colour)}"


def _hatch(name: str, colour: str, angle: int = 45) -> str:
    return element(
        "pattern",
        box((0, 0, 8, 8), fill=CARD)
        + box((0, 0, 8, 8), fill=colour, fill_opacity=0.12)
        + box((0, 0, 2.5, 8), fill=colour),
        id=name,
        width=8,
        height=8,
        patternUnits="userSpaceOnUse",
        patternTransform=f"rotate({angle})",
    )


def look(region: Region, scheme: Scheme) -> dict[str, Attribute]:
    """Fill and outline by use: solid, faint with an outline, or hatched with an outline."""
    colour = scheme.colours[region.owner]
    if not region.owner:
        return {"fill": "url(#excluded)", "stroke": EDGE}
    if region.use is Use.USED:
        return {"fill": colour, "stroke": CARD}
    if region.use is Use.HELD:
        return {"fill": colour, "fill_opacity": 0.22, "stroke": colour}
    return {"fill": f"url(#{_reserve(colour)})", "stroke": colour}


def square(picture: Picture, window: Window, scheme: Scheme) -> Iterator[str]:
    """A grid that shows the curve's quarters, the regions, and names or numbers of owners."""
    added = picture.added(window)
    yield box((0, 0, SIDE, SIDE), fill=CARD, stroke=EDGE)
    for depth in _GRID_DEPTHS:
        at = [number(step * SIDE / depth) for step in range(1, depth)]
        yield path("".join(f"M{x} 0V{SIDE}M0 {x}H{SIDE}" for x in at), LINE, 3 / depth)
    for region in window.drawn():
        place = rectangle(region.prefix, window.prefix, SIDE)
        width, height = max(place.width, _SMALLEST), max(place.height, _SMALLEST)
        yield box(
            (place.x, place.y, width, height),
            describe(region),
            data_prefix=str(region.prefix),
            **look(region, scheme),
            stroke_width=0.7,
        )
    for region in window.drawn():
        if region in added:
            yield from _frame(rectangle(region.prefix, window.prefix, SIDE))
    yield from _labels(window, scheme)


def _frame(place: Rectangle) -> Iterator[str]:
    """What is new: a line in two colours, of which one is seen on whatever is around it."""
    for colour, width in ((CARD, 4), (INK, 2)):
        yield box(place, fill="none", stroke=colour, stroke_width=width, pointer_events="none")


def _labels(window: Window, scheme: Scheme) -> Iterator[str]:
    """The owner's name on each block that is not part of a larger one of the same owner."""
    named: dict[str, list[Prefix]] = {}
    for region in window.drawn():
        outer = named.setdefault(region.owner or region.role, [])
        if not any(prefix.covers(region.prefix) for prefix in outer):
            outer.append(region.prefix)
            yield from _label(region, scheme, rectangle(region.prefix, window.prefix, SIDE))


def _label(region: Region, scheme: Scheme, place: Rectangle) -> Iterator[str]:
    name = region.owner or region.note or region.role
    fits = int((place.width - 4) / _LETTER)
    enough = min(len(name), 8 if region.owner else 4)
    if place.height < _ROOM_FOR_LABEL or fits < enough:
        # Owners' names begin alike, so that few letters say nothing; numbers are the legend's.
        if not region.owner or min(place.width, place.height) < _ROOM_FOR_NUMBER:
            return
        shown, font_size = str(scheme.numbers[region.owner]), 9
    else:
        shown, font_size = shortened(name, fits), 12
    yield text(
        place.x + place.width / 2,
        place.y + place.height / 2 + font_size / 3,
        shown,
        "middle",
        pointer_events="none",
        font_weight="bold",
        font_size=font_size,
        fill=INK,
        stroke=CARD,
        stroke_width=3,
        stroke_linejoin="round",
        # The outline below the letters keeps them legible on any colour.
        paint_order="stroke",
    )
