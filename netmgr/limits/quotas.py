"""Quotas: which of them are in force for a pod, what is left of one, and when its period ends.

The kernel decides about each packet, by a quota object that every packet raises. The object's
count goes on for as long as the object lives; what the agent sets is the count at which it is
spent. So a new day, or a correction, loses no packet that passes meanwhile.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from netmgr.documents.limits import Limit, QuotaPeriod
from netmgr.model import PodRef, Traffic

LONGEST_PACKET = 65_536
"""Bytes. A quota of which less is left is spent: such a packet does not pass any more."""

_DAY_SECONDS = 86_400
_LEAST_SECONDS = 3600
"""What a forecast is made from, at least; an instant says nothing about a month."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A quota in force, of a pod or (`pod` empty) of a namespace's pods on this node together."""

    namespace: str
    pod: str
    traffic: Traffic
    period: QuotaPeriod
    bytes: int
    slow: int
    """Bits a second at which packets beyond it pass; 0 drops them."""

    @property
    def object(self) -> str:
        """Name of its object in the kernel, the same whatever the budget is."""
        # A pod's name may be as long as an object's may.
        owner = hashlib.sha256(f"{self.namespace}/{self.pod}".encode()).hexdigest()[:32]
        return f"{self.traffic.replace('-', '_')}_{self.period}_{owner}"


def of_pod(pod: PodRef, limits: Iterable[Limit], traffic: Traffic) -> tuple[Budget, ...]:
    """The quotas that a pod's packets are charged to: those that drop first, then by rate.

    Of several for the same pod or namespace and period, the lowest one is in force.
    """
    found: dict[str, Budget] = {}
    matching = [limit for limit in limits if limit.covers(pod)]
    for limit, period in product(matching, QuotaPeriod):
        if size := limit.quota(period, traffic):
            name = pod.name if limit.pods else ""
            one = Budget(pod.namespace, name, traffic, period, size, limit.when_spent)
            other = found.get(one.object, one)
            found[one.object] = min(one, other, key=lambda each: (each.bytes, each.slow))
    # A packet that is dropped is charged to nothing slow, and of slow classes the last one is it.
    by_rate = sorted(found.values(), key=lambda one: (-(one.slow or math.inf), one.object))
    return tuple(by_rate)


def beginning(period: QuotaPeriod, now: float) -> int:
    """When the period that `now` is in began; both in seconds since the epoch."""
    if period is QuotaPeriod.DAY:
        return int(now) - int(now) % _DAY_SECONDS
    day = datetime.fromtimestamp(now, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp())


def end(period: QuotaPeriod, now: float) -> int:
    """When the period that `now` is in ends."""
    # When the longest would be over, the next one has begun.
    return beginning(period, beginning(period, now) + period.most_hours * 3600)


def forecast(budget: Budget, used: int, now: float) -> int:
    """Bytes used at the period's end, if it goes on as it did on average since its beginning."""
    began, ends = beginning(budget.period, now), end(budget.period, now)
    return int(used * (ends - began) / max(now - began, _LEAST_SECONDS))


def is_spent(budget: Budget, used: int) -> bool:
    """Whether packets are beyond it."""
    return used + LONGEST_PACKET > budget.bytes


def bound(budget: Budget, used: int, count: int, waiting: int) -> int:
    """The count of its object at which a budget is spent.

    Args:
        budget: the quota.
        used: bytes that the ledger has; read after `count`, so that it is rather too high.
        count: what the object has counted; also what was dropped later, and Ethernet headers.
        waiting: bytes that it has counted and the ledger may not have yet.
    """
    return max(0, budget.bytes - used + count - waiting)
