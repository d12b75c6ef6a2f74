"""A picture of an address space, before anybody decides how to draw it: windows, regions, colours."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from enum import StrEnum

from netmgr.prefixes import Prefix, PrefixTable

GREY = "#9aa0a6"
_GOLDEN_TURN = 0.381966
_LIGHTNESS = (0.42, 0.58, 0.35)
_SATURATION = 0.62


class Use(StrEnum):
    """How far addresses are in use; what is drawn on top comes last."""

    RESERVED = "reserved"
    """Kept for the owner's growth: beside its prefix, or in a subnet carved larger than today's nodes: hatched."""
    HELD = "held"
    """Routed to the owner, who has no subnet there yet: faint."""
    USED = "used"


@dataclass(frozen=True, slots=True, order=True)
class Nodes:
    """Nodes whose addresses follow each other: number `first` begins at `base`, each has `stride` addresses."""

    stem: str
    first: int
    base: int
    stride: int


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A block of addresses and what it is for.

    Attributes:
        owner: cluster or hub, or empty for what belongs to nobody (exclusions).
        role: what the owner uses it for, for example "pods" or "Services".
        note: a sentence for whoever points at it.
        nodes: whose addresses they are one by one, if they are nodes'.
    """

    prefix: Prefix
    owner: str
    role: str
    use: Use = Use.USED
    note: str = ""
    nodes: Nodes | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One square: all of `prefix`, and the regions inside it."""

    name: str
    prefix: Prefix
    regions: tuple[Region, ...]

    def drawn(self) -> list[Region]:
        """The regions in the order of drawing: what holds others first."""
        inside = [region for region in self.regions if self.prefix.covers(region.prefix)]
        return sorted(inside, key=lambda region: (region.prefix.length, list(Use).index(region.use), region.role))

    def table(self) -> PrefixTable[Region]:
        """The region that is seen at each address."""
        return PrefixTable((region.prefix, region) for region in self.drawn())


@dataclass(frozen=True, slots=True)
class Picture:
    """One square a pool.

    Attributes:
        title: a line above everything.
        before: the same windows as they were, for a picture of a change; or empty.
    """

    title: str
    windows: tuple[Window, ...]
    before: tuple[Window, ...] = ()

    def owners(self) -> list[str]:
        """Everybody who owns a region, in order of appearance, those of before first."""
        windows = (*self.before, *self.windows)
        return list(dict.fromkeys(region.owner for window in windows for region in window.regions if region.owner))

    def colours(self) -> dict[str, str]:
        """A colour (#rrggbb) for each owner; grey for nobody's."""
        return {"": GREY} | {owner: _colour(number) for number, owner in enumerate(self.owners())}

    def former(self, window: Window) -> Window:
        """A window as it was before; empty if it was not."""
        empty = Window(window.name, window.prefix, ())
        return next((old for old in self.before if old.prefix == window.prefix), empty)

    def added(self, window: Window) -> set[Region]:
        """Regions of a window that it had not before; empty if there is no before."""
        if not self.before or window not in self.windows:
            return set()
        former = {(region.prefix, region.owner, region.use) for region in self.former(window).regions}
        return {region for region in window.regions if (region.prefix, region.owner, region.use) not in former}


def _colour(number: int) -> str:
    """Hues a golden section of the wheel apart: however many there are, neighbours differ."""
    hue = (0.58 + number * _GOLDEN_TURN) % 1
    red, green, blue = hls_to_rgb(hue, _LIGHTNESS[number % len(_LIGHTNESS)], _SATURATION)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))


def plain(text: str) -> str:
    """Text without control characters, which neither SVG (XML 1.0, 2.2) nor a terminal should see."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def describe(region: Region) -> str:
    """One line about a region: what a pointer shows."""
    words: Sequence[str] = (
        str(region.prefix),
        region.owner,
        region.role,
        "" if region.use is Use.USED else region.use.value,
        region.note,
    )
    return " · ".join(plain(word) for word in words if word)
