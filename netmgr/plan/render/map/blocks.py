"""A window as rows: each block below the one that holds it, and how much of it is allocated.

For IPv6 this is the picture. A /64 in a /40 has no area that could be seen, and the number of
addresses says nothing; what runs out are the next smaller blocks, and nodes in a subnet. So these
are counted. For IPv4 the rows say in text what the square shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from netmgr.plan.allocate.space import Space
from netmgr.plan.render.map.model import Region, Use, Window
from netmgr.prefixes import Family, Prefix

STATES = {
    Use.USED: "in use",
    Use.HELD: "held, no subnet yet",
    Use.RESERVED: "reserved for growth",
}
_SMALL_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Filled:
    """How much of a block is allocated, in `parts` of which `taken` are."""

    taken: int
    parts: int
    words: str

    @property
    def share(self) -> float:
        """1 is all of it."""
        return self.taken / self.parts


@dataclass(frozen=True, slots=True)
class Block:
    """One row.

    Attributes:
        region: the block; the window's own has neither owner nor note.
        depth: in how many other blocks it is.
        filled: by what is in it; None where nothing is counted.
        divided: length of what it is divided into, or of an address.
        is_new: whether a change added it.
    """

    region: Region
    depth: int
    filled: Filled | None
    divided: int
    is_new: bool = False

    @property
    def prefix(self) -> Prefix:
        """Its addresses."""
        return self.region.prefix

    @property
    def purpose(self) -> str:
        """What it is for, and for the nodes of which pool."""
        region = self.region
        return f"{region.role} of {region.room.stem}" if region.room else region.role

    @property
    def use(self) -> Use:
        """As a whole: a subnet that has nodes is in use."""
        room = self.region.room
        return Use.USED if room and room.planned else self.region.use

    @property
    def state(self) -> str:
        """In words; empty for what nobody owns."""
        if self.use is Use.HELD and self.filled:
            return "held"
        return STATES[self.use] if self.region.owner else ""


def blocks(window: Window, added: Collection[Region] = ()) -> list[Block]:
    """The window and all blocks in it; single nodes' are counted in their subnets."""
    whole = Region(window.prefix, "", window.name)
    # Within one prefix, what holds others comes first.
    regions = [region for region in window.drawn() if region.nodes is None]
    regions.sort(key=lambda region: (region.prefix.value, region.prefix.length))
    rows: list[tuple[Region, list[Region], int]] = [(whole, [], 0)]
    path = [0]
    for region in regions:
        while not rows[path[-1]][0].prefix.covers(region.prefix):
            path.pop()
        rows[path[-1]][1].append(region)
        path.append(len(rows))
        rows.append((region, [], len(path) - 1))
    return [replace(_block(*row), is_new=row[0] in added) for row in rows]


def _block(region: Region, inside: list[Region], depth: int) -> Block:
    width = region.prefix.family.width
    if nodes := region.room:
        words = f"{nodes.planned:,} of {nodes.capacity:,} nodes"
        return Block(region, depth, Filled(nodes.planned, nodes.capacity, words), nodes.length)
    if not inside:
        return Block(region, depth, None, width)
    divided = max(each.prefix.length for each in inside)
    taken = sum(1 << (divided - each.prefix.length) for each in inside)
    parts = 1 << (divided - region.prefix.length)
    if region.prefix.family is Family.V4:
        words = percent(taken / parts)
    else:
        words = f"{taken:,} of {parts:,} /{divided}"
    return Block(region, depth, Filled(taken, parts, words), divided)


def percent(share: float) -> str:
    """A share in words, which say neither none nor all where that is not so."""
    if 0 < share < _SMALL_SHARE:
        return f"below {_SMALL_SHARE:.1%}"
    if 1 - _SMALL_SHARE < share < 1:
        return f"above {1 - _SMALL_SHARE:.1%}"
    return f"{share:.1%}".replace(".0%", "%")


def room(window: Window) -> str:
    """How much of a window is allocated, or free in one piece, in words."""
    if window.prefix.family is Family.V6:
        filled = blocks(window)[0].filled
        return f"{filled.words} allocated" if filled else "nothing is allocated"
    space = Space(window.prefix.family, [window.prefix])
    for region in window.outermost():
        space.withdraw(region.prefix)
    largest = next(space.blocks(), None)
    if largest is None:
        return "nothing is free"
    return f"{percent(space.size / window.prefix.size)} free, {largest} in one piece"


def levels(rows: Iterable[Block]) -> list[int]:
    """The prefix lengths that rows have or are divided into, each once, ascending."""
    return sorted({length for row in rows for length in (row.prefix.length, row.divided)})
