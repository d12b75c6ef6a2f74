"""File descriptors that a block closes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close an open descriptor at the end of the block. Python's files take no directory."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
