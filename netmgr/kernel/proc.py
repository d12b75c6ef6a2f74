"""Tables of proc(5): a newline ends a line, and single spaces separate what a line holds."""

from __future__ import annotations

import os
from pathlib import Path


def lines(path: Path) -> list[str]:
    """The lines of a table; bytes that are no text are as `os.fsdecode` has them.

    Raises:
        OSError: the kernel does not show it.
    """
    # Names and paths in it may hold any other byte: the kernel escapes few, and any user may mount
    # something (fusermount). str.splitlines and str.split would part them at U+001C or U+2028, too.
    return os.fsdecode(path.read_bytes()).removesuffix("\n").split("\n")


def fields(line: str) -> list[str]:
    """The fields of a line whose kernel escapes spaces, as it does in tables of mounts."""
    return line.split(" ")
