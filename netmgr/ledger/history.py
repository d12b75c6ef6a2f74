"""Hourly roll-ups: the decisions. `rollups.py` keeps them in the ledger's file.

A posting raises, with the totals and in the same transaction, the roll-up of the hour (UTC) in
which its reading was taken. What is posted is a difference of two readings, so a clock that
steps back or forth decides which hour is raised, never by how much: the roll-ups of all hours
sum to the totals. The reading just after a full hour brings what passed since the one before:
an hour is exact to one reading interval (`reading_seconds`), or to the agent's absence.

What bounds the file: the latest `Retention.hours` hours that had traffic are kept. They are
counted, not reckoned from the clock, so a clock that jumps for a minute to another year costs
one hour of the past and not all of it. Beyond `Retention.rows`, the pods of the oldest hours are
folded into their namespaces (pod ""), the smallest pods first, and then the oldest hours go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, cast

from netmgr.ledger.account import NOTHING, Amount
from netmgr.model import Traffic
from netmgr.snapshot import VERSION, UsageRow, UsageView

SECONDS = 3600
FARTHEST = 1e11
"""Seconds from the epoch that are still a time: three thousand years."""
MOST_ROWS = 10_000
"""Rows of one answer about usage; the rest, the smallest, is told of as a number."""
UNWRITTEN_SLOTS = 20_000
"""Most roll-ups that wait for the file at a time; beyond these, pods are folded into namespaces."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history is kept: hours that had traffic (0 keeps none), and rows of the file."""

    hours: int = 168
    rows: int = 100_000


class Slot(NamedTuple):
    """One roll-up: `hour` counts from the epoch; `pod` is "" for those folded into their namespace."""

    hour: int
    namespace: str
    pod: str
    traffic: Traffic


class Unwritten(dict[Slot, Amount]):
    """What is to be added to the file's roll-ups."""

    def add(self, slot: Slot, amount: Amount) -> None:
        """Raise one roll-up."""
        if len(self) >= UNWRITTEN_SLOTS and slot not in self:
            slot = slot._replace(pod="")
        self[slot] = self.get(slot, NOTHING) + amount


class By(StrEnum):
    """What usage may be grouped by."""

    NAMESPACE = "namespace"
    POD = "pod"
    CLASS = "class"
    HOUR = "hour"


COLUMNS = {By.NAMESPACE: ("namespace",), By.POD: ("namespace", "pod"), By.CLASS: (), By.HOUR: ("hour",)}
"""Columns of a roll-up that make a group; `traffic` is always one more."""


class Usage(NamedTuple):
    """The sum of some roll-ups. Columns that do not tell groups apart are empty; `hour` is then 0."""

    hour: int
    namespace: str
    pod: str
    traffic: str
    bytes: int
    packets: int


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours since the epoch, from `first` until before `end`."""

    first: int
    end: int

    @classmethod
    def around(cls, since: float, until: float) -> Period:
        """The hours that hold any of the time from `since` until `until`, seconds since the epoch."""
        return cls(int(since // SECONDS), int(-(-until // SECONDS)))

    @property
    def since(self) -> int:
        """Its beginning, in seconds since the epoch."""
        return self.first * SECONDS

    @property
    def until(self) -> int:
        """Its end, in seconds since the epoch."""
        return self.end * SECONDS

    def holds(self, hour: int) -> bool:
        """Whether an hour is one of these."""
        return self.first <= hour < self.end


def grouped(rows: Iterable[Usage], by: Iterable[By]) -> list[Usage]:
    """The rows' sums by what `by` names and by traffic, most bytes first."""
    columns = columns_of(by)
    sums: dict[tuple[int, str, str, str], Amount] = {}
    for row in rows:
        key = (
            row.hour if "hour" in columns else 0,
            row.namespace if "namespace" in columns else "",
            row.pod if "pod" in columns else "",
            row.traffic,
        )
        sums[key] = sums.get(key, NOTHING) + Amount(row.bytes, row.packets)
    found = [Usage(*key, amount.bytes, amount.packets) for key, amount in sums.items()]
    return sorted(found, key=lambda row: (-row.bytes, row))


def view(period: Period, by: Sequence[By], rows: Sequence[Usage]) -> UsageView:
    """The answer to a question about usage: as many of the rows as it has room for, the first ones."""
    return {
        "version": VERSION,
        "since": period.since,
        "until": period.until,
        "by": [str(one) for one in by],
        "rows": [cast(UsageRow, row._asdict()) for row in rows[:MOST_ROWS]],
        "left_out": max(0, len(rows) - MOST_ROWS),
    }


def columns_of(by: Iterable[By]) -> tuple[str, ...]:
    """The columns that make the groups, in order and without `traffic`, which always does."""
    named = {column for one in by for column in COLUMNS[one]}
    return tuple(column for column in ("hour", "namespace", "pod") if column in named)
