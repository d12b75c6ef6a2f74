"""File descriptors: one that a block closes, and how many there may be."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close an open descriptor at the end of the block. Python's files take no directory."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def allow_most() -> None:
    """Let this process have as many as it is allowed to; most begin with a limit of 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
