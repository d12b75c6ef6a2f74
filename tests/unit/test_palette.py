"""Colours are legible on light and on dark paper, by the contrast of WCAG 2.2 (1.4.3, 1.4.11)."""

from __future__ import annotations

import pytest

from netmgr import palette
from netmgr.palette import BAD, CARD, DARK, EDGE, FAINT, FILLS, GOOD, INK, LINK, PAPER, SERIES

TEXT, GRAPHICS = 4.5, 3.0
THEMES = {"light": {colour: colour for colour in DARK}, "dark": DARK}


@pytest.fixture(params=THEMES)
def theme(request: pytest.FixtureRequest) -> dict[str, str]:
    return THEMES[request.param]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    red, green, blue = (value / 255 for value in bytes.fromhex(colour[1:]))
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


def linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


@pytest.mark.parametrize("text", [INK, FAINT, LINK, GOOD, BAD])
def test_text_is_legible_on_whatever_it_is_on(theme: dict[str, str], text: str) -> None:
    grounds = (PAPER, CARD, *FILLS)
    assert min(contrast(theme[text], theme[ground]) for ground in grounds) >= TEXT


@pytest.mark.parametrize("graphics", [*SERIES, EDGE])
def test_lines_and_areas_stand_out_from_the_paper(theme: dict[str, str], graphics: str) -> None:
    assert min(contrast(theme[graphics], theme[ground]) for ground in (PAPER, CARD)) >= GRAPHICS


def test_every_colour_has_one_for_dark_paper_and_none_has_two_meanings() -> None:
    named = [value for name, value in vars(palette).items() if name.isupper()]
    single = [value for value in named if isinstance(value, str) and value.startswith("#")]
    assert {*single, *SERIES, *FILLS} == set(DARK)
    assert len(single) + len(SERIES) == len(DARK)
