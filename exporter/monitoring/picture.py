"""A dashboard as one SVG file, from a Prometheus' answers: for pages and mails, without Grafana."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise
from math import floor, log10

from exporter.monitoring.dashboard import Dashboard, Panel
from netmgr.drawing import box, document, element, group, shortened, text
from netmgr.palette import CARD, FAINT, LINE, SERIES

WIDTH, HEIGHT = 560, 250
"""Of one panel, in user units."""

_MARKS = (
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "M-3-3h6v6h-6z",
    "M0-4l4 7h-8z",
    "M0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    "M-4-1.2h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z",
    "M0 4l4-7h-8z",
    "M-1.5-4h3v8h-3z",
    "M-4-1.5h8v3h-8z",
)
"""Shapes around (0, 0), one for each colour, so that series are known by either."""

_MARKS_OF_LINE = 4
_MARGIN, _TITLE = 16, 44
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 236, 34, 24
_LINE = 15
_MOST_NAMED = 12
_NAME_LETTERS = 22
_GRID = 4
_SUFFIX = {
    "Bps": "B/s",
    "bytes": "B",
    "s": "s",
    "reqps": "/s",
    "pps": "/s",
    "ops": "/s",
    "short": "",
    "percentunit": "%",
}
_THOUSANDS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_PARTS = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"))

Points = Sequence[tuple[float, float]]
Spot = tuple[float, float]
"""Where in a panel something is, in user units."""


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
    size = 2 * WIDTH + 3 * _MARGIN, _TITLE + rows * (HEIGHT + _MARGIN)
    body = [text(_MARGIN, 28, dashboard.title, font_size=17, font_weight="bold")]
    for index, panel in enumerate(dashboard.panels):
        row, column = divmod(index, 2)
        left, top = _MARGIN + column * (WIDTH + _MARGIN), _TITLE + row * (HEIGHT + _MARGIN)
        found = [line for query in panel.queries for line in answers.get(query.expression, ())]
        body.append(group(left, top, _panel(panel, sorted(found, key=lambda line: -line.last))))
    return document(dashboard.title, size, body, font_size=11, summary=_summary(dashboard, answers))


def _summary(dashboard: Dashboard, answers: Answers) -> str:
    """Each panel's largest current value, for those who cannot see its lines."""
    parts = []
    for panel in dashboard.panels:
        found = [line for query in panel.queries for line in answers.get(query.expression, ())]
        largest = max(found, key=lambda line: line.last, default=None)
        amount = _amount(largest.last, panel.unit) if largest else ""
        parts.append(f"{panel.title}: {largest.name} {amount}" if largest else f"{panel.title}: -")
    return "; ".join(parts)


def _panel(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    yield box((0, 0, WIDTH, HEIGHT), rx=3, fill=CARD, stroke=LINE)
    yield text(12, 20, panel.title, font_weight="bold")
    if not lines:
        yield text(12, HEIGHT // 2, "no data")
    elif panel.kind == "timeseries":
        yield from _diagram(panel, lines)
        yield from _legend(panel, lines)
    else:
        yield from _bars(panel, lines)


def _diagram(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    times = sorted({moment for line in lines for moment, _ in line.points})
    layers = list(_stacked(lines, times)) if panel.stacked else [line.points for line in lines]
    top = _ceiling(max(value for _, value in chain.from_iterable(layers)))
    yield from _axes(panel, top, times)
    curves = [_spots(layer, times, top) for layer in layers]
    if panel.stacked:
        yield from _areas([_spots([(moment, 0.0) for moment in times], times, top), *curves])
    for number, curve in enumerate(curves):
        yield from _curve(number, curve)


def _curve(number: int, curve: Sequence[Spot]) -> Iterator[str]:
    points, colour = _points(curve), _colour(number)
    yield element("polyline", points=points, fill="none", stroke=colour, stroke_width=1.5)
    yield from (_mark(number, spot) for spot in _marked(curve, number))


def _areas(curves: Sequence[list[Spot]]) -> Iterator[str]:
    """What is between each curve and the one below it."""
    for number, (below, above) in enumerate(pairwise(curves)):
        area = _points([*above, *below[::-1]])
        yield element("polygon", points=area, fill=_colour(number), fill_opacity=0.45)


def _colour(number: int) -> str:
    return SERIES[number % len(SERIES)]


def _mark(number: int, spot: Spot) -> str:
    """The shape of a series; series of one colour differ in it."""
    shape = _MARKS[(number + number // len(SERIES)) % len(_MARKS)]
    place = f"translate({spot[0]:.1f} {spot[1]:.1f})"
    return element("path", d=shape, fill=_colour(number), stroke=CARD, transform=place)


def _marked(spots: Sequence[Spot], number: int) -> Iterator[Spot]:
    """A few spots of a line, others than its neighbours' are."""
    shift = (number % _MARKS_OF_LINE + 0.5) / _MARKS_OF_LINE
    for part in range(_MARKS_OF_LINE):
        yield spots[int((part + shift) / _MARKS_OF_LINE * len(spots))]


def _stacked(lines: Iterable[Line], times: Sequence[float]) -> Iterator[Points]:
    """Each line on top of those before it; where one has no value it adds nothing."""
    heights = dict.fromkeys(times, 0.0)
    for line in lines:
        for moment, value in line.points:
            heights[moment] += value
        yield list(heights.items())


def _spots(points: Points, times: Sequence[float], top: float) -> list[Spot]:
    span = (times[-1] - times[0]) or 1
    across, down = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
    return [
        (_LEFT + (moment - times[0]) / span * across, HEIGHT - _BOTTOM - value / top * down)
        for moment, value in points
    ]


def _points(spots: Iterable[Spot]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)


def _axes(panel: Panel, top: float, times: Sequence[float]) -> Iterator[str]:
    right = WIDTH - _RIGHT
    for step in range(_GRID + 1):
        y = HEIGHT - _BOTTOM - step / _GRID * (HEIGHT - _TOP - _BOTTOM)
        yield element("line", x1=_LEFT, y1=y, x2=right, y2=y, stroke=LINE)
        amount = _amount(top * step / _GRID, panel.unit)
        yield text(_LEFT - 6, y + 4, amount, "end", fill=FAINT)
    for x, moment, anchor in ((_LEFT, times[0], "start"), (right, times[-1], "end")):
        shown = datetime.fromtimestamp(moment, UTC).strftime("%H:%M")
        yield text(x, HEIGHT - 8, shown, anchor, fill=FAINT)


def _legend(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    left = WIDTH - _RIGHT + 14
    for index, line in enumerate(lines[:_MOST_NAMED]):
        y = _TOP + 8 + index * _LINE
        yield _mark(index, (left + 4, y - 4))
        yield text(left + 14, y, shortened(line.name, _NAME_LETTERS))
        yield text(WIDTH - 10, y, _amount(line.last, panel.unit), "end", fill=FAINT)


def _bars(panel: Panel, lines: Sequence[Line]) -> Iterator[str]:
    top = max(line.last for line in lines) or 1
    for index, line in enumerate(lines[:_MOST_NAMED]):
        y = _TOP + 14 + index * _LINE
        length = max(line.last / top * (WIDTH - 260), 1)
        yield text(150, y, shortened(line.name, _NAME_LETTERS), "end")
        yield box((158, y - 9, length, 11), fill=SERIES[0])
        yield text(164 + length, y, _amount(line.last, panel.unit), fill=FAINT)


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
