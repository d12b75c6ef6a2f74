"""A lab as one SVG file (SVG 1.1) that needs nothing else to be shown: sites, machines, pods, what was dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from netmgr.lab.live import Host, Live, Site
from netmgr.render.picture import plain
from netmgr.render.svg import NAMESPACE
from netmgr.sites import HUB, Role

_WIDTH, _GAP, _MARGIN, _PAD = 316, 24, 28, 12
_COLUMNS = 4
_LINE, _HEADING = 15, 22
_BAR = 34
_LETTER = 6.05
"""Mean width of a letter of an address."""

_FONT = 'font-family="DejaVu Sans, Verdana, sans-serif" font-size="12"'
_MONO = 'font-family="DejaVu Sans Mono, Menlo, monospace" font-size="10"'
_INK, _FAINT, _RED, _GREEN = "#202124", "#5f6368", "#c5221f", "#188038"
_FILLS = {"": "#ffffff", Role.NODE: "#e8f0fe", Role.NAT_HOST: "#fef7e0", Role.HUB_ROUTER: "#e6f4ea"}
_TAGS = {"": "no agent", Role.NODE: "node", Role.NAT_HOST: "NAT host", Role.HUB_ROUTER: "hub router"}
_PLAIN_TAGS = {"internet": "everything outside", "researcher": "reaches every spoke"}


@dataclass(frozen=True, slots=True)
class _Block:
    """A drawn piece and its height; it is as wide as it was asked to be."""

    height: int
    lines: tuple[str, ...]

    def at(self, left: float, top: float) -> Iterator[str]:
        yield f'<g transform="translate({left:g} {top:g})">'
        yield from self.lines
        yield "</g>"


def draw(live: Live) -> str:
    """The picture as a document of its own, ending with a newline."""
    fabric = next((host for host in live.hosts if len(host.links) > 1 and not host.role), None)
    above = [*_hub(live), *(_card(host, _WIDTH) for host in live.hosts if host.name == "internet")]
    below = [_spoke(site, live.at(site.name)) for site in live.sites if site.name != HUB]
    below = below or [_card(host, _WIDTH) for host in live.hosts if host.role]
    columns = min(_COLUMNS, max(len(above), len(below)))
    width = 2 * _MARGIN + columns * _WIDTH + (columns - 1) * _GAP
    top = 64
    lines, bottom = _row(above, top, width)
    middle = bottom + 30
    lines += _cords(above, bottom_of=top, to=middle, width=width)
    lines += _bar(fabric, middle, width)
    bottom = middle + _BAR
    for first in range(0, len(below), _COLUMNS):
        row = below[first : first + _COLUMNS]
        lines += _cords_down(row, bottom, bottom + 30, width)
        drawn, bottom = _row(row, bottom + 30, width)
        lines += drawn
    if live.sites:
        table = _drops(live)
        lines += table.at(_MARGIN, bottom + _GAP)
        bottom += _GAP + table.height
    return "\n".join([*_head(live, width, bottom + _MARGIN), *lines, "</svg>", ""])


def _head(live: Live, width: float, height: float) -> Iterator[str]:
    pods = sum(len(host.pods) for host in live.hosts)
    title = f"{live.name}: {len(live.hosts)} namespaces, {pods} pods, rules in {live.backend}"
    yield f'<svg xmlns="{NAMESPACE}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" {_FONT}>'
    yield f"<title>{_text(title)}</title>"
    yield f'<rect width="{width:g}" height="{height:g}" fill="#fcfcfa"/>'
    yield f'<text x="{_MARGIN}" y="38" font-size="18" font-weight="bold" fill="{_INK}">{_text(title)}</text>'


def _row(blocks: Sequence[_Block], top: float, width: float) -> tuple[list[str], float]:
    """Blocks side by side in the middle; returns where the highest ends."""
    lines: list[str] = []
    for left, block in zip(_places(len(blocks), width), blocks, strict=True):
        lines += block.at(left, top)
    return lines, top + max((block.height for block in blocks), default=0)


def _places(number: int, width: float) -> Iterator[float]:
    first = (width - number * _WIDTH - (number - 1) * _GAP) / 2
    yield from (first + place * (_WIDTH + _GAP) for place in range(number))


def _cords(blocks: Sequence[_Block], *, bottom_of: float, to: float, width: float) -> Iterator[str]:
    for left, block in zip(_places(len(blocks), width), blocks, strict=True):
        yield _cord(left + _WIDTH / 2, bottom_of + block.height, to)


def _cords_down(blocks: Sequence[_Block], top: float, to: float, width: float) -> Iterator[str]:
    for left, _ in zip(_places(len(blocks), width), blocks, strict=True):
        yield _cord(left + _WIDTH / 2, top, to)


def _cord(x: float, top: float, bottom: float) -> str:
    return f'<path d="M{x:g} {top:g}V{bottom:g}" stroke="#80868b" stroke-width="2"/>'


def _bar(fabric: Host | None, top: float, width: float) -> Iterator[str]:
    ports = [link for link in fabric.links if link.bridge] if fabric else []
    up = sum(link.up for link in ports)
    told = f": the cloud's routing, keeps nobody apart; {up} of {len(ports)} ports up" if ports else ""
    name = fabric.name if fabric else "fabric"
    yield (
        f'<rect x="{_MARGIN}" y="{top:g}" width="{width - 2 * _MARGIN:g}" height="{_BAR}" rx="6" fill="#e8eaed"'
        ' stroke="#bdc1c6"/>'
    )
    yield (
        f'<text x="{width / 2:g}" y="{top + 21:g}" text-anchor="middle" fill="{_INK}">'
        f'<tspan font-weight="bold">{_text(name)}</tspan>{_text(told)}</text>'
    )


def _hub(live: Live) -> Iterator[_Block]:
    for site in live.sites:
        if site.name == HUB:
            yield _site(site, live.at(HUB), "#dadce0")


def _spoke(site: Site, hosts: Sequence[Host]) -> _Block:
    order = [Role.NAT_HOST, Role.NODE, ""]
    return _site(site, sorted(hosts, key=lambda host: order.index(host.role)), "#aecbfa")


def _site(site: Site, hosts: Iterable[Host], border: str) -> _Block:
    lines = [_words(_PAD, _HEADING, site.name, 'font-weight="bold" font-size="14"')]
    top = _HEADING + _LINE
    for prefix in site.prefixes:
        lines.append(_words(_PAD, top, prefix, _MONO))
        top += _LINE
    for seen, real in zip(site.seen, site.real, strict=True):
        told = f"Services {seen}" + (f" → {real}" if real != seen else "")
        lines.append(_words(_PAD, top, told, _MONO))
        top += _LINE
    if site.translation:
        lines.append(
            _words(_WIDTH - _PAD, _HEADING, f"{site.translation} · {site.source}", f'fill="{_FAINT}"', end=True)
        )
    for host in hosts:
        card = _card(host, _WIDTH - 2 * _PAD)
        lines += card.at(_PAD, top - 4)
        top += card.height + 10
    frame = f'<rect width="{_WIDTH}" height="{top}" rx="10" fill="#ffffff" stroke="{border}" stroke-width="2"/>'
    return _Block(top, (frame, *lines))


def _card(host: Host, width: float) -> _Block:
    lines = [_words(_PAD + 12, 19, host.name, 'font-weight="bold"')]
    tag = _PLAIN_TAGS.get(host.name, _TAGS.get(host.role, host.role))
    lines.append(_words(width - _PAD, 19, tag, f'fill="{_FAINT}" font-size="11"', end=True))
    state = _FAINT if not host.role else _GREEN if host.ready else _RED
    lines.append(f'<circle cx="{_PAD + 3}" cy="15" r="4" fill="{state}"><title>{_text(_state(host))}</title></circle>')
    top = 19 + _LINE
    for told in _own(host, int((width - 2 * _PAD) / _LETTER)):
        lines.append(_words(_PAD, top, told, _MONO))
        top += _LINE
    for pod in host.pods:
        lines += _pod(pod.name, pod.addresses, top - 8, width)
        top += 2 * _LINE
    for each in host.dropped:
        if each.packets:
            lines.append(_words(_PAD, top, each.seen_from(host.site), f'fill="{_RED}" font-size="10.5"'))
            top += _LINE
    fill = _FILLS.get(host.role, "#ffffff")
    height = top - 4
    return _Block(
        height,
        (f'<rect width="{width:g}" height="{height}" rx="6" fill="{fill}" stroke="#bdc1c6"/>', *lines),
    )


def _own(host: Host, letters: int) -> Iterator[str]:
    """Addresses, then ranges, side by side as far as there is room."""
    line = ""
    for number, each in enumerate((*host.addresses, *host.ranges)):
        starts_ranges = number == len(host.addresses)
        told = f"pods {each}" if starts_ranges else each
        if line and (starts_ranges or len(line) + 2 + len(told) > letters):
            yield line
            line = told
        else:
            line = f"{line}  {told}" if line else told
    if line:
        yield line


def _state(host: Host) -> str:
    if not host.role:
        return "no agent runs here"
    return "agent ready" if host.ready else host.reason


def _pod(name: str, addresses: Sequence[str], top: float, width: float) -> Iterator[str]:
    yield (
        f'<rect x="{_PAD}" y="{top:g}" width="{width - 2 * _PAD:g}" height="24" rx="4" fill="#ffffff"'
        ' stroke="#aecbfa"/>'
    )
    yield _words(_PAD + 6, top + 16, name, 'font-size="11"')
    yield _words(width - _PAD - 6, top + 16, "  ".join(addresses), _MONO, end=True)


def _drops(live: Live) -> _Block:
    """From whom to whom packets were dropped, as a table."""
    names = [site.name for site in live.sites if site.name != HUB]
    totals = live.dropped()
    lines = [_words(0, 14, "Packets dropped from spoke to spoke, by all machines", 'font-weight="bold"')]
    for column, name in enumerate(names):
        lines.append(_words(160 + column * 100, 36, f"to {name}", f'fill="{_FAINT}" font-size="11"', end=True))
    for row, origin in enumerate(names):
        top = 56 + row * 18
        lines.append(_words(0, top, f"from {origin}", f'fill="{_FAINT}" font-size="11"'))
        for column, destination in enumerate(names):
            packets = totals.get((origin, destination), 0)
            told = "-" if origin == destination else str(packets)
            look = f'fill="{_RED if packets else _FAINT}"'
            lines.append(_words(160 + column * 100, top, told, look, end=True))
    return _Block(56 + len(names) * 18, tuple(lines))


def _words(x: float, y: float, words: str, look: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    fill = "" if "fill=" in look else f' fill="{_INK}"'
    return f'<text x="{x:g}" y="{y:g}"{anchor} {look}{fill} xml:space="preserve">{_text(words)}</text>'


def _text(words: str) -> str:
    return escape(plain(words))
