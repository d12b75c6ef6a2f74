"""SVG primitives (SVG 1.1) of the maps that netmgr draws.

A picture is text: each function returns one element, and `document` makes them a file that needs
nothing else to be shown. Text and attributes are escaped here, whatever a cluster, a pod or a
series is called.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from xml.sax.saxutils import escape, quoteattr

from netmgr.palette import DARK, INK, PAPER, dark_rules

NAMESPACE = "http://www.w3.org/2000/svg"
SANS, MONOSPACE = "DejaVu Sans, Verdana, sans-serif", "DejaVu Sans Mono, Menlo, monospace"

Attribute = str | float


def document(
    title: str, size: tuple[float, float], body: Iterable[str], *, font_size: int, summary: str = ""
) -> str:
    """A whole picture, ending with a newline. `size` is its width and height in user units.

    It is drawn for light paper, and shown in dark colours where a screen is dark. Title and summary
    are what a screen reader says of it.
    """
    width, height = size
    drawn = "\n".join(body)
    named = [element("title", escaped(title), id="title")]
    if summary:
        named.append(element("desc", escaped(summary), id="summary"))
    used = [colour for colour in DARK if colour in drawn or colour in (PAPER, INK)]
    paper = box((0, 0, width, height), fill=PAPER)
    root = element(
        "svg",
        "\n".join(["", *named, element("style", dark_rules(used)), paper, drawn, ""]),
        xmlns=NAMESPACE,
        role="img",
        aria_labelledby="title summary" if summary else "title",
        viewBox=f"0 0 {number(width)} {number(height)}",
        width=width,
        height=height,
        font_family=SANS,
        font_size=font_size,
        fill=INK,
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


def source_hash(text: str) -> str:
    """What lets a page have this style or script, and no other (CSP Level 3, 2.3.1)."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def escaped(words: str) -> str:
    """Text as markup."""
    return escape(plain(words))
