"""The plan's map: every block where its addresses are, whatever names the plan has."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from netmgr.plan import files
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.render.map import COLOURS, SERIES, page
from netmgr.prefixes import Prefix
from tests.locks import lock_for

CONFIGS = Path(__file__).parents[2] / "configs"
NASTY = '</title><script>alert("&")</script>\x00'
TEXT, GRAPHICS = 4.5, 3.0
"""The least contrast that WCAG 2.2 asks for (1.4.3, 1.4.11)."""


class Tags(HTMLParser):
    """What a browser would read: tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def picture(text: str) -> ET.Element:
    return ET.fromstring(re.findall(r"(?s)<svg.*</svg>", text)[0])  # noqa: S314 - our own


def parts(text: str) -> list[tuple[str, dict[str, str]]]:
    """What a pointer shows on each rectangle, and the rectangle's attributes."""
    rectangles = [one for one in picture(text).iter("rect") if len(one)]
    return [(one[0].text or "", one.attrib) for one in rectangles]


def named(plan: PlanDocument, name: str) -> PlanDocument:
    """The plan with this reason on an exclusion, and this name."""
    exclusion = plan.exclude[0].model_copy(update={"reason": name})
    return plan.model_copy(update={"name": name, "exclude": (exclusion,)})


@pytest.fixture(scope="module")
def example() -> tuple[PlanDocument, LockDocument]:
    plan = files.load_plan(CONFIGS / "plan" / "plan.yaml")
    return plan, lock_for(plan)


def test_a_block_is_in_the_pools_strip_where_its_addresses_are(example):
    plan, lock = example
    drawn = page(plan, lock)
    pool = plan.pools.nodes[0]
    strip = next(one for one in picture(drawn).iter("rect") if one.get("width") == "1052")
    left, width = float(strip.attrib["x"]), float(strip.attrib["width"])
    allocations = [held.prefixes[0] for held in lock.clusters.values()]
    for allocation in allocations:
        start = f"{allocation.reserve} "
        words, place = next(part for part in parts(drawn) if part[0].startswith(start))
        share = (allocation.reserve.value - pool.value) / pool.size
        assert float(place["x"]) == pytest.approx(left + width * share, abs=2), words
        expected = max(2.0, width * allocation.reserve.size / pool.size)
        assert float(place["width"]) == pytest.approx(expected, abs=0.01)


def test_rows_are_in_the_order_of_addresses(example):
    shown = [
        Prefix.parse(text.text or "")
        for text in picture(page(*example)).iter("text")
        if text.get("font-family") == "monospace"
    ]
    inside = [prefix for prefix in shown if example[0].pools.nodes[0].covers(prefix)]
    assert len(inside) > len(example[1].clusters)
    assert all(first.value < second.value for first, second in pairwise(inside))


def test_used_held_and_reserved_look_different(example):
    looks = {
        use: {
            (place["fill"].startswith("url"), place.get("fill-opacity"))
            for words, place in parts(page(*example))
            if use in words and float(place["width"]) < 600
        }
        for use in ("reserved for growth", "routed, no subnet yet", "· pods ·")
    }
    assert (True, None) in looks["reserved for growth"]
    assert (False, "0.25") in looks["routed, no subnet yet"]
    assert (False, None) in looks["· pods ·"]


def test_neighbours_in_the_strip_of_nodes_differ_in_colour():
    plan = files.load_plan(CONFIGS / "plan" / "twenty-clusters.yaml")
    drawn = parts(page(plan, lock_for(plan)))
    strip = [(words, place) for words, place in drawn if place["y"] == "102"]
    # Where each owner is first; smaller blocks at the end come in another order.
    fills = {}
    for words, place in strip:
        if "excluded" not in words:
            fills.setdefault(words.split(" · ")[1], place["fill"])
    assert len(fills) == len(plan.clusters) + 1, "and the hub"
    assert all(first != second for first, second in pairwise(fills.values()))


def test_names_cannot_break_out_of_the_page(example):
    plan, lock = example
    read = Tags(page(named(plan, NASTY), lock))
    assert "script" not in read.tags
    assert set(read.tags) == set(Tags(page(plan, lock)).tags)
    shown = NASTY.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert any(shown in words for words, _ in parts(page(named(plan, NASTY), lock)))


def test_the_page_fetches_nothing(example):
    drawn = page(*example)
    read = Tags(drawn)
    assert not {name for name, _ in read.attributes} & {"href", "src", "srcset", "xlink:href"}
    assert "@import" not in drawn
    assert set(re.findall(r"url\(([^)]*)\)", drawn)) <= {f"#hatch-{name}" for name in SERIES}


def test_every_prefix_is_shown_of_either_family(example):
    plan, lock = example
    shown = {words.split(" ")[0] for words, _ in parts(page(plan, lock))}
    for held in lock.clusters.values():
        assert {str(allocation.prefix) for allocation in held.prefixes} <= shown
    assert any(":" in prefix for prefix in shown)


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    red, green, blue = (linear(value / 255) for value in bytes.fromhex(colour[1:]))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize("paper", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("names", "least"), [(("ink", "faint"), TEXT), ((*SERIES, "edge"), GRAPHICS)]
)
def test_colours_are_legible(names, least, paper):
    for name in names:
        grounds = ("paper", "card")
        colours = [contrast(COLOURS[name][paper], COLOURS[on][paper]) for on in grounds]
        assert min(colours) >= least
