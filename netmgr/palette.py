"""Every colour that netmgr draws with, on light and on dark paper.

Pictures name the light one, which needs no style sheet. `dark_rules` replaces it where a screen is
dark. Tests compute the contrast of each pair that is used together (`tests/unit/test_palette.py`).

No meaning is in a colour alone: a word, a shape or a hatch says the same.
"""

from __future__ import annotations

from collections.abc import Iterable

PAPER, CARD = "#f8f9fa", "#ffffff"
"""What everything is on, and the cards on it."""

INK, FAINT = "#1f2328", "#596069"
"""Text, and text of less weight."""

LINE, EDGE = "#d5d9de", "#79818a"
"""Lines that only tidy up, and those that show where something ends."""

LINK, GOOD, BAD = "#1a5fb4", "#00696f", "#b3261e"

SERIES = (
    "#2b8cf5",
    "#ce5d1a",
    "#10777b",
    "#af75a8",
    "#453984",
    "#69905e",
    "#983f4a",
    "#4c4b03",
)
"""Of lines, areas and owners of addresses: any two may be side by side."""

FILLS = NODE_FILL, NAT_FILL, ROUTER_FILL, FABRIC_FILL = "#e8f0fe", "#fef7e0", "#e6f4ea", "#e8eaed"
"""Below text."""

DARK = {
    PAPER: "#15181c",
    CARD: "#1e2227",
    INK: "#e6e8eb",
    FAINT: "#a2aab4",
    LINE: "#383e46",
    EDGE: "#808994",
    LINK: "#7db4f5",
    GOOD: "#5cc9c4",
    BAD: "#ff8f85",
    "#2b8cf5": "#2a7aa4",
    "#ce5d1a": "#fb9437",
    "#10777b": "#67acaf",
    "#af75a8": "#fec0f6",
    "#453984": "#b68efd",
    "#69905e": "#b6e8a8",
    "#983f4a": "#c0626c",
    "#4c4b03": "#70790e",
    NODE_FILL: "#1b2a41",
    NAT_FILL: "#332a12",
    ROUTER_FILL: "#14301f",
    FABRIC_FILL: "#2a2f36",
}
"""The colour on dark paper, by the one on light paper."""

_ON_DARK_SCREENS = "@media screen and (prefers-color-scheme:dark)"
_NAMES = {
    "paper": PAPER,
    "card": CARD,
    "ink": INK,
    "faint": FAINT,
    "line": LINE,
    "edge": EDGE,
    "link": LINK,
    "good": GOOD,
    "bad": BAD,
    "one": SERIES[0],
    "two": SERIES[1],
}
"""Colours by their custom properties (`--ink`) in pages."""


def properties() -> str:
    """A style sheet's custom properties; paper that is printed on is light."""
    light = ";".join(f"--{name}:{colour}" for name, colour in _NAMES.items())
    dark = ";".join(f"--{name}:{DARK[colour]}" for name, colour in _NAMES.items())
    return f":root{{color-scheme:light dark;{light}}}\n{_ON_DARK_SCREENS}{{:root{{{dark}}}}}\n"


def dark_rules(colours: Iterable[str] = DARK) -> str:
    """A style sheet that replaces these colours where attributes of an SVG name them."""
    rules = "".join(
        f'[{attribute}="{colour}"]{{{attribute}:{DARK[colour]}}}'
        for colour in colours
        for attribute in ("fill", "stroke")
    )
    return f"{_ON_DARK_SCREENS}{{{rules}}}\n"
