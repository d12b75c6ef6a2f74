"""Text that is safe to show, whoever chose it."""

from __future__ import annotations


def plain(words: str) -> str:
    """Text without control characters, which neither a terminal nor XML (1.0, 2.2) should see."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words
    )
