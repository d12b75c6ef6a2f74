"""Colours are legible on light and on dark paper, and differ for people who see fewer of them.

Contrast is that of WCAG 2.2 (1.4.3 and 1.4.11). What people without one kind of cone see is
simulated as by Brettel, Viénot and Mollon, and by Machado, Oliveira and Fernandes; distances are
those of CIEDE2000, where 2 is just visible and 10 is seen at a glance.
"""

from __future__ import annotations

from itertools import combinations

import pytest
from coloraide.everything import ColorAll as Color

from netmgr import palette
from netmgr.palette import BAD, CARD, DARK, EDGE, FAINT, FILLS, GOOD, INK, LINK, PAPER, SERIES

TEXT, GRAPHICS = 4.5, 3.0
APART = 12.0
THEMES = {"light": {colour: colour for colour in DARK}, "dark": DARK}
SEEING = [
    None,
    *(
        (cone, method)
        for cone in ("protan", "deutan", "tritan")
        for method in ("brettel", "machado")
    ),
]


@pytest.fixture(params=THEMES)
def theme(request: pytest.FixtureRequest) -> dict[str, str]:
    return THEMES[request.param]


def contrast(one: str, other: str) -> float:
    return Color(one).contrast(other, method="wcag21")


def seen(colour: str, seeing: tuple[str, str] | None) -> Color:
    if seeing is None:
        return Color(colour)
    cone, method = seeing
    return Color(colour).filter(cone, 1, method=method).clip("srgb")


def distance(one: str, other: str, seeing: tuple[str, str] | None) -> float:
    return seen(one, seeing).delta_e(seen(other, seeing), method="2000")


@pytest.mark.parametrize("text", [INK, FAINT, LINK, GOOD, BAD])
def test_text_is_legible_on_whatever_it_is_on(theme: dict[str, str], text: str) -> None:
    grounds = (PAPER, CARD, *FILLS)
    assert min(contrast(theme[text], theme[ground]) for ground in grounds) >= TEXT


@pytest.mark.parametrize("graphics", [*SERIES, EDGE])
def test_lines_and_areas_stand_out_from_the_paper(theme: dict[str, str], graphics: str) -> None:
    assert min(contrast(theme[graphics], theme[ground]) for ground in (PAPER, CARD)) >= GRAPHICS


@pytest.mark.parametrize("seeing", SEEING, ids=str)
def test_any_two_colours_that_may_be_side_by_side_are_told_apart(
    theme: dict[str, str], seeing: tuple[str, str] | None
) -> None:
    pairs = [*combinations(SERIES, 2), (GOOD, BAD)]
    nearest = min(pairs, key=lambda pair: distance(theme[pair[0]], theme[pair[1]], seeing))
    assert distance(theme[nearest[0]], theme[nearest[1]], seeing) >= APART, nearest


def test_the_measure_finds_colours_that_look_alike_to_some() -> None:
    """A red and a green that nobody confuses but people without the cone for red or for green."""
    red, green = "#c5221f", "#5b7d00"
    assert distance(red, green, None) > 50
    assert min(distance(red, green, seeing) for seeing in SEEING) < APART


def test_every_colour_has_one_for_dark_paper_and_none_has_two_meanings() -> None:
    named = [value for name, value in vars(palette).items() if name.isupper()]
    single = [value for value in named if isinstance(value, str) and value.startswith("#")]
    assert {*single, *SERIES, *FILLS} == set(DARK)
    assert len(single) + len(SERIES) == len(DARK)
