"""How wide output may be, and whether it has colours; a pipe takes any width, and none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

UNLIMITED = 1 << 16
"""Columns of what has no width: more than any line of ours."""


def width() -> int:
    """Columns at which help wraps: COLUMNS, or the terminal's; what is no terminal has no limit."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        # A terminal that does not know its size reports 0.
        return os.get_terminal_size(sys.stdout.fileno()).columns or UNLIMITED
    except (OSError, ValueError):  # no terminal, or nothing with a file descriptor
        return UNLIMITED


def colours() -> bool | None:
    """False where NO_COLOR forbids them (no-color.org), else None: a terminal gets them."""
    return False if os.environ.get("NO_COLOR") else None


def console(*, stderr: bool = False) -> Console:
    """Rich's console, without its default of 80 columns for pipes."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = UNLIMITED
    return made
