"""A dashboard as one SVG file (SVG 1.1), from what a Prometheus answered: for pages and mails, without a Grafana."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from math import floor, log10
from xml.sax.saxutils import escape

from exporter.monitoring.dashboards import Dashboard, Panel

WIDTH, HEIGHT = 560, 250
"""Of one panel, in user units."""

_NAMESPACE = "http://www.w3.org/2000/svg"
_FONT = ' font-family="DejaVu Sans, Verdana, sans-serif" font-size="11"'
_COLOURS = ("#3b6fb6", "#d9822b", "#4f9d58", "#b8485b", "#7a5fa8", "#8a6d53", "#c26fa8", "#6b7480")
_MARGIN, _TITLE = 16, 44
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 236, 34, 24
_LINE = 15
_MOST_NAMED = 12
_NAME_LETTERS = 22
_GRID = 4
_SUFFIX = {"Bps": "B/s", "bytes": "B", "s": "s", "reqps": "/s", "pps": "/s", "short": "", "percentunit": "%"}
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PARTS = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel: (seconds since 1970, value), in the order of time, never empty."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


Answers = Mapping[str, Sequence[Line]]
"""What each expression gave."""


def draw(dashboard: Dashboard, answers: Answers) -> str:
    """The picture, ending with a newline; a panel whose queries gave nothing says so."""
    rows = -(-len(dashboard.panels) // 2)
    width, height = 2 * WIDTH + 3 * _MARGIN, _TITLE + rows * (HEIGHT + _MARGIN)
    lines = [
        f'<svg xmlns="{_NAMESPACE}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"{_FONT}>',
        f"<title>{escape(dashboard.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#f4f4f2"/>',
        _text(_MARGIN, 28, dashboard.title, ' font-size="17" font-weight="bold"'),
    ]
    for index, panel in enumerate(dashboard.panels):
        row, column = divmod(index, 2)
        left, top = _MARGIN + column * (WIDTH + _MARGIN), _TITLE + row * (HEIGHT + _MARGIN)
        found = [line for query in panel.queries for line in answers.get(query.expression, ())]
        lines.append(f'<g transform="translate({left} {top})">')
        lines += _panel(panel, sorted(found, key=lambda line: -line.last))
        lines.append("</g>")
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="3" fill="#ffffff" stroke="#d8d8d4"/>'
    yield _text(12, 20, panel.title, ' font-weight="bold"')
    if not lines:
        yield _text(12, HEIGHT // 2, "no data")
    elif panel.kind == "timeseries":
        yield from _diagram(panel, lines)
        yield from _legend(panel, lines)
    else:
        yield from _bars(panel, lines)


def _diagram(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    times = sorted({moment for line in lines for moment, _ in line.points})
    layers = list(_stacked(lines, times)) if panel.stacked else [line.points for line in lines]
    top = _ceiling(max(value for layer in layers for _, value in layer))
    yield from _axes(panel, top, times)
    floor_ = [(moment, 0.0) for moment in times]
    for layer, colour in zip(layers, cycle(_COLOURS), strict=False):
        upper = _path(layer, times, top)
        if panel.stacked:
            yield f'<polygon points="{upper} {_path(floor_[::-1], times, top)}" fill="{colour}" fill-opacity="0.55"/>'
            floor_ = list(layer)
        yield f'<polyline points="{upper}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _stacked(lines: Iterable[Line], times: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """Each line on top of those before it; where one has no value it adds nothing."""
    heights = dict.fromkeys(times, 0.0)
    for line in lines:
        for moment, value in line.points:
            heights[moment] += value
        yield list(heights.items())


def _path(points: Iterable[tuple[float, float]], times: Sequence[float], top: float) -> str:
    span = (times[-1] - times[0]) or 1
    across, down = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    places = (
        (_LEFT + (moment - times[0]) / span * across, HEIGHT - _BOTTOM - value / top * down) for moment, value in points
    )
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _axes(panel: Panel, top: float, times: Sequence[float]) -> Iterator[str]:
    right = WIDTH - _RIGHT
    for step in range(_GRID + 1):
        y = HEIGHT - _BOTTOM - step / _GRID * (HEIGHT - _TOP - _BOTTOM)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e6e6e2"/>'
        yield _text(_LEFT - 6, y + 4, _amount(top * step / _GRID, panel.unit), ' text-anchor="end" fill="#666"')
    for x, moment, anchor in ((_LEFT, times[0], "start"), (right, times[-1], "end")):
        shown = datetime.fromtimestamp(moment, UTC).strftime("%H:%M")
        yield _text(x, HEIGHT - 8, shown, f' text-anchor="{anchor}" fill="#666"')


def _legend(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    left = WIDTH - _RIGHT + 14
    for index, (line, colour) in enumerate(zip(lines[:_MOST_NAMED], cycle(_COLOURS), strict=False)):
        y = _TOP + 8 + index * _LINE
        yield f'<rect x="{left}" y="{y - 8}" width="9" height="9" fill="{colour}"/>'
        yield _text(left + 14, y, _short(line.name))
        yield _text(WIDTH - 10, y, _amount(line.last, panel.unit), ' text-anchor="end" fill="#444"')


def _bars(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    top = max(line.last for line in lines) or 1
    for index, (line, colour) in enumerate(zip(lines[:_MOST_NAMED], cycle(_COLOURS), strict=False)):
        y = _TOP + 14 + index * _LINE
        length = max(line.last / top * (WIDTH - 260), 1)
        yield _text(150, y, _short(line.name), ' text-anchor="end"')
        yield f'<rect x="158" y="{y - 9}" width="{length:.1f}" height="11" fill="{colour}"/>'
        yield _text(164 + length, y, _amount(line.last, panel.unit), ' fill="#444"')


def _ceiling(value: float) -> float:
    """The next of 1, 2, 4, 6, 8 times a power of ten: each has four grid lines with short names."""
    if value <= 0:
        return 1
    power = 10.0 ** floor(log10(value))
    return next(power * factor for factor in (1, 2, 4, 6, 8, 10) if power * factor >= value)


def _amount(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    scale = _PARTS if unit == "s" else _THOUSANDS
    size, prefix = next((pair for pair in scale if abs(value) >= pair[0]), (1.0, ""))
    return f"{value / size:.3g} {prefix}{_SUFFIX[unit]}".rstrip()


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LETTERS else name[: _NAME_LETTERS - 1] + "…"


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.4g}" y="{y:.4g}"{more}>{escape(words)}</text>'
