"""Hourly roll-ups: the decisions. `store.py` keeps them in the ledger's file.

A posting raises, with the totals and in the same transaction, the roll-up of the hour (UTC) in
which its reading was taken. A clock that steps decides which hour is raised, never by how much: the
roll-ups of all hours sum to the totals. The reading just after a full hour brings what passed since
the one before: an hour is exact to one reading interval (`reading_seconds`), or to the agent's
absence.

What is lost has roll-ups of its own, of no namespace: the bytes that are known to be lost, and as
packets the gaps whose bytes nobody knows. They bound the error of each row (`bounded`). Such a gap
is in every hour that it touches, with the pods whose counters it concerned, `<namespace>/<name>`.

What bounds the file: the latest `Retention.hours` hours that had traffic are kept. Beyond
`Retention.rows`, the pods of the oldest hours are folded into their namespaces (pod ""), the
smallest pods first, and then the oldest hours go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple

from netmgr.api.snapshot import VERSION, UsageRow, UsageView
from netmgr.ledger.tables import NOTHING, Amount

SECONDS = 3600
EVERY = ""
"""In place of a class and direction: all of them, also those that are not counted yet."""
FARTHEST = 1e11
"""Seconds from the epoch that are still a time: three thousand years."""
MOST_ROWS = 10_000
"""Rows of one answer about usage; the rest, the smallest, are only counted."""
LONGEST_GAP = 31 * 24
"""Hours of one gap that are noted, its latest: a clock that was set wrong may claim decades."""
UNWRITTEN_BUCKETS = 20_000
"""Most roll-ups that wait for the file; beyond, pods are folded into their namespaces."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history is kept: hours that had traffic (0 keeps none), and rows of the file."""

    hours: int = 168
    rows: int = 100_000


class HourBucket(NamedTuple):
    """Key of one roll-up: `hour` counts from the epoch; `pod` is "" for pods that were folded."""

    hour: int
    namespace: str
    pod: str
    traffic: str


class Unwritten(dict[HourBucket, Amount]):
    """What is to be added to the file's roll-ups; nothing, where none are wanted."""

    is_kept = True

    def lose(self, wall: float, traffic: str, size: int) -> None:
        """Note bytes that were lost: an hour lacks those that its readings would have brought."""
        self.add(HourBucket(int(wall // SECONDS), "", "", traffic), Amount(size, 0))

    def miss(
        self, since: float, until: float, concerned: Collection[tuple[str, str]] = (("", EVERY),)
    ) -> None:
        """Note a gap of an unknown size, by pod and traffic; "" in place of a pod is any."""
        last = int(until // SECONDS)
        for hour in range(max(int(since // SECONDS), last - LONGEST_GAP), last + 1):
            for pod, traffic in concerned:
                self.add(HourBucket(hour, "", pod, traffic), Amount(0, 1))

    def add(self, bucket: HourBucket, amount: Amount) -> None:
        if not self.is_kept:
            return
        # A disk that is full for days must not fill the memory as well.
        if len(self) >= UNWRITTEN_BUCKETS and bucket not in self:
            bucket = bucket._replace(pod="")
        self[bucket] = self.get(bucket, NOTHING) + amount


class By(StrEnum):
    """What usage may be grouped by."""

    NAMESPACE = "namespace"
    POD = "pod"
    CLASS = "class"
    HOUR = "hour"


def usage_row(hour: int, namespace: str, pod: str, traffic: str, amount: Amount) -> UsageRow:
    """The sum of some roll-ups; columns that name no group are 0 or empty."""
    return {
        "hour": hour,
        "namespace": namespace,
        "pod": pod,
        "traffic": traffic,
        "bytes": amount.bytes,
        "packets": amount.packets,
        "wire": amount.wire,
        "measured": amount.measured,
        "missing": 0,
    }


@dataclass(frozen=True, slots=True)
class Period:
    """Whole hours since the epoch, from `first` until before `end`."""

    first: int
    end: int

    @classmethod
    def around(cls, since: float, until: float) -> Period:
        """The hours with any of the time from `since` until `until`, in seconds since the epoch."""
        # Rounded up by negating twice: an hour that has begun is part of the period.
        return cls(int(since // SECONDS), int(-(-until // SECONDS)))

    def holds(self, hour: int) -> bool:
        return self.first <= hour < self.end


def charged(row: UsageRow, *, wire: bool) -> int:
    """The bytes of a row, or its wire bytes and the bytes that are in none of these."""
    # An older agent's rows have none.
    return row.get("wire", 0) + wire_unknown(row) if wire else row["bytes"]


def wire_unknown(row: UsageRow) -> int:
    """Bytes of a row that are in no wire bytes."""
    return row["bytes"] - row.get("measured", 0)


def grouped(rows: Iterable[UsageRow], by: Collection[By]) -> list[UsageRow]:
    """The rows' sums by what `by` names and by traffic, most bytes first."""
    columns = columns_of(by)
    sums: dict[tuple[int, str, str, str], Amount] = {}
    for row in rows:
        key = (
            row["hour"] if "hour" in columns else 0,
            row["namespace"] if "namespace" in columns else "",
            row["pod"] if "pod" in columns else "",
            row["traffic"],
        )
        amount = Amount(row["bytes"], row["packets"], row["wire"], row["measured"])
        sums[key] = sums.get(key, NOTHING) + amount
    # The key decides between equal sums, so that an answer does not depend on the file's order.
    order = sorted(sums, key=lambda key: (-sums[key].bytes, key))
    return [usage_row(*key, sums[key]) for key in order]


def bounded(
    rows: Iterable[UsageRow], lost: Iterable[UsageRow], by: Collection[By]
) -> list[UsageRow]:
    """The rows, each with the bytes that it may lack at most; None where nobody knows."""
    most: defaultdict[tuple[int, str, str], list[int | None]] = defaultdict(list)
    for loss in lost:
        hour = loss["hour"] if By.HOUR in by else 0
        for owner in _concerned(loss["pod"], by):
            # The packets of a loss are gaps whose bytes nobody knows.
            bound = None if loss["packets"] else loss["bytes"]
            most[hour, owner, loss["traffic"]].append(bound)
    return [{**row, "missing": _missing(row, most)} for row in rows]


def _missing(
    row: UsageRow, most: Mapping[tuple[int, str, str], Iterable[int | None]]
) -> int | None:
    total = 0
    for key in product(
        [row["hour"]], ["", f"{row['namespace']}/{row['pod']}"], [EVERY, row["traffic"]]
    ):
        for bound in most.get(key, ()):
            if bound is None:
                return None
            total += bound
    return total


def _concerned(pod: str, by: Collection[By]) -> tuple[str, ...]:
    """Rows that lack what this pod lost, by their namespace and pod; "" for all rows."""
    namespace, is_pod, _ = pod.partition("/")
    if not is_pod or not {By.NAMESPACE, By.POD} & {*by}:
        return ("",)
    # By pod, a row without a name has those of the namespace that were folded.
    return (pod, f"{namespace}/") if By.POD in by else (f"{namespace}/",)


def view(period: Period, by: Sequence[By], rows: Sequence[UsageRow]) -> UsageView:
    """The answer to a question about usage: the first rows, as many as there is room for."""
    return {
        "version": VERSION,
        "since": period.first * SECONDS,
        "until": period.end * SECONDS,
        "by": [str(grouping) for grouping in by],
        "rows": list(rows[:MOST_ROWS]),
        "left_out": max(0, len(rows) - MOST_ROWS),
    }


def entire(ask: Callable[[Period], UsageView], period: Period, by: Collection[By]) -> UsageView:
    """The answer for a period, asked for in parts where one has no room for the rows of its hours.

    Sums over several hours cannot be put together of parts.
    """
    answer = ask(period)
    if not answer["left_out"] or By.HOUR not in by or period.end - period.first == 1:
        return answer
    middle = (period.first + period.end) // 2
    early, late = (
        entire(ask, half, by) for half in (Period(period.first, middle), Period(middle, period.end))
    )
    left_out = early["left_out"] + late["left_out"]
    return {**answer, "rows": early["rows"] + late["rows"], "left_out": left_out}


def columns_of(by: Collection[By]) -> tuple[str, ...]:
    """The columns that make the groups, in order and without `traffic`, which always does."""
    groupings = {*by, By.NAMESPACE} if By.POD in by else {*by}
    return tuple(column for column in (By.HOUR, By.NAMESPACE, By.POD) if column in groupings)
