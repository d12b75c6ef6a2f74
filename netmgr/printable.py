"""Text for people: safe to show, whoever chose it, and short."""

from __future__ import annotations

from collections.abc import Sequence


def plain(words: str) -> str:
    """Text without control characters, which neither a terminal nor XML (1.0, 2.2) should see."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words
    )


def shortened(items: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """The first of these, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return separator.join(items[:most]) + more
