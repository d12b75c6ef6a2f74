"""The Hilbert picture: every prefix where it belongs, in three forms,
whatever names the plan has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from netmgr.drawing import NAMESPACE
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.render.map import svg
from netmgr.plan.render.map import text as text_map
from netmgr.plan.render.map.hilbert import point, rectangle
from netmgr.plan.render.map.model import Picture, Region, Use, Window, cover, picture
from netmgr.prefixes import Address, Family, Prefix, merge

WINDOW = Prefix.parse("10.0.0.0/8")
NASTY = '</script><script>alert("&")</script>@@DATA@@\x00'


def at(text: str) -> Prefix:
    return Prefix.parse(text)


def parse(document: str) -> ET.Element:
    return ET.fromstring(document)  # noqa: S314  what we have just written ourselves


def one(*regions: Region, before: tuple[Region, ...] | None = None) -> Picture:
    former = (Window("nodes", WINDOW, before),) if before is not None else ()
    return Picture("a plan", (Window("nodes", WINDOW, regions),), former)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_curve_visits_every_cell_once_in_steps_of_one(order: int) -> None:
    cells = [point(index, order) for index in range(4**order)]
    assert len(set(cells)) == 4**order
    assert all(abs(x - u) + abs(y - v) == 1 for (x, y), (u, v) in pairwise(cells))


def test_the_curve_has_no_cells_beyond_its_end() -> None:
    with pytest.raises(ValueError, match="no cell 4"):
        point(4, 1)


@pytest.mark.parametrize("window", ["10.0.0.0/8", "10.0.0.0/9", "fd00::/40"])
@pytest.mark.parametrize("depth", range(7))
def test_blocks_of_one_length_tile_the_window(window: str, depth: int) -> None:
    whole = at(window)
    length = whole.length + depth
    size = 1 << (whole.family.width - length)
    boxes = [
        rectangle(Prefix(whole.family, whole.value + n * size, length), whole, 64)
        for n in range(1 << depth)
    ]
    covered = {
        (x, y)
        for box in boxes
        for x in range(int(box.x), int(box.x + box.width))
        for y in range(int(box.y), int(box.y + box.height))
    }
    assert len(covered) == 64 * 64
    assert sum(box.width * box.height for box in boxes) == 64 * 64


@pytest.mark.parametrize("inner", ["10.128.0.0/9", "10.192.0.0/13", "10.3.128.0/17"])
def test_a_block_lies_within_the_block_that_holds_it(inner: str) -> None:
    block = at(inner)
    outer = rectangle(Prefix(Family.V4, block.value >> 25 << 25, 7), at("10.0.0.0/7"), 640)
    box = rectangle(block, at("10.0.0.0/7"), 640)
    assert outer.x <= box.x
    assert box.x + box.width <= outer.x + outer.width
    assert outer.y <= box.y
    assert box.y + box.height <= outer.y + outer.height


def test_a_prefix_outside_the_window_has_no_place() -> None:
    with pytest.raises(ValueError, match="not inside"):
        rectangle(at("11.0.0.0/16"), WINDOW, 64)


@pytest.mark.parametrize(
    ("first", "size"), [("10.0.0.16", 700), ("10.0.0.0", 256), ("1.0.0.0", 5), ("10.0.0.255", 2)]
)
def test_a_run_of_addresses_is_covered_exactly(first: str, size: int) -> None:
    start = Address.parse(first).value
    blocks = list(cover(Family.V4, start, size))
    assert sum(block.size for block in blocks) == size
    assert blocks[0].value == start
    assert blocks[-1].last == start + size - 1
    assert merge(blocks) == blocks


def test_the_picture_of_a_plan_is_the_golden_file(
    rendered_plan: PlanDocument, rendered_lock: LockDocument, golden: Callable[[str, str], None]
) -> None:
    drawn = picture(rendered_plan, rendered_lock)
    golden("render/map.svg", svg.draw(drawn))
    golden(
        "render/map.txt",
        "".join("".join(span.text for span in line) + "\n" for line in text_map.draw(drawn)),
    )


def test_used_held_and_reserved_look_different() -> None:
    parts = {Use.USED: "10.0.0.0/10", Use.HELD: "10.64.0.0/10", Use.RESERVED: "10.128.0.0/10"}
    drawn = one(*(Region(at(text), "a", "pods", use) for use, text in parts.items()))
    root = parse(svg.draw(drawn))
    looks = {
        node.get("data-prefix"): (node.get("fill"), node.get("fill-opacity"))
        for node in root.iter()
        if node.get("data-prefix")
    }
    assert len(set(looks.values())) == 3
    hatch = looks["10.128.0.0/10"][0]
    assert hatch is not None
    patterns = {node.get("id") for node in root.iter() if node.tag.endswith("pattern")}
    assert hatch.removeprefix("url(#").removesuffix(")") in patterns


def test_a_terminal_shows_letters_where_the_blocks_are() -> None:
    drawn = one(
        Region(at("10.0.0.0/10"), "alpha", "pods"),
        Region(at("10.64.0.0/10"), "beta", "reserve", Use.RESERVED),
        Region(at("10.255.255.0/24"), "", "excluded"),
    )
    lines = ["".join(span.text for span in line) for line in text_map.draw(drawn, order=1)]
    # The curve goes down, right, up: the first quarter, below it the second, beside that the third.
    assert lines[3:5] == ["AA##", "b░··"]


def test_what_a_change_adds_is_framed() -> None:
    old, new = Region(at("10.0.0.0/10"), "a", "pods"), Region(at("10.64.0.0/10"), "a", "pods")
    root = parse(svg.draw(one(old, new, before=(old,))))
    framed = [
        node.get("data-prefix")
        for node in root.iter()
        if node.get("stroke") == "#000000" and node.get("data-prefix")
    ]
    shown = [node.get("data-prefix") for node in root.iter() if node.get("data-prefix")]
    assert framed == ["10.64.0.0/10"]
    assert shown.count("10.0.0.0/10") == 2


def test_names_cannot_break_out_of_the_picture_or_the_page() -> None:
    drawn = one(Region(WINDOW, NASTY, NASTY, note=NASTY), before=())
    root = parse(svg.draw(drawn))
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    html = svg.draw_page(drawn)
    assert html.count("<script") == 2  # the data, and the page's own
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert data
    (owner,) = json.loads(data[1])["owners"]
    assert owner == NASTY.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert "\x00" not in "".join(span.text for line in text_map.draw(drawn) for span in line)


def test_the_page_fetches_nothing(rendered_plan: PlanDocument, rendered_lock: LockDocument) -> None:
    html = svg.draw_page(picture(rendered_plan, rendered_lock))
    assert "default-src 'none'" in html
    assert not re.search(r"""(?:src|href)=|url\((?!#)|@import|fetch\(|XMLHttp""", html)
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {NAMESPACE}


def test_what_is_used_is_what_todays_nodes_have(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    (window,) = (w for w in picture(rendered_plan, rendered_lock).windows if w.prefix == WINDOW)
    used = [region for region in window.regions if region.role == "pods" and region.use is Use.USED]
    sizes = {"training": 7000 * 2 * 16 + 40 * 12, "evals": 300 * 16}
    for owner, size in sizes.items():
        assert sum(region.prefix.size for region in used if region.owner == owner) == size


def test_a_large_plan_is_still_a_small_picture(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    assert len(svg.draw_page(picture(rendered_plan, rendered_lock))) < 200_000
