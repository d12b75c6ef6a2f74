"""The picture of a dashboard shows what was answered, to scale, whatever the series are called."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from exporter.monitoring.__main__ import main
from exporter.monitoring.dashboard import Dashboard, Panel, Query
from exporter.monitoring.dashboards import DASHBOARDS
from exporter.monitoring.picture import HEIGHT, Line, draw

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>"&'


def parsed(picture: str) -> ET.Element:
    return ET.fromstring(picture)  # noqa: S314 (our own picture)


def drawn(panel: Panel, *lines: Line) -> ET.Element:
    dashboard = Dashboard("one", "one panel", (panel,))
    return parsed(draw(dashboard, {panel.queries[0].expression: lines}))


def panel(**choices) -> Panel:
    return Panel("traffic", "Bps", (Query("expression", "{{namespace}}"),), **choices)


def heights(picture: ET.Element) -> list[list[float]]:
    """How far above the first grid line the points of each curve are."""
    floor = float(picture.find(f".//{SVG}line").get("y1"))
    curves = [element.get("points").split() for element in picture.iter(f"{SVG}polyline")]
    return [[floor - float(point.split(",")[1]) for point in curve] for curve in curves]


def words(picture: ET.Element) -> list[str]:
    return [element.text for element in picture.iter(f"{SVG}text")]


def test_a_curve_is_as_high_as_its_value() -> None:
    ((one, two),) = heights(drawn(panel(), Line("a", ((0, 2e6), (60, 4e6)))))
    assert two == pytest.approx(2 * one, abs=0.2)
    assert 0 < two < HEIGHT


def test_stacked_curves_stand_on_each_other() -> None:
    lines = Line("a", ((0, 30), (60, 30))), Line("b", ((0, 10), (60, 10)))
    low, high = heights(drawn(panel(stacked=True), *lines))
    assert high[0] == pytest.approx(low[0] * 4 / 3, abs=0.2)


def test_a_series_that_begins_late_stacks_where_it_is() -> None:
    lines = Line("a", ((0, 30), (60, 30))), Line("b", ((60, 10),))
    _, high = heights(drawn(panel(stacked=True), *lines))
    assert high[1] == pytest.approx(high[0] * 4 / 3, abs=0.2)


def test_the_largest_is_named_first_and_with_its_amount() -> None:
    found = words(drawn(panel(), Line("small", ((0, 1),)), Line("large", ((0, 2.5e6),))))
    assert found.index("large") < found.index("small")
    assert "2.5 MB/s" in found


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.00125, "s", "1.25 ms"),
        (0, "s", "0 s"),
        (0.125, "reqps", "0.125 /s"),
        (0.5, "percentunit", "50%"),
    ],
)
def test_amounts_are_written_in_their_unit(value: float, unit: str, shown: str) -> None:
    one = Panel("one", unit, (Query("expression", ""),), kind="stat")
    assert shown in words(drawn(one, Line("a", ((0, value),))))


def test_bars_are_as_long_as_their_values() -> None:
    picture = drawn(panel(kind="bargauge"), Line("a", ((0, 10),)), Line("b", ((0, 5),)))
    long, short = (float(bar.get("width")) for bar in picture.findall(f".//{SVG}g/{SVG}rect")[1:])
    assert long == 2 * short


@pytest.mark.parametrize("stacked", [False, True])
def test_no_two_series_have_both_colour_and_shape_in_common(*, stacked: bool) -> None:
    lines = [Line(f"line {number}", ((0, 20 - number),)) for number in range(12)]
    picture = drawn(panel(stacked=stacked), *lines)
    marks = [(mark.get("d"), mark.get("fill")) for mark in picture.iter(f"{SVG}path")]
    assert len(set(marks)) == 12
    assert len({shape for shape, _ in marks[:40]}) == 8
    # Four on the line, one in the legend.
    assert {marks.count(mark) for mark in set(marks)} == {5}


def test_a_screen_reader_gets_the_largest_of_each_panel() -> None:
    picture = drawn(panel(), Line("small", ((0, 1),)), Line("large", ((0, 2.5e6),)))
    assert picture.find(f"{SVG}desc").text == "traffic: large 2.5 MB/s"
    assert picture.get("aria-labelledby") == "title summary"


def test_names_are_escaped() -> None:
    picture = drawn(panel(), Line(HOSTILE, ((0, 1),)))
    assert HOSTILE in words(picture)
    assert picture.find(f".//{SVG}script") is None


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_every_dashboard_can_be_drawn_full_and_empty(dashboard: Dashboard) -> None:
    assert words(parsed(draw(dashboard, {}))).count("no data") == len(dashboard.panels)
    queries = [query.expression for shown in dashboard.panels for query in shown.queries]
    full = draw(dashboard, {query: (Line("line", ((0, 0.0), (60, 0.5))),) for query in queries})
    assert "no data" not in words(parsed(full))


def test_a_prometheus_that_is_not_there_is_told_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--draw", "netmgr-cni", "--prometheus", "127.0.0.1:1"]) != 0
    output = capsys.readouterr()
    assert output.out == ""
    assert "no Prometheus answers at 127.0.0.1:1" in output.err
