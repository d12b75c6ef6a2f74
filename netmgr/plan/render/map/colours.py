"""Which owner has which colour: few colours that everybody can tell apart, never side by side.

Twenty owners in twenty colours look alike in pairs, to some people more than to others. So there
are as many colours as `palette.SERIES` has, and owners whose blocks touch get different ones. A
name or a number on each block, and in the legend, says whose it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise

from netmgr.palette import EDGE, SERIES
from netmgr.plan.render.map.hilbert import Rectangle, rectangle
from netmgr.plan.render.map.model import Picture, Window
from netmgr.prefixes import Family

_NEAR = 1 / 128
"""Blocks this far apart, of the side of a window, look as if they touched."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How owners are shown.

    Attributes:
        colours: a colour (#rrggbb) for each, and for what nobody owns (an empty name).
        numbers: from 1, in order of appearance.
    """

    colours: Mapping[str, str]
    numbers: Mapping[str, int]


def scheme(picture: Picture) -> Scheme:
    """Colours that differ where owners touch, as far as there are enough."""
    beside = neighbours(picture)
    colours: dict[str, str] = {}
    used: Counter[str] = Counter()
    for owner in picture.owners():
        near = Counter(colours[other] for other in beside[owner] if other in colours)
        colours[owner] = min(SERIES, key=lambda colour: (near[colour], used[colour]))
        used[colours[owner]] += 1
    numbers = {owner: number for number, owner in enumerate(picture.owners(), 1)}
    return Scheme({"": EDGE} | colours, numbers)


def neighbours(picture: Picture) -> Mapping[str, set[str]]:
    """The owners whose blocks touch one's own, in any window."""
    beside: dict[str, set[str]] = {owner: set() for owner in picture.owners()}
    for window in (*picture.before, *picture.windows):
        for one, other in _touching(window):
            beside[one].add(other)
            beside[other].add(one)
    return beside


def _touching(window: Window) -> Iterator[tuple[str, str]]:
    outermost = window.outermost()
    if window.prefix.family is Family.V6:
        # Shown as rows.
        yield from pairwise(region.owner for region in outermost if region.owner)
        return
    boxes = [
        (region.owner, rectangle(region.prefix, window.prefix, 1))
        for region in outermost
        if region.owner
    ]
    for (one, box), (other, beside) in combinations(boxes, 2):
        if one != other and _is_near(box, beside):
            yield one, other


def _is_near(one: Rectangle, other: Rectangle) -> bool:
    return (
        one.x - _NEAR < other.x + other.width
        and other.x - _NEAR < one.x + one.width
        and one.y - _NEAR < other.y + other.height
        and other.y - _NEAR < one.y + one.height
    )
