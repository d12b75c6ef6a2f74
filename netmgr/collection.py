"""Garbage collection, where it would walk millions of objects for nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def suspended() -> Iterator[None]:
    """Have cyclic garbage stay for the length of the block.

    For work that makes many objects and hardly a cycle: the collector walks all of them again and
    again, which is half of the work's time and grows faster than their number.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
