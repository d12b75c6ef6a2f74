"""The plan's map: one picture of who has which addresses, in a page that fetches nothing.

Each pool is a strip of its whole space, and below it a row for each block in it, by address. A
row's bar is the block: solid where nodes of today are, faint where it is only routed, hatched where
it is kept for growth. A pointer on any part shows what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from xml.sax.saxutils import escape, quoteattr

from netmgr.documents.sites import HUB
from netmgr.plan.allocate.space import Space
from netmgr.plan.document import Cluster, PlanDocument
from netmgr.plan.lock import Allocation, ClusterLock, LockDocument, Segment
from netmgr.prefixes import Family, Prefix, merge
from netmgr.printable import plain

SERIES = {
    "owner0": ("#2b8cf5", "#2a7aa4"),
    "owner1": ("#ce5d1a", "#fb9437"),
    "owner2": ("#10777b", "#67acaf"),
    "owner3": ("#af75a8", "#fec0f6"),
    "owner4": ("#453984", "#b68efd"),
    "owner5": ("#69905e", "#b6e8a8"),
    "owner6": ("#983f4a", "#c0626c"),
    "owner7": ("#4c4b03", "#70790e"),
}
"""Owners' custom properties and colours, on light and dark paper; any two may be adjacent."""
COLOURS = SERIES | {
    "paper": ("#f8f9fa", "#15181c"),
    "card": ("#ffffff", "#1e2227"),
    "ink": ("#1f2328", "#e6e8eb"),
    "faint": ("#596069", "#a2aab4"),
    "edge": ("#79818a", "#808994"),
}
"""Those and the others; `faint` is for secondary text."""

Attribute = str | float

_WIDTH, _MARGIN, _ROW, _BAR = 1100, 24, 24, 14
_ADDRESS, _LEFT, _RIGHT = 190, 400, 900
"""Where a row's address begins, and its bar begins and ends; the owner's name is before them."""
_LETTERS = 22
"""Of an owner's name."""


class Use(StrEnum):
    """How far addresses are in use; what is drawn on top comes last."""

    RESERVED = "reserved for growth"
    HELD = "routed, no subnet yet"
    USED = "in use"


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive addresses and what they are for.

    Attributes:
        prefix: the block that they are, or begin in.
        owner: cluster or hub; empty for exclusions.
        role: what the owner uses them for, for example "pods".
        note: shown when a pointer is on them.
        offset, size: the part of the block that they are.
        nodes: (planned, that fit), for the subnet of a segment.
    """

    prefix: Prefix
    owner: str
    role: str
    use: Use = Use.USED
    note: str = ""
    offset: int = 0
    size: int = 0
    nodes: tuple[int, int] = (0, 0)

    @property
    def first(self) -> int:
        return self.prefix.value + self.offset

    @property
    def count(self) -> int:
        return self.size or self.prefix.size

    @property
    def words(self) -> str:
        """One line: what a pointer shows."""
        use = "" if self.use is Use.USED else self.use.value
        return " · ".join(filter(None, (str(self.prefix), self.owner, self.role, use, self.note)))


def page(plan: PlanDocument, lock: LockDocument) -> str:
    """The map as an HTML page of one file, without a script."""
    light, dark = (
        "".join(f"--{name}:{both[on]};" for name, both in COLOURS.items()) for on in (0, 1)
    )
    style = (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "body{margin:0;background:var(--paper)}main{overflow-x:auto}"
        "svg{display:block;margin:auto;min-width:800px;max-width:1400px;width:100%;height:auto;"
        "font:13px 'DejaVu Sans',Verdana,sans-serif;fill:var(--ink)}"
        "rect:hover{stroke:var(--ink);stroke-width:2}"
    )
    title = _escaped(f"Address plan {plan.name}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        f"<body><main>\n{_picture(plan, lock)}\n</main></body>\n</html>\n"
    )


def _picture(plan: PlanDocument, lock: LockDocument) -> str:
    blocks = list(regions(plan, lock))
    # By address, so that neighbours differ: a ninth owner has the first one's colour.
    by_address = sorted(blocks, key=lambda region: region.first)
    owners = dict.fromkeys(region.owner for region in by_address if region.owner)
    colours = dict(zip(owners, cycle(SERIES), strict=False))
    title = f"Address plan {plan.name}"
    drawn = [
        _element("defs", "".join(map(_hatch, SERIES))),
        _text(_MARGIN, 38, title, font_size=20, font_weight="bold"),
        *_legend(),
    ]
    top, summary = 92.0, []
    for name, window in _windows(plan, blocks):
        rows = _rows(window, blocks)
        room = _room(window, [block.prefix for block, _ in rows])
        summary.append(f"{name} {window}: {room}")
        strip = (_MARGIN, top + 10, _WIDTH - 2 * _MARGIN)
        drawn += [
            _text(_MARGIN, top, f"{name} {window}", font_size=15, font_weight="bold"),
            _text(_WIDTH - _MARGIN, top, room, fill="var(--faint)", text_anchor="end"),
            _box((*strip, _BAR), fill="var(--card)", stroke="var(--edge)"),
        ]
        for block, _ in rows:
            # One colour, whatever is in it; the stroke parts blocks that touch.
            fill = f"var(--{colours.get(block.owner, 'edge')})"
            look = {"fill": fill, "stroke": "var(--card)", "stroke_width": "0.5"}
            drawn.append(_part(block, window, strip, look))
        for number, row in enumerate(rows):
            drawn += _row(*row, top + 36 + number * _ROW, colours)
        top += 36 + len(rows) * _ROW + 40
    # What a screen reader says of it.
    named = [_element("title", _escaped(title)), _element("desc", _escaped("; ".join(summary)))]
    inside = "\n".join(["", *named, *drawn, ""])
    return _element("svg", inside, role="img", viewBox=f"0 0 {_WIDTH} {_number(top)}")


def _hatch(colour: str) -> str:
    line = _element("path", d="M0 6L6 0", stroke=f"var(--{colour})", stroke_width=1.6)
    units = "userSpaceOnUse"
    return _element("pattern", line, id=f"hatch-{colour}", width=6, height=6, patternUnits=units)


def _look(region: Region, colours: Mapping[str, str]) -> dict[str, Attribute]:
    if not region.owner:
        return {"fill": "var(--edge)", "fill_opacity": 0.45}
    colour = colours[region.owner]
    match region.use:
        case Use.RESERVED:
            return {"fill": f"url(#hatch-{colour})", "stroke": f"var(--{colour})"}
        case Use.HELD:
            return {"fill": f"var(--{colour})", "fill_opacity": 0.25, "stroke": f"var(--{colour})"}
        case Use.USED:
            return {"fill": f"var(--{colour})"}


def _legend() -> Iterator[str]:
    left: float = _MARGIN
    prefix = Prefix(Family.V4, 0, 0)
    samples = [(use.value, Region(prefix, "a", "", use)) for use in reversed(Use)]
    for words, region in [*samples, ("excluded", Region(prefix, "", ""))]:
        yield _box((left, 52, 20, _BAR), **_look(region, {"a": "owner0"}))
        yield _text(left + 27, 64, words, fill="var(--faint)")
        # Nothing measures text here: a letter of this font takes some 7.2 units.
        left += 50 + 7.2 * len(words)


def _row(
    block: Region, parts: list[Region], top: float, colours: Mapping[str, str]
) -> Iterator[str]:
    base = top + 12
    name = block.owner or block.note or block.role
    planned, fit = (sum(region.nodes[side] for region in parts) for side in (0, 1))
    words = f"{planned:,} of {fit:,} nodes" if fit else block.role
    yield _text(_MARGIN, base, name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…")
    yield _text(_ADDRESS, base, str(block.prefix), font_family="monospace", font_size=12)
    place = (_LEFT, top, _RIGHT - _LEFT)
    yield _box((*place, _BAR), fill="var(--card)")
    # What is smaller is drawn on top.
    for region in (block, *sorted(parts, key=lambda region: -region.count)):
        yield _part(region, block.prefix, place, _look(region, colours))
    yield _text(_RIGHT + 12, base, words, fill="var(--faint)")


def _part(
    region: Region,
    whole: Prefix,
    place: tuple[float, float, float],
    look: Mapping[str, Attribute],
) -> str:
    """A region as a part of the bar of a whole prefix; `place` is the bar's left, top and width."""
    left, top, width = place
    # In integers: an IPv6 address is more than a float holds.
    start = width * (10**6 * (region.first - whole.value) // whole.size) / 10**6
    # Two units at least, or a subnet of a large pool could not be seen, nor pointed at.
    length = max(2.0, width * (10**6 * region.count // whole.size) / 10**6)
    start = min(start, width - length)
    return _box((left + start, top, length, _BAR), region.words, **look)


def _windows(plan: PlanDocument, regions: Iterable[Region]) -> list[tuple[str, Prefix]]:
    """The pools, and whatever else is in use outside all of them."""
    pools = [("Nodes", prefix) for prefix in plan.pools.nodes]
    pools += [("Services", prefix) for prefix in plan.pools.services]
    outside = (r.prefix for r in regions if not any(pool.covers(r.prefix) for _, pool in pools))
    return pools + [("Outside the pools", prefix) for prefix in merge(outside)]


def _rows(window: Prefix, regions: Iterable[Region]) -> list[tuple[Region, list[Region]]]:
    """The outermost blocks of a pool, each with what is in it."""
    inside = [region for region in regions if window.covers(region.prefix)]
    # Of equal blocks a reserve or prefix is before the subnet in it, and so is the row.
    inside.sort(key=lambda region: (region.first, -region.count, list(Use).index(region.use)))
    rows: list[tuple[Region, list[Region]]] = []
    for region in inside:
        if rows and rows[-1][0].prefix.covers(region.prefix):
            rows[-1][1].append(region)
        else:
            rows.append((region, []))
    return rows


def _room(window: Prefix, blocks: Iterable[Prefix]) -> str:
    space = Space(window.family, [window])
    for block in blocks:
        space.withdraw(block)
    largest = next(space.blocks(), None)
    return f"largest free block: {largest}" if largest else "nothing is free"


def regions(plan: PlanDocument, lock: LockDocument) -> Iterator[Region]:
    """Everything that somebody has, but the pools."""
    for unused in plan.exclude:
        yield Region(unused.prefix, "", "excluded", note=unused.reason)
    others = plan.pinned.keys() - lock.clusters.keys() - {HUB}
    for name in sorted(others):
        yield from (Region(prefix, "", "pinned", note=name) for prefix in plan.pinned[name])
    yield from _allocated(HUB, lock.hub.prefixes, "")
    yield from (Region(prefix, HUB, "routers") for prefix in lock.hub.routers.prefixes)
    for subnet in lock.hub.researchers:
        yield from (Region(prefix, HUB, "researchers") for prefix in subnet.prefixes)
    for name, held in lock.clusters.items():
        yield from _cluster(plan.clusters.get(name), name, held)


def _allocated(owner: str, allocations: Iterable[Allocation], note: str) -> Iterator[Region]:
    for allocation in allocations:
        if allocation.reserve != allocation.prefix:
            yield Region(allocation.reserve, owner, "reserve", Use.RESERVED, note)
        yield Region(allocation.prefix, owner, "prefix", Use.HELD, note)


def _cluster(spec: Cluster | None, name: str, held: ClusterLock) -> Iterator[Region]:
    node_pools = {} if spec is None or held.tombstone else spec.node_pools
    note = "" if node_pools else "no longer in the plan; kept until it is released"
    use = Use.USED if node_pools else Use.HELD
    yield from _allocated(name, held.prefixes, note)
    for vip_range, service_cidr in held.services.pairs:
        inside = f"{service_cidr} in the cluster itself"
        yield Region(vip_range, name, "Services", use, " · ".join(filter(None, (inside, note))))
    yield from (Region(prefix, name, "NAT hosts", use, note) for prefix in held.nat.prefixes)
    for pool, places in held.node_pools.items():
        nodes = node_pools[pool].nodes if pool in node_pools else 0
        for segment in places.segments:
            yield from _segment(name, pool, segment, nodes - segment.first)


def _segment(owner: str, pool: str, segment: Segment, nodes: int) -> Iterator[Region]:
    """A segment's subnets, and in them what today's `nodes` have, in it or in those behind it."""
    planned = min(max(0, nodes), segment.nodes)
    note = f"{owner}-{pool}: {planned:,} of {segment.nodes:,} nodes"
    for layout in segment.layouts:
        subnet, counts = layout.subnet, (planned, segment.nodes)
        yield Region(subnet, owner, "nodes and pods", Use.RESERVED, note, nodes=counts)
        parts = (("nodes", layout.host_base, 1), ("pods", layout.pod_base, layout.stride))
        for role, base, stride in parts if planned else ():
            offset, size = base.value - subnet.value, planned * stride
            yield Region(subnet, owner, role, Use.USED, note, offset, size)


def _element(name: str, content: str = "", **attributes: Attribute) -> str:
    """One element. `content` is markup already; `fill_opacity` is the attribute `fill-opacity`."""
    pairs = ""
    for key, value in attributes.items():
        shown = value if isinstance(value, str) else _number(value)
        pairs += f" {key.replace('_', '-')}={quoteattr(shown)}"
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def _box(
    place: tuple[float, float, float, float], title: str = "", /, **attributes: Attribute
) -> str:
    """A rectangle: left, top, width, height. A pointer on it shows `title`."""
    sides = dict(zip(("x", "y", "width", "height"), place, strict=True))
    content = _element("title", _escaped(title)) if title else ""
    return _element("rect", content, **sides, **attributes)


def _text(x: float, y: float, words: str, /, **attributes: Attribute) -> str:
    """One line of text whose baseline is at `y`."""
    return _element("text", _escaped(words), x=x, y=y, **attributes)


def _number(value: float) -> str:
    """A coordinate, to a hundredth of a unit."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(words: str) -> str:
    """Text as markup, whatever a cluster or a reason is called."""
    return escape(plain(words))
