"""The Hilbert picture: every prefix where it belongs, in three forms,
whatever names the plan has."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from netmgr.drawing import NAMESPACE
from netmgr.palette import INK, SERIES
from netmgr.plan import files
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from netmgr.plan.render.map import page, svg
from netmgr.plan.render.map import text as text_map
from netmgr.plan.render.map.blocks import blocks, percent, room
from netmgr.plan.render.map.colours import neighbours, scheme
from netmgr.plan.render.map.hilbert import point, rectangle
from netmgr.plan.render.map.model import Picture, Region, Use, Window, cover, picture
from netmgr.prefixes import Address, Family, Prefix, merge
from tests.unit.html_structure import Page, faults

CONFIGS = Path(__file__).parents[2] / "configs"
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
    places = {
        node.get("data-prefix"): (node.get("x"), node.get("y"))
        for node in root.iter()
        if node.get("data-prefix")
    }
    framed = [
        (node.get("x"), node.get("y"))
        for node in root.iter()
        if node.get("fill") == "none" and node.get("stroke") == INK
    ]
    shown = [node.get("data-prefix") for node in root.iter() if node.get("data-prefix")]
    assert framed == [places["10.64.0.0/10"]]
    assert shown.count("10.0.0.0/10") == 2


def test_names_cannot_break_out_of_the_picture_or_the_page() -> None:
    drawn = one(Region(WINDOW, NASTY, NASTY, note=NASTY), before=())
    root = parse(svg.draw(drawn))
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    html = page.draw(drawn)
    assert html.count("<script") == 2  # the data, and the page's own
    data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)
    assert data
    (owner,) = json.loads(data[1])["owners"]
    assert owner == NASTY.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert "\x00" not in "".join(span.text for line in text_map.draw(drawn) for span in line)


def test_the_page_fetches_nothing(rendered_plan: PlanDocument, rendered_lock: LockDocument) -> None:
    html = page.draw(picture(rendered_plan, rendered_lock))
    assert "default-src 'none'" in html
    assert not re.search(r"""src=|href="[^#]|url\((?!#)|@import|fetch\(|XMLHttp""", html)
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {NAMESPACE}


def test_the_page_allows_its_own_style_and_script_and_no_other() -> None:
    html = page.draw(one(Region(WINDOW, "a", "pods")))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1]


def test_the_page_can_be_read_without_seeing_it(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    drawn = picture(rendered_plan, rendered_lock)
    assert faults(page.draw(drawn)) == []
    assert faults(page.draw(replace(drawn, before=drawn.windows))) == []


def test_the_tables_of_the_page_have_every_block_that_it_draws(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    drawn = picture(rendered_plan, rendered_lock)
    buttons = [
        element.attributes["data-prefix"]
        for element in Page(page.draw(drawn)).all("button")
        if "data-prefix" in element.attributes
    ]
    for window in drawn.windows:
        assert str(window.prefix) in buttons
        for region in window.regions:
            assert str(region.prefix) in buttons or region.nodes is not None


def test_owners_whose_blocks_touch_have_different_colours() -> None:
    plan = files.load_plan(CONFIGS / "plan" / "twenty-clusters.yaml")
    drawn = picture(plan, make_lock(plan, None, files.load_limits(plan.cloud)))
    shown, beside = scheme(drawn), neighbours(drawn)
    assert len(beside) == 21
    assert sum(map(len, beside.values())) > 60
    alike = [
        (owner, other)
        for owner, others in beside.items()
        for other in others
        if shown.colours[owner] == shown.colours[other]
    ]
    assert alike == []
    assert {shown.colours[owner] for owner in beside} == set(SERIES)


def test_owners_of_one_colour_differ_in_the_number_on_their_blocks() -> None:
    regions = [
        Region(Prefix(Family.V4, WINDOW.value + (number << 16), 16), f"{number:02}" * 30, "pods")
        for number in range(10)
    ]
    words = [node.text for node in parse(svg.draw(one(*regions))).iter() if node.text]
    for number in range(1, 11):
        assert words.count(str(number)) == 2, "on the block, and in the legend"


def test_rows_count_what_a_block_is_divided_into_and_nodes_in_a_subnet(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    (window,) = (
        window
        for window in picture(rendered_plan, rendered_lock).windows
        if window.prefix.family is Family.V6
    )
    shown = {
        str(row.prefix): (row.depth, row.filled.words if row.filled else "", row.state)
        for row in blocks(window)
    }
    assert shown["fd00:10::/40"] == (0, "2 of 65,536 /56", "")
    assert shown["fd00:10:ff:fe00::/56"] == (1, "2 of 256 /64", "held")
    assert shown["fd00:10:ff:fe01::/64"] == (2, "300 of 507 nodes", "in use")
    assert room(window) == "2 of 65,536 /56 allocated"
    (pods,) = (row for row in blocks(window) if str(row.prefix) == "fd00:10:ff:fe01::/64")
    assert pods.divided == 112, "each node has a /112 of it"


def test_ipv6_is_shown_as_rows_in_every_form(
    rendered_plan: PlanDocument, rendered_lock: LockDocument
) -> None:
    drawn = picture(rendered_plan, rendered_lock)
    (window,) = (each for each in drawn.windows if each.prefix.family is Family.V6)
    only = replace(drawn, windows=(window,))
    words = {node.text for node in parse(svg.draw(only)).iter() if node.text}
    lines = ["".join(span.text for span in line) for line in text_map.draw(only)]
    html = Page(page.draw(only))
    assert not any("··" in line for line in lines[:-1])
    assert len(html.all("section")) == 1
    assert "application" not in {element.attributes.get("role") for element in html.elements}
    for row in blocks(window)[1:]:
        assert str(row.prefix) in words
        (line,) = (line for line in lines if line.split()[:1] == [str(row.prefix)])
        if row.filled:
            assert row.filled.words in words
            assert row.filled.words in line


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0%"), (1e-9, "below 0.1%"), (0.5, "50%"), (0.9999, "above 99.9%"), (1, "100%")],
)
def test_a_share_says_none_or_all_only_where_that_is_so(share: float, words: str) -> None:
    assert percent(share) == words


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
    assert len(page.draw(picture(rendered_plan, rendered_lock))) < 200_000
