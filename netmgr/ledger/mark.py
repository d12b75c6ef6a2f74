"""Tells whose books a ledger file holds and how far they had come, so that another file in its place is noticed.

The books of a machine have a number of their own and count what the kernel will not show them
again: readings of counters that end or begin anew, and gaps. Both together are the mark. (What is
posted of a counter that goes on is not counted: an older copy reads it again.) The mark is in the
ledger file, in the kernel beside the counters (`rules/engine.py`), and in a small file next to the
ledger. The ledger is always written first. So whatever happens to the agent, the other two are
never ahead of the true file, and a file that one of them is ahead of is an older copy:

- The kernel's mark is written in the same step that takes a counter away, and by every
  reconcile. It is gone after a reboot, as the counters are.
- The small file is written after a sync of the ledger to the disk, with what that sync made
  sure of, and with the sum of the totals that never fall. It outlives a power cut.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from netmgr import durable
from netmgr.errors import StateError
from netmgr.prefixes import Address, Family

log = logging.getLogger(__name__)

_HALF = 64
_FIRST_BYTE = 0xFD << (_HALF - 8)


class Mark(NamedTuple):
    """The number of the books (64 bits, random but for the first byte), and how far they have come."""

    books: int
    sequence: int

    @classmethod
    def new(cls) -> Self:
        """The mark of books that begin now."""
        return cls(_FIRST_BYTE | int.from_bytes(os.urandom(_HALF // 8 - 1), "big"), 0)

    @classmethod
    def of(cls, address: Address) -> Self:
        """What `address` is the address of."""
        return cls(address.value >> _HALF, address.value & ((1 << _HALF) - 1))

    @property
    def address(self) -> Address:
        """The mark as an IPv6 address, the largest thing that a set of either backend can hold."""
        return Address(Family.V6, self.books << _HALF | self.sequence)


class Synced(NamedTuple):
    """What the disk surely had of the ledger at some time: its mark, and the sum of the totals that never fall."""

    mark: Mark
    bytes: int


class Found(Enum):
    """What a ledger file turned out to be."""

    NEW = "new"
    """The first one of this machine."""
    CURRENT = "current"
    """The one that was written last."""
    LOST = "lost"
    """A new one where there had been another."""
    OLDER = "older"
    """It lacks what the books had when they were written last."""
    FOREIGN = "foreign"
    """Another machine's, or a former one of this machine's."""


MENDED = frozenset({Found.LOST, Found.OLDER, Found.FOREIGN})
"""What cost some of what the books had."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a ledger file says of itself; without a mark it was never marked. `bytes` as in `Synced`."""

    mark: Mark | None
    is_new: bool
    bytes: int


def compare(own: Own, kernel: Iterable[Mark], synced: Synced | None, *, has_counters: bool) -> Found:
    """Hold a ledger file against the marks elsewhere; `has_counters`: the kernel has counters of ours."""
    in_kernel = list(kernel)
    # One that somebody put beside ours says nothing.
    in_kernel = [one for one in in_kernel if own.mark and one.books == own.mark.books] or in_kernel
    # What the kernel has was written there in this boot; the small file may have been replaced as the ledger was.
    others = in_kernel or ([synced.mark] if synced else [])
    if own.is_new:
        return Found.LOST if others or synced or has_counters else Found.NEW
    if own.mark is None:
        return Found.OLDER if others else Found.CURRENT
    if any(other.books != own.mark.books for other in others):
        return Found.FOREIGN
    if synced and synced.mark.books == own.mark.books:
        others.append(synced.mark)
        if own.bytes < synced.bytes:
            return Found.OLDER
    return Found.OLDER if max(others, default=own.mark) > own.mark else Found.CURRENT


def read(path: Path) -> Synced | None:
    """What the small file says; None if there is none that can be understood."""
    try:
        return durable.read(path, _parsed)
    except StateError as error:
        log.error("ledger-mark-unreadable error=%s", error.message)  # noqa: TRY400  the message says all there is
        return None


def _parsed(text: str) -> Synced:
    books, sequence, total = text.split()
    return Synced(Mark(int(books, 16), int(sequence)), int(total))


def write(path: Path, synced: Synced) -> None:
    """Replace the small file, which is whole at every moment.

    Raises:
        StateError: it cannot be written.
    """
    durable.write(path, f"{synced.mark.books:016x} {synced.mark.sequence} {synced.bytes}\n".encode(), 0o600)
