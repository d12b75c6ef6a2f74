"""Where an address lies in a picture of its address space.

The Hilbert curve folds the line of addresses into a square so that neighbours stay
neighbours: every aligned block, whatever its length, is one square or one rectangle of two
squares, so a prefix can be pointed at.
"""

from __future__ import annotations

from typing import NamedTuple

from netmgr.prefixes import Prefix


class Rectangle(NamedTuple):
    """An upright rectangle; the picture's origin is its upper left corner."""

    x: float
    y: float
    width: float
    height: float


def point(index: int, order: int) -> tuple[int, int]:
    """Column and row of the `index`-th cell of the curve through a square of 2**order cells a side.

    Raises:
        ValueError: the curve has no such cell.
    """
    if not 0 <= index < 1 << (2 * order):
        raise ValueError(f"a curve of order {order} has no cell {index}")
    column = row = 0
    for level in range(order):
        side = 1 << level
        # From the smallest square outwards: each level places the curve so far in a quadrant of a
        # larger one, turned so that its ends meet its neighbours'.
        quadrant = index >> (2 * level) & 3
        right, down = quadrant >> 1, (quadrant ^ quadrant >> 1) & 1
        if not down:
            if right:
                column, row = side - 1 - column, side - 1 - row
            column, row = row, column
        column += side * right
        row += side * down
    return column, row


def rectangle(prefix: Prefix, window: Prefix, side: float) -> Rectangle:
    """The part of a picture of `window`, `side` wide and high, that `prefix` takes.

    Raises:
        ValueError: `prefix` is not inside `window`.
    """
    if not window.covers(prefix):
        raise ValueError(f"{prefix} is not inside {window}")
    depth = prefix.length - window.length
    order = (depth + 1) // 2
    cell = side / (1 << order)
    offset = (prefix.value - window.value) >> (prefix.family.width - prefix.length)
    if depth % 2 == 0:
        column, row = point(offset, order)
        return Rectangle(column * cell, row * cell, cell, cell)
    # An odd depth halves a square: the block is two cells, neighbours on the curve and so in the
    # picture.
    (column, row), (other_column, other_row) = (
        point(2 * offset, order),
        point(2 * offset + 1, order),
    )
    return Rectangle(
        min(column, other_column) * cell,
        min(row, other_row) * cell,
        (1 + abs(column - other_column)) * cell,
        (1 + abs(row - other_row)) * cell,
    )
