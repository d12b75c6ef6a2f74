"""What one reading of a counter says, compared with the last one: rules 2, 3 and 8 of `book.py`."""

from __future__ import annotations

from typing import NamedTuple

from netmgr.ledger.tables import NOTHING, WRAP, Amount, Gap, LiveCounter, Phase
from netmgr.model import Sample


class Understood(NamedTuple):
    """The counter as it is from now on, what passed since the last reading, and what was lost."""

    live: LiveCounter
    passed: Amount
    gap: Gap | None = None


def understood(former: LiveCounter, sample: Sample) -> Understood | None:
    """What a reading says; None if it is the last one once more, as most are."""
    last = former.reading
    is_known = former.phase is Phase.COUNTING and sample.life == former.life
    if is_known and (sample.bytes, sample.packets) == (last.bytes, last.packets):
        return None
    live = continued(former, sample)
    reading = live.reading
    passed = Amount(_growth(reading.bytes, last.bytes), _growth(reading.packets, last.packets))
    # A counter is made in its life after it was begun here.
    is_same = sample.life == former.life or former.phase is Phase.BEGUN
    if is_same and passed.bytes >= 0 and passed.packets >= 0:
        return Understood(live, passed)
    # The node's counters have their table's life, which zeroing does not end.
    if sample.life and (sample.counter.is_pod or not is_same):
        return Understood(live, NOTHING, Gap.RESTORED)
    # What it shows now passed after the zeroing.
    return Understood(live, reading, Gap.RESET)


def continued(former: LiveCounter, sample: Sample) -> LiveCounter:
    """The counter, to go on from this reading."""
    # The kernel's counters have 64 bits, one more than SQLite's integers.
    reading = Amount(sample.bytes % WRAP, sample.packets % WRAP)
    return LiveCounter(former.owner, reading, Phase.COUNTING, sample.life)


def _growth(reading: int, last: int) -> int:
    return reading - last + (WRAP if 2 * (last - reading) > WRAP else 0)
