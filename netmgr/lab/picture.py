"""A lab as one SVG file: sites, machines, pods, and what was dropped between spokes.

The hub and the internet are at the top, the fabric in the middle, the spokes below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from netmgr.documents.sites import HUB, Role
from netmgr.drawing import (
    MONOSPACE,
    Attribute,
    box,
    document,
    element,
    escaped,
    group,
    path,
    shortened,
    text,
)
from netmgr.lab.live import Host, Live, LiveSite
from netmgr.palette import (
    BAD,
    CARD,
    EDGE,
    FABRIC_FILL,
    FAINT,
    GOOD,
    INK,
    LINE,
    NAT_FILL,
    NODE_FILL,
    ROUTER_FILL,
)

_WIDTH, _GAP, _MARGIN, _PAD = 316, 24, 28, 12
_COLUMNS = 4
_TOP, _LINE, _HEADING = 64, 15, 22
_BAR, _CORD = 34, 30
_LETTER = 6.05  # mean width of a letter of an address

_ADDRESS: dict[str, Attribute] = {"font_family": MONOSPACE, "font_size": 10, "fill": INK}
_SMALL: dict[str, Attribute] = {"font_size": 11, "fill": FAINT}
_FILLS: dict[str, str] = {
    Role.NODE: NODE_FILL,
    Role.NAT_HOST: NAT_FILL,
    Role.HUB_ROUTER: ROUTER_FILL,
}
_TAGS: dict[str, str] = {
    "": "no agent",
    Role.NODE: "node",
    Role.NAT_HOST: "NAT host",
    Role.HUB_ROUTER: "hub router",
}
_PLAIN_TAGS = {"internet": "everything outside", "researcher": "reaches every spoke"}


@dataclass(frozen=True, slots=True)
class _Block:
    """A drawn piece of a known height, to be placed by its upper left corner."""

    height: int
    lines: tuple[str, ...]

    def at(self, left: float, top: float) -> str:
        return group(left, top, self.lines)


def draw(live: Live) -> str:
    """The picture, ending with a newline."""
    above = [_site(each, live.at(HUB), LINE) for each in live.sites if each.name == HUB]
    above += [_card(host, _WIDTH) for host in live.hosts if host.name == "internet"]
    below = [_spoke(site, live.at(site.name)) for site in live.sites if site.name != HUB]
    below = below or [_card(host, _WIDTH) for host in live.hosts if host.role]
    columns = min(_COLUMNS, max(len(above), len(below)))
    width = 2 * _MARGIN + columns * _WIDTH + (columns - 1) * _GAP

    lines, bar = _upper(above, width)
    lines += _fabric(live, bar, width)
    bottom = bar + _BAR
    for first in range(0, len(below), _COLUMNS):
        row, bottom = _lower(below[first : first + _COLUMNS], bottom, width)
        lines += row
    if live.sites:
        table = _drops(live)
        lines.append(table.at(_MARGIN, bottom + _GAP))
        bottom += _GAP + table.height

    pods = sum(len(host.pods) for host in live.hosts)
    title = f"{live.name}: {len(live.hosts)} namespaces, {pods} pods, rules in {live.backend}"
    heading = text(_MARGIN, 38, title, font_size=18, font_weight="bold", fill=INK)
    size = width, bottom + _MARGIN
    return document(title, size, [heading, *lines], font_size=12, summary=_summary(live))


def _summary(live: Live) -> str:
    """Where machines are, what is wrong with them, and what was dropped."""
    parts = []
    for host in live.hosts:
        state = "" if host.ready else f", not ready: {host.reason}"
        parts.append(f"{host.name} in {host.site}{state}" if host.site else f"{host.name}{state}")
    for (origin, destination), packets in live.dropped().items():
        parts.append(f"{packets} packets dropped from {origin} to {destination}")
    return "; ".join(parts)


def _upper(blocks: Sequence[_Block], width: float) -> tuple[list[str], int]:
    """Blocks above the fabric, their cords down to it; returns where it begins, too."""
    lines: list[str] = []
    bar = _TOP + max((block.height for block in blocks), default=0) + _CORD
    for left, block in _side_by_side(blocks, width):
        lines += [block.at(left, _TOP), _cord(left, _TOP + block.height, bar)]
    return lines, bar


def _lower(blocks: Sequence[_Block], top: int, width: float) -> tuple[list[str], int]:
    """Blocks below what ends at `top`, their cords up to it; returns where they end, too."""
    lines: list[str] = []
    for left, block in _side_by_side(blocks, width):
        lines += [_cord(left, top, top + _CORD), block.at(left, top + _CORD)]
    return lines, top + _CORD + max(block.height for block in blocks)


def _side_by_side(blocks: Sequence[_Block], width: float) -> Iterator[tuple[float, _Block]]:
    """Blocks with their left edges, in the middle of the picture."""
    first = (width - len(blocks) * _WIDTH - (len(blocks) - 1) * _GAP) / 2
    for place, block in enumerate(blocks):
        yield first + place * (_WIDTH + _GAP), block


def _cord(left: float, top: float, bottom: float) -> str:
    return path(f"M{left + _WIDTH / 2:g} {top:g}V{bottom:g}", EDGE, 2)


def _fabric(live: Live, top: float, width: float) -> Iterator[str]:
    fabric = next((host for host in live.hosts if len(host.links) > 1 and not host.role), None)
    ports = [link for link in fabric.links if link.bridge] if fabric else []
    up = sum(link.up for link in ports)
    what = f": the cloud's routing, isolates nothing; {up} of {len(ports)} ports up"
    name = element("tspan", escaped(fabric.name if fabric else "fabric"), font_weight="bold")
    place = (_MARGIN, top, width - 2 * _MARGIN, _BAR)
    yield box(place, rx=6, fill=FABRIC_FILL, stroke=LINE)
    yield element(
        "text",
        name + (what if ports else ""),
        x=width / 2,
        y=top + 21,
        text_anchor="middle",
        fill=INK,
    )


def _spoke(site: LiveSite, hosts: Sequence[Host]) -> _Block:
    order = [Role.NAT_HOST, Role.NODE, ""]
    return _site(site, sorted(hosts, key=lambda host: order.index(host.role)), EDGE)


def _site(site: LiveSite, hosts: Sequence[Host], border: str) -> _Block:
    lines = [text(_PAD, _HEADING, site.name, font_weight="bold", font_size=14, fill=INK)]
    if site.translation:
        how = f"{site.translation} · {site.source}"
        lines.append(text(_WIDTH - _PAD, _HEADING, how, "end", fill=FAINT))
    top = _HEADING + _LINE
    for words in (*site.prefixes, *(f"Services {each}" for each in site.services())):
        lines.append(text(_PAD, top, words, **_ADDRESS))
        top += _LINE
    for host in hosts:
        card = _card(host, _WIDTH - 2 * _PAD)
        lines.append(card.at(_PAD, top - 4))
        top += card.height + 10
    # Last, because only now the height is known; drawn first, as it would cover the rest.
    frame = box((0, 0, _WIDTH, top), rx=10, fill=CARD, stroke=border, stroke_width=2)
    return _Block(top, (frame, *lines))


def _card(host: Host, width: float) -> _Block:
    tag = _PLAIN_TAGS.get(host.name, _TAGS.get(host.role, host.role))
    lines = [
        text(_PAD + 16, 19, host.name, font_weight="bold", fill=INK),
        text(width - _PAD, 19, tag, "end", **_SMALL),
        *_state(host),
    ]
    top = 19 + _LINE
    if host.role and not host.ready:
        reason = shortened(f"not ready: {host.reason}", int((width - 2 * _PAD) / _LETTER))
        lines.append(text(_PAD, top, reason, fill=BAD, font_size=10.5))
        top += _LINE
    for words in _addresses(host, int((width - 2 * _PAD) / _LETTER)):
        lines.append(text(_PAD, top, words, **_ADDRESS))
        top += _LINE
    for pod in host.pods:
        addresses = "  ".join(pod.addresses)
        place = (_PAD, top - 8, width - 2 * _PAD, 24)
        lines += [
            box(place, rx=4, fill=CARD, stroke=EDGE),
            text(_PAD + 6, top + 8, pod.name, font_size=11, fill=INK),
            text(width - _PAD - 6, top + 8, addresses, "end", **_ADDRESS),
        ]
        top += 2 * _LINE
    for drops in host.dropped:
        if drops.packets:
            lines.append(text(_PAD, top, drops.seen_from(host.site), fill=BAD, font_size=10.5))
            top += _LINE
    frame = box((0, 0, width, top - 4), rx=6, fill=_FILLS.get(host.role, CARD), stroke=LINE)
    return _Block(top - 4, (frame, *lines))


def _addresses(host: Host, letters: int) -> Iterator[str]:
    """Addresses, then ranges on a line of their own, side by side as far as there is room."""
    ranges = [f"pods {host.ranges[0]}", *host.ranges[1:]] if host.ranges else []
    yield from _filled(host.addresses, letters)
    yield from _filled(ranges, letters)


def _filled(items: Sequence[str], letters: int) -> Iterator[str]:
    line = ""
    for item in items:
        longer = f"{line}  {item}" if line else item
        if line and len(longer) > letters:
            yield line
            longer = item
        line = longer
    if line:
        yield line


def _state(host: Host) -> Iterator[str]:
    """A mark of another shape for each state: a tick, a triangle, or a ring without an agent."""
    if not host.role:
        title = element("title", "no agent runs here")
        yield element(
            "circle", title, cx=_PAD + 5, cy=15, r=4, fill="none", stroke=FAINT, stroke_width=1.5
        )
    elif host.ready:
        title = element("title", "agent ready")
        yield element("circle", title, cx=_PAD + 5, cy=15, r=6, fill=GOOD)
        yield path(f"M{_PAD + 2} 15l2.3 2.5l4 -4.5", CARD, 1.5)
    else:
        title = element("title", escaped(host.reason))
        yield element("path", title, d=f"M{_PAD + 5} 8.5l6.5 12h-13z", fill=BAD)


def _drops(live: Live) -> _Block:
    """Packets dropped from spoke to spoke, as a table."""
    names = [site.name for site in live.sites if site.name != HUB]
    totals = live.dropped()
    title = "Packets dropped from spoke to spoke, by all machines"
    lines = [text(0, 14, title, font_weight="bold", fill=INK)]
    for row, origin in enumerate(names):
        top = 56 + row * 18
        lines.append(text(160 + row * 100, 36, f"to {origin}", "end", **_SMALL))
        lines.append(text(0, top, f"from {origin}", **_SMALL))
        for column, destination in enumerate(names):
            packets = totals.get((origin, destination), 0)
            shown = "-" if origin == destination else str(packets)
            colour = BAD if packets else FAINT
            lines.append(text(160 + column * 100, top, shown, "end", fill=colour))
    return _Block(56 + len(names) * 18, tuple(lines))
