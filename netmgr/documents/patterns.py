"""Patterns of fnmatch(3)."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(patterns: Iterable[str], text: str) -> bool:
    """Whether one of the patterns stands for this text."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)
