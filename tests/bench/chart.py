"""`python -m tests.bench.chart FILE… [--only WORDS]…`: the ratios of `build/bench.json` as SVG.

One bar for each figure that was compared with something, from 1 to its ratio on a logarithmic
scale: to the left, and teal, what is less than the reference or, where more is better, more. A
line through its end shows between which ratios the quartiles of both sides are.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from netmgr import drawing
from netmgr.palette import BAD, FAINT, GOOD, INK

WIDTH, ROW, TOP, LABELS, END = 860, 20, 56, 470, 800
LEAST, MOST = 0.001, 10.0
"""Ratios beyond these end at the chart's edges."""


def main() -> None:
    """Draw the figures of all files together, or those of which some words are a part."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.chart", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--only", action="append", metavar="WORDS", help="of figure or reference")
    arguments = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for path in arguments.files:
        figures += json.loads(path.read_text())["figures"]
    compared = [
        one for one in figures if one["reference"] and _is_wanted(_words(one), arguments.only)
    ]
    size = (WIDTH, TOP + ROW * len(compared) + ROW)
    sys.stdout.write(
        drawing.document("netmgr beside its references", size, _body(compared), font_size=11)
    )


def _is_wanted(words: str, only: Sequence[str] | None) -> bool:
    return not only or any(each in words for each in only)


def _words(one: dict[str, Any]) -> str:
    return f"{one['what']} / {one['against']}"


def _body(figures: list[dict[str, Any]]) -> Iterator[str]:
    heading = "netmgr beside its references, as a ratio (left of 1: better)"
    yield drawing.text(12, 22, heading, font_size=14, fill=INK)
    bottom = TOP + ROW * len(figures)
    for power in range(-3, 2):
        x = _place(10.0**power)
        yield drawing.path(f"M {x:.1f} {TOP - 8} V {bottom}", FAINT, 1.5 if not power else 0.3)
        yield drawing.text(x, TOP - 12, f"{10.0**power:g}", "middle", fill=FAINT)
    for number, one in enumerate(figures):
        yield drawing.group(0, TOP + ROW * number, _row(one))


def _row(one: dict[str, Any]) -> Iterator[str]:
    words = _words(one)
    yield drawing.text(12, 13, drawing.shortened(words, 74), fill=INK)
    end = _place(_cost(one, one["judged"]))
    left, right = sorted((_place(1), end))
    color = GOOD if end <= _place(1) else BAD
    yield drawing.box((left, 3, max(1.0, right - left), 13), words, fill=color)
    if one["judged_between"]:
        first, last = sorted(_place(_cost(one, ratio)) for ratio in one["judged_between"])
        yield drawing.path(f"M {first:.1f} 9.5 H {last:.1f}", INK, 1)
    yield drawing.text(END + 8, 13, f"{one['judged']:.2g}", fill=INK)


def _cost(one: dict[str, Any], ratio: float) -> float:
    """Below 1 is better."""
    return 1 / ratio if one["more_is_better"] else ratio


def _place(ratio: float) -> float:
    """Where on the scale a ratio is."""
    part = math.log(min(MOST, max(LEAST, ratio)) / LEAST) / math.log(MOST / LEAST)
    return LABELS + (END - LABELS) * part


if __name__ == "__main__":
    main()
