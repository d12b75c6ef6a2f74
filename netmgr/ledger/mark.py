"""Whose books a ledger file has and how far they had come, so that another file is noticed.

The books of a machine have a number of their own and count what the kernel will not show them
again: readings of counters that end or begin anew, and gaps. Both together are the mark. (Postings
of a counter that goes on are not counted: an older copy reads it again. Nor is a gap "not-durable",
in which nothing is lost while counters go on.) The mark is in the ledger file, in the kernel beside
the counters (`rules/engine.py`), and in a small file next to the ledger. The ledger is always
written first, so a file that is behind one of the others is an older copy:

- The kernel's mark is written in the same step that takes a counter away, and by every
  reconcile. It is gone after a reboot, as the counters are.
- The small file is written after a sync of the ledger to the disk, with what that sync made sure
  of, the sum of the totals that never fall, and the gaps, whose counts go on from there when a
  ledger is lost. It outlives a power cut.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Self

from netmgr import durable
from netmgr.errors import StateError
from netmgr.ledger.tables import Gap, Lost
from netmgr.prefixes import Address, Family

log = logging.getLogger(__name__)

_HALF = 64
# As an address, a mark is a unique local one (fd00::/8, RFC 4193).
_FIRST_BYTE = 0xFD << (_HALF - 8)
# 20 digits hold any sequence of 64 bits, and 19 any bytes that the ledger's file can hold.
_GAP = r"[a-z-]{1,40} [0-9]{1,18} [0-9]{1,12}\.[0-9]{3} [0-9]{1,19}\n"
_TEXT = re.compile(rf"([0-9a-f]{{16}}) ([0-9]{{1,20}}) ([0-9]{{1,40}})\n((?:{_GAP})*)")


class Mark(NamedTuple):
    """The books' number (64 bits, random but for the first byte), and how far they have come."""

    books: int
    sequence: int

    @classmethod
    def of(cls, address: Address) -> Self:
        return cls(address.value >> _HALF, address.value & ((1 << _HALF) - 1))

    @property
    def address(self) -> Address:
        """The mark as an IPv6 address, the largest thing that a set of either backend can hold."""
        return Address(Family.V6, self.books << _HALF | self.sequence)


class Synced(NamedTuple):
    """What the disk had of the ledger at a sync: mark, sum of the totals that never fall, gaps."""

    mark: Mark
    bytes: int
    gaps: tuple[tuple[Gap, Lost], ...] = ()


class BooksState(Enum):
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


MENDED: Mapping[BooksState, Gap] = {
    BooksState.LOST: Gap.LEDGER_LOST,
    BooksState.FOREIGN: Gap.LEDGER_LOST,
    BooksState.OLDER: Gap.LEDGER_OLDER,
}
"""Findings that mean a loss, and its gap."""


@dataclass(frozen=True, slots=True)
class Own:
    """What a ledger file says of itself; `bytes` as in `Synced`."""

    mark: Mark | None
    is_new: bool
    bytes: int
    zeroed_at: int = 0
    """The sequence at which totals began at zero after the last loss."""


def compare(
    own: Own, kernel: Iterable[Mark], synced: Synced | None, *, has_counters: bool
) -> BooksState:
    """Compare a ledger file with the marks elsewhere; `has_counters`: of ours, in the kernel."""
    others = _trusted(own, kernel, synced)
    if own.is_new:
        return BooksState.LOST if others or has_counters else BooksState.NEW
    return _compare_marks(own, others, synced)


def _compare_marks(own: Own, others: list[Mark], synced: Synced | None) -> BooksState:
    # Written by a release without marks; where there is a mark, a later file has been here.
    if own.mark is None:
        return BooksState.OLDER if others else BooksState.CURRENT
    if any(other.books != own.mark.books for other in others):
        return BooksState.FOREIGN
    if synced and synced.mark.books == own.mark.books:
        # Readings of counters that go on do not advance the sequence, but these sums never fall: an
        # older copy has less, even with an equal mark. Only a loss has them begin at zero, and the
        # small file of before it may be there still.
        if own.bytes < synced.bytes and synced.mark.sequence >= own.zeroed_at:
            return BooksState.OLDER
        others.append(synced.mark)
    # All have one number here, so this compares sequences.
    is_behind = max(others, default=own.mark) > own.mark
    return BooksState.OLDER if is_behind else BooksState.CURRENT


def _trusted(own: Own, kernel: Iterable[Mark], synced: Synced | None) -> list[Mark]:
    """The marks that decide whose books these are."""
    in_kernel = list(kernel)
    number = own.mark.books if own.mark else None
    ours = [mark for mark in in_kernel if mark.books == number]
    # Beside ours in the kernel, a mark with another number was put there by somebody else. And a
    # kernel's mark was written in this boot, while the small file may have been replaced together
    # with the ledger.
    return ours or in_kernel or ([synced.mark] if synced else [])


def successor(own: Mark | None, kernel: Iterable[Mark], synced: Synced | None) -> Mark:
    """The mark that books go on from: the latest one known of their number.

    Books without a number take the kernel's, else the small file's, else a new one.
    """
    known = [*kernel, *([synced.mark] if synced else [])]
    latest = own or next(iter(known), None)
    number = latest.books if latest else _FIRST_BYTE | int.from_bytes(os.urandom(_HALF // 8 - 1))
    return max((mark for mark in known if mark.books == number), default=Mark(number, 0))


def read(path: Path) -> Synced | None:
    """What the small file says; None if it is missing or cannot be understood."""
    try:
        return durable.read(path, _parsed)
    except StateError as error:
        log.error("ledger-mark-unreadable error=%s", error.message)  # noqa: TRY400  the message says all there is
        return None


def _parsed(text: str) -> Synced:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:60]!r} is no mark")
    books, sequence, total, gaps = match.groups()
    # More would be no address, which a mark has to be in the kernel.
    if int(sequence) >> _HALF:
        raise ValueError(f"its sequence is {sequence}")
    kept = [line.split() for line in gaps.splitlines()]
    # A later release may know more reasons.
    known = [
        (Gap(reason), Lost(int(times), float(seconds), int(size)))
        for reason, times, seconds, size in kept
        if reason in tuple(Gap)
    ]
    return Synced(Mark(int(books, 16), int(sequence)), int(total), tuple(known))


def write(path: Path, synced: Synced) -> None:
    """Replace the small file, which is whole at every moment; a StateError if that fails."""
    lines = [f"{synced.mark.books:016x} {synced.mark.sequence} {synced.bytes}\n"]
    lines += [f"{gap} {lost.times} {lost.seconds:.3f} {lost.bytes}\n" for gap, lost in synced.gaps]
    durable.write(path, "".join(lines).encode(), 0o600)
