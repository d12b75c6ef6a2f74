"""SVG primitives (SVG 1.1) of every picture that netmgr draws: maps, labs and dashboards.

A picture is text: each function returns one element, and `document` makes them a file that needs
nothing else to be shown. Text and attributes are escaped here, whatever a cluster, a pod or a
series is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

NAMESPACE = "http://www.w3.org/2000/svg"
SANS, MONOSPACE = "DejaVu Sans, Verdana, sans-serif", "DejaVu Sans Mono, Menlo, monospace"
PAPER = "#fcfcfa"
INK, FAINT, RED, GREEN = "#202124", "#5f6368", "#c5221f", "#188038"

Attribute = str | float


def document(
    title: str,
    size: tuple[float, float],
    body: Iterable[str],
    *,
    font_size: int,
    paper: str = PAPER,
) -> str:
    """A whole picture, ending with a newline. `size` is its width and height in user units."""
    width, height = size
    lines = [element("title", plain(title)), box((0, 0, width, height), fill=paper), *body]
    root = element(
        "svg",
        "\n".join(["", *lines, ""]),
        xmlns=NAMESPACE,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        font_family=SANS,
        font_size=font_size,
    )
    return f"{root}\n"


def element(name: str, content: str = "", **attributes: Attribute) -> str:
    """One element. `content` is markup already; `fill_opacity` is the attribute `fill-opacity`."""
    pairs = ""
    for key, value in attributes.items():
        shown = value if isinstance(value, str) else number(value)
        pairs += f" {key.replace('_', '-')}={quoteattr(shown)}"
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def group(x: float, y: float, body: Iterable[str]) -> str:
    """Elements moved together to (x, y)."""
    moved = f"translate({number(x)} {number(y)})"
    return element("g", "\n".join(["", *body, ""]), transform=moved)


def box(
    place: tuple[float, float, float, float], title: str = "", /, **attributes: Attribute
) -> str:
    """A rectangle: left, top, width, height. A pointer on it shows `title`."""
    x, y, width, height = place
    corner = {key: value for key, value in (("x", x), ("y", y)) if value}
    content = element("title", escaped(title)) if title else ""
    return element("rect", content, **corner, width=width, height=height, **attributes)


def text(x: float, y: float, words: str, anchor: str = "start", /, **attributes: Attribute) -> str:
    """One line of text whose baseline is at `y`; `anchor` says which part of it is at `x`."""
    more: dict[str, Attribute] = {} if anchor == "start" else {"text_anchor": anchor}
    # SVG joins runs of spaces otherwise.
    if "  " in words:
        more["xml:space"] = "preserve"
    return element("text", escaped(words), x=x, y=y, **more, **attributes)


def path(steps: str, stroke: str, width: float) -> str:
    """A line along the steps of a path."""
    return element("path", d=steps, stroke=stroke, stroke_width=width, fill="none")


def shortened(words: str, most: int) -> str:
    """Words of at most `most` letters, the last of them an ellipsis where something is left out."""
    return words if len(words) <= most else words[: most - 1] + "…"


def number(value: float) -> str:
    """A coordinate, to a hundredth of a unit."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def plain(words: str) -> str:
    """Text without control characters, which neither XML 1.0 (2.2) nor a terminal should see."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words
    )


def escaped(words: str) -> str:
    """Text as markup."""
    return escape(plain(words))
