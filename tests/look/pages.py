"""The pages and pictures in a real browser: `make look`.

axe-core finds what is wrong for assistive technology, a script uses each page with the keyboard
alone and points at the map, and screenshots in light and dark are left in `build/look`. With
NETMGR_UPDATE_GOLDEN=1 those that the documentation shows are taken from there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from netmgr.errors import TryAgainLater
from netmgr.plan import files
from netmgr.plan.explain import explain
from netmgr.plan.growth import grown_plan
from netmgr.plan.locking import make_lock
from netmgr.plan.render.map import page, svg
from netmgr.plan.render.map.hilbert import point
from netmgr.plan.render.map.model import Picture, picture
from netmgr.prefixes import Address, Family, Prefix
from tests.fakes.agent_socket import snapshot
from tests.fakes.exporter_port import serving

SECONDS = 1200
"""A browser without a graphics card is slow, and slower beside other work."""

pytestmark = [pytest.mark.programs, pytest.mark.timeout(SECONDS + 60)]

HERE = Path(__file__).parent
TOP = HERE.parents[1]
FOLDER = TOP / "build" / "look"
ORDER = 6
"""Of the cells that addresses under a pointer are compared by: 64 a side."""
ADDRESSES = ("10.106.11.80", "10.255.3.4", "192.0.2.1", "fd00:10:ff:fe01::5:0")
MAPS = ("twenty", "dual-stack")
LANDINGS = ("node", "nat-host", "away")
DOCUMENTED = {"twenty-light-1440.png": "address-map.png"}


def plans() -> Iterator[tuple[str, Any, Any, Any]]:
    """Twenty clusters of which one grows, and one plan with both families."""
    folder = TOP / "configs" / "plan"
    plan = files.load_plan(folder / "twenty-clusters.yaml")
    limits = files.load_limits(plan.cloud)
    before = plan, make_lock(plan, None, limits)
    larger = grown_plan(plan, "spoke-05", 15_000)
    yield "twenty", larger, make_lock(larger, before[1], limits), before
    plan = files.load_plan(folder / "plan.yaml")
    yield "dual-stack", plan, make_lock(plan, None, files.load_limits(plan.cloud)), None


@pytest.fixture(scope="module")
def drawn() -> dict[str, Picture]:
    return {name: picture(plan, lock, before=before) for name, plan, lock, before in plans()}


def busy_node() -> Any:
    """As the fake agent's, with amounts that differ."""
    document = snapshot(60, 14)
    del document["nat"]
    document["isolation"] = []
    for number, one in enumerate((*document["pods"], *document["namespaces"])):
        one["bytes"] //= 1 + number * 7 % 23
    return document


def nat_host() -> Any:
    ready = {"ready": False, "reason": "files: /etc/cni/net.d/10-netmgr.conflist was removed"}
    return snapshot(5, 5) | {"role": "nat-host"} | ready


def away() -> Any:
    raise TryAgainLater("/run/netmgr/ledger.sock: no agent answers there")


@pytest.fixture(scope="module")
def results(drawn: dict[str, Picture]) -> dict[str, Any]:
    """What the browser found, by the names of pages."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    job: dict[str, Any] = {
        "browser": shutil.which("chromium"),
        "folder": str(FOLDER),
        "pages": [],
        "pictures": [],
    }
    for name in MAPS:
        path = FOLDER / f"{name}.html"
        path.write_text(page.draw(drawn[name]), encoding="utf-8")
        job["pages"].append(
            {
                "name": name,
                "url": path.as_uri(),
                "kind": "map",
                "widths": [320, 1024, 1440, 1920],
                "find": [*ADDRESSES, "spoke-07"],
            }
        )
        for theme in ("light", "dark"):
            content = svg.draw(drawn[name])
            shown = {"name": f"{name}-svg", "content": content, "theme": theme, "width": 1600}
            job["pictures"].append(shown)
    with ExitStack() as stack:
        for name, read in zip(LANDINGS, (busy_node, nat_host, away), strict=True):
            port = stack.enter_context(serving(read))
            url = f"http://127.0.0.1:{port}/"
            job["pages"].append(
                {"name": name, "url": url, "kind": "landing", "widths": [320, 768, 1280]}
            )
        done = subprocess.run(
            ["node", HERE / "browser.mjs"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(params=(*MAPS, *LANDINGS))
def result(request: pytest.FixtureRequest, results: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = results[request.param]
    return found


@pytest.fixture(params=MAPS)
def of_map(request: pytest.FixtureRequest, results: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = results[request.param]
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_wrong(result: dict[str, Any], theme: str) -> None:
    assert result["axe"][theme]["failed"] == []
    assert result["axe"][theme]["passed"] > 10


def test_the_policy_forbids_nothing_that_a_page_does_and_nothing_is_fetched(
    result: dict[str, Any],
) -> None:
    assert result["complaints"] == []
    assert len(result["requests"]) == 1, "the page itself"


def test_nothing_moves(result: dict[str, Any]) -> None:
    assert result["moving"] == 0


def test_a_page_of_320_pixels_is_not_wider_than_its_window(result: dict[str, Any]) -> None:
    assert result["overflow"] <= 0


def test_the_focus_is_seen_wherever_it_is_and_the_first_key_skips_to_the_content(
    result: dict[str, Any],
) -> None:
    assert len(result["stops"]) > 3
    assert [stop for stop in result["stops"] if not (stop["outlined"] and stop["onScreen"])] == []
    assert result["skipped"]["link"]["href"] == f"#{result['skipped']['target']['id']}"
    assert result["skipped"]["target"]["tag"] == "main"


def test_every_part_of_a_map_can_have_the_focus(
    of_map: dict[str, Any], drawn: dict[str, Picture], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["of_map"]
    stops = of_map["stops"]
    assert [stop["owner"] for stop in stops if stop["owner"]] == drawn[name].owners()
    squares = [w for w in drawn[name].windows if w.prefix.family is Family.V4]
    assert sum(stop["map"] for stop in stops) == len(squares)
    assert "find" in [stop["id"] for stop in stops]


def test_a_pointer_is_shown_the_block_and_the_address_that_are_drawn_under_it(
    of_map: dict[str, Any], drawn: dict[str, Picture], request: pytest.FixtureRequest
) -> None:
    pictured = drawn[request.node.callspec.params["of_map"]]
    squares = [window for window in pictured.windows if window.prefix.family is Family.V4]
    cells = {point(index, ORDER): index for index in range(4**ORDER)}
    assert len(of_map["pointed"]) > 10
    for one in of_map["pointed"]:
        assert one["drawn"] in one["here"]
        assert set(one["pointed"]) == {one["drawn"]}, "and it is framed"
        whole = squares[one["view"]].prefix
        length = whole.length + 2 * ORDER
        if Prefix.parse(one["drawn"]).length < length:
            column, row = (int(part * 2**ORDER) for part in one["at"])
            first = whole.value + (cells[column, row] << (32 - length))
            address = Address.parse(one["here"].splitlines()[0])
            assert Prefix(Family.V4, first, length).holds(address)


def test_a_map_is_used_with_the_keyboard_alone(of_map: dict[str, Any]) -> None:
    done = of_map["keyboard"]
    assert done["down"]["here"] != done["right"]["here"]
    for step in ("down", "right"):
        address, *_ = done[step]["here"].splitlines()
        assert done[step]["said"].startswith(address), "and is said aloud"
    assert done["lit"]["owner"]
    assert (done["lit"]["pressed"], done["lit"]["dimmed"] > 0) == (1, True)
    assert done["unlit"]["dimmed"] == 0
    assert done["row"]["prefix"] in done["row"]["here"]
    assert done.get("before", [True, False]) == [True, False]


def test_an_address_is_found_as_plan_explain_finds_it(results: dict[str, Any]) -> None:
    for name, plan, lock, _ in plans():
        for text in ADDRESSES:
            here = results[name]["found"][text]["here"]
            known = explain(plan, lock, Address.parse(text))
            assert here.startswith(text)
            assert known.cluster in here
            assert known.node in here
    assert results["twenty"]["found"]["spoke-07"]["dimmed"] > 0
    assert "is in no pool" in results["twenty"]["found"]["192.0.2.1"]["here"]


def test_paper_shows_what_is_folded_on_a_screen(of_map: dict[str, Any]) -> None:
    assert of_map["unfolded"]
    assert len(list(FOLDER.glob("*.pdf"))) == len(MAPS)


def test_there_is_a_screenshot_of_each_page_in_light_and_dark(results: dict[str, Any]) -> None:
    for name in results:
        for theme in ("light", "dark"):
            assert list(FOLDER.glob(f"{name}-{theme}-*.png"))
    if os.environ.get("NETMGR_UPDATE_GOLDEN") == "1":
        for made, shown in DOCUMENTED.items():
            shutil.copy(FOLDER / made, TOP / "docs" / shown)
