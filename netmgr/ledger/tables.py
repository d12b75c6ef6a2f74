"""The book's tables: what their rows are, and which rows the file does not have yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import add
from typing import Generic, NamedTuple, TypeVar

from netmgr.model import Counter, PodRef, Sample, Traffic

Key = TypeVar("Key")
Value = TypeVar("Value")

WRAP = 1 << 63
LARGEST = WRAP - 1
"""The most bytes or packets that the file can hold for one account."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes (IP headers included), packets, and what `Sample` has of wires."""

    bytes: int = 0
    packets: int = 0
    wire: int = 0
    measured: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.bytes, self.packets, self.wire, self.measured

    def __add__(self, other: Amount) -> Amount:
        return Amount(*map(add, self.counts, other.counts))

    # The audit's, which compares no more than these.
    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.bytes - other.bytes, self.packets - other.packets)

    def smallest(self, other: Amount) -> Amount:
        return Amount(min(self.bytes, other.bytes), min(self.packets, other.packets))

    def largest(self, other: Amount) -> Amount:
        return Amount(max(self.bytes, other.bytes), max(self.packets, other.packets))


NOTHING = Amount()


class Scope(StrEnum):
    """What kind of total an account is. Values are in the file."""

    POD = "pod"
    NAMESPACE = "namespace"
    HOOK = "hook"
    AUDIT = "audit"


class Account(NamedTuple):
    """A pod (namespace, name), a namespace, a hook (chain, family), or a sum of the audit."""

    scope: Scope
    owner: str
    name: str
    traffic: Traffic


class SeriesKey(NamedTuple):
    """Key of a pod's series, without the UID: a StatefulSet's pod continues its own series."""

    namespace: str
    name: str


def is_same_pod(former: PodRef | None, owner: PodRef | None) -> bool:
    """Whether both are one pod; a UID that one side does not know decides nothing."""
    if former is None or owner is None:
        return former is owner
    return (former.namespace, former.name) == (owner.namespace, owner.name) and (
        former.uid == owner.uid or not (former.uid and owner.uid)
    )


class Gap(StrEnum):
    """Why bytes may be missing from the totals. Values are label values."""

    REMOVED = "removed"
    """Another program removed a counter; up to one reading interval of its traffic is lost."""
    RESET = "reset"
    """Another program zeroed a counter; up to one reading interval of its traffic is lost."""
    RESTORED = "restored"
    """Another program put back what a counter had shown before. Nothing of that is counted again;
    up to one reading interval of its traffic is lost."""
    REBOOT = "reboot"
    """The machine went down with counters live; what was read last before that may be lost too."""
    NOT_DURABLE = "not-durable"
    """The state file could not be written; a crash before it can would lose the pods that ended."""
    LATE = "late"
    """A pod that another plugin wired was noticed late. What it sent before is not in its totals,
    or is in those of the pod that had its address before."""
    LEDGER_LOST = "ledger-lost"
    """The file was gone, damaged or another machine's; totals began again at zero."""
    LEDGER_OLDER = "ledger-older"
    """The file was an older copy, or lacked what had been in it; totals began again at zero."""


class Lost(NamedTuple):
    """Events that may have lost bytes for one reason, their seconds, and the bytes known of."""

    times: int = 0
    seconds: float = 0.0
    bytes: int = 0


NAMED_COUNTERS = 5
"""So many of the counters that a gap concerned are named."""


class LastGap(NamedTuple):
    """From when to when, in seconds since the epoch; how many counters, and the first of them."""

    since: float
    until: float
    concerned: int
    counters: tuple[str, ...]

    @classmethod
    def of(cls, counters: Iterable[Counter], since: float, until: float) -> LastGap:
        listed = sorted(f"{counter.subject} {counter.traffic}" for counter in counters)
        return cls(since, until, len(listed), tuple(listed[:NAMED_COUNTERS]))

    @classmethod
    def parse(cls, text: str) -> LastGap:
        since, until, concerned, counters = text.split(" ", 3)
        names = tuple(filter(None, counters.split(",")))
        return cls(float(since), float(until), int(concerned), names)

    @property
    def text(self) -> str:
        """For a fact of the ledger."""
        return f"{self.since:.0f} {self.until:.0f} {self.concerned} {','.join(self.counters)}"

    def prolonged(self, later: LastGap) -> LastGap:
        """This gap, prolonged to the later one's end."""
        names = (self.counters + later.counters)[:NAMED_COUNTERS]
        since, concerned = min(self.since, later.since), self.concerned + later.concerned
        return LastGap(since, later.until, concerned, names)


class Phase(IntEnum):
    """Whether the kernel has a live counter. Values are in the file."""

    BEGUN = 0
    """It is about to be made, and was never seen."""
    COUNTING = 1
    ENDING = 2
    """Its last reading has been posted; it is about to be taken away."""


@dataclass(frozen=True, slots=True)
class LiveCounter:
    owner: PodRef | None
    reading: Amount = NOTHING
    phase: Phase = Phase.BEGUN
    life: int = 0

    def continued(self, sample: Sample) -> LiveCounter:
        """The counter, to go on from this reading."""
        # The kernel's counters have 64 bits, one more than SQLite's integers.
        counts = sample.bytes, sample.packets, sample.wire, sample.measured
        reading = Amount(*(count % WRAP for count in counts))
        return LiveCounter(self.owner, reading, Phase.COUNTING, sample.life)

    def read(self, sample: Sample) -> tuple[LiveCounter, Amount, Gap | None]:
        """The counter from now on, what passed, and what was lost: rules 3 and 8 of `book.py`."""
        live, last = self.continued(sample), self.reading
        grown = Amount(*map(_growth, live.reading.counts, last.counts))
        # A counter is made in its life after it was begun here.
        is_same = sample.life == self.life or self.phase is Phase.BEGUN
        if is_same and min(grown.counts) >= 0:
            return live, grown, None
        # The node's counters have their table's life, which zeroing does not end.
        if sample.life and (sample.counter.is_pod or not is_same):
            return live, NOTHING, Gap.RESTORED
        # What it shows now passed after the zeroing.
        return live, live.reading, Gap.RESET


def _growth(reading: int, last: int) -> int:
    # Rule 8: whoever zeroes a counter takes away less than half of all that fits.
    return reading - last + (WRAP if 2 * (last - reading) > WRAP else 0)


class Tracked(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that knows which keys were set or deleted since it was last written.

    It notices item assignment, `del` and clear(), and not dict's update(), pop() or setdefault().
    """

    def __init__(self, entries: Iterable[tuple[Key, Value]] = ()) -> None:
        super().__init__(entries)
        self.touched: set[Key] = set()

    def __setitem__(self, key: Key, value: Value) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        self.touched.add(key)
        super().__delitem__(key)

    def clear(self) -> None:
        self.touched.update(self)
        super().clear()

    @property
    def changed(self) -> list[tuple[Key, Value]]:
        return [(key, self[key]) for key in self.touched if key in self]

    @property
    def deleted(self) -> list[Key]:
        return [key for key in self.touched if key not in self]
