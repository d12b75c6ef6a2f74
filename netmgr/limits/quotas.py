"""Quotas: which of them are in force for a pod, what is left of one, and when its period ends.

The kernel decides about each packet, by a quota object that every packet raises for as long as it
lives. What the agent sets is the count at which it is spent, so that a correction loses no packet
that passes meanwhile.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from typing import NamedTuple

from netmgr.clock import DAY_SECONDS
from netmgr.documents import patterns
from netmgr.documents.limits import Limit, QuotaPeriod
from netmgr.model import PodRef, Traffic

# Bytes. A quota of which less is left is spent: such a packet does not pass any more.
LONGEST_PACKET = 65_536

# What a forecast is made from, at least; an instant says nothing about a month.
_LEAST_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class NodeQuota:
    """A quota in force, of a pod or (`pod` empty) of a namespace's pods on this node together.

    With `budget` it is what the pods of that budget may have of it, whose `bytes` may change.
    """

    namespace: str
    pod: str
    traffic: Traffic
    period: QuotaPeriod
    bytes: int
    slow: int
    """Bits a second at which packets beyond it pass; 0 drops them."""
    began: int
    """When its period began, in seconds since the epoch."""
    budget: str = ""
    namespaces: tuple[str, ...] = ()
    """Patterns of the budget's namespaces."""

    @property
    def object(self) -> str:
        """Name of its object in the kernel."""
        # Another period, and another size of the quota, is another object: its count begins anew.
        # In a digest, since a pod's name may be as long as an object's may.
        whose = f"{self.budget or f'{self.namespace}/{self.pod} {self.bytes}'} {self.began}"
        digest = hashlib.sha256(whose.encode()).hexdigest()[:32]
        return f"{self.traffic.replace('-', '_')}_{self.period}_{digest}"

    @property
    def size_object(self) -> str:
        """Name of an object that charges nothing: its bound is the size by which the other's is.

        Another agent could not know which allowance a bound follows from.
        """
        return f"{self.object}_size"

    @property
    def objects(self) -> tuple[str, ...]:
        return (self.object, self.size_object) if self.budget else (self.object,)

    @property
    def without_size(self) -> NodeQuota:
        """What is the same for all sizes of a budget's."""
        return replace(self, bytes=0, slow=0) if self.budget else self

    def charges(self, namespace: str, pod: str, budget: str = "") -> bool:
        """Whether packets of a pod, or of a class of the budget itself, are charged to it."""
        if self.budget:
            is_within = patterns.matches(self.namespaces, namespace)
            return budget == self.budget or (bool(namespace) and is_within)
        return namespace == self.namespace and self.pod in ("", pod)


class QuotaReading(NamedTuple):
    """What the kernel and the ledger showed of a budget together; all in bytes.

    Attributes:
        bound: the count at which its object is spent, if `size` bytes are all that there are.
        before: the object's count before the ledger was read; also what was dropped later, and
            Ethernet headers. `after` is the count after that.
        waiting: what was counted before and the ledger may not have yet.
        used: what the ledger has.
    """

    bound: int
    before: int
    after: int
    waiting: int
    used: int
    size: int


class Standing(NamedTuple):
    """What is kept of a budget from one look to the next; all in bytes.

    Attributes:
        bound: the count at which its object is to be spent; until then `left` bytes pass.
        used: what the ledger has; it would let `credit` bytes pass beyond those.
        least: what the ledger has missed, at least; `most` at most.
        size: of the quota.
    """

    bound: int
    left: int
    used: int
    size: int
    credit: int = 0
    least: int = 0
    most: int = 0

    def resized(self, size: int) -> Standing:
        """With a quota of another size, but no less than what may have passed."""
        # Of what is left alone: what has passed is known no better than that.
        more = max(size - self.size, -max(0, self.left))
        return self._replace(bound=self.bound + more, left=self.left + more, size=self.size + more)


def of_pod(
    pod: PodRef, limits: Iterable[Limit], traffic: Traffic, now: float
) -> tuple[NodeQuota, ...]:
    """The quotas that a pod's packets are charged to: those that drop first, then by rate.

    Of several for the same pod or namespace and period, the lowest one is in force.
    """
    budgets: dict[tuple[str, QuotaPeriod], NodeQuota] = {}
    matching = [limit for limit in limits if limit.covers(pod)]
    for limit, period in product(matching, QuotaPeriod):
        if size := limit.quota(period, traffic):
            name = pod.name if limit.pods else ""
            began = beginning(period, now)
            budget = NodeQuota(pod.namespace, name, traffic, period, size, limit.when_spent, began)
            other = budgets.get((name, period), budget)
            budgets[name, period] = min(budget, other, key=lambda quota: (quota.bytes, quota.slow))
    # A packet that is dropped is charged to nothing slow, and of slow classes the last one is it.
    return tuple(
        sorted(budgets.values(), key=lambda budget: (-(budget.slow or math.inf), budget.object))
    )


def beginning(period: QuotaPeriod, now: float) -> int:
    """When the period that `now` is in began; both in seconds since the epoch."""
    if period is QuotaPeriod.DAY:
        return int(now) - int(now) % DAY_SECONDS
    day = datetime.fromtimestamp(now, UTC)
    return int(datetime(day.year, day.month, 1, tzinfo=UTC).timestamp())


def end(period: QuotaPeriod, now: float) -> int:
    """When the period that `now` is in ends."""
    # When the longest would be over, the next one has begun.
    return beginning(period, beginning(period, now) + period.most_hours * 3600)


def forecast(budget: NodeQuota, used: int, now: float) -> int:
    """Bytes used at the period's end, if it goes on as it did on average since its beginning."""
    began, ends = beginning(budget.period, now), end(budget.period, now)
    return int(used * (ends - began) / max(now - began, _LEAST_SECONDS))


def is_spent(budget: NodeQuota, used: int) -> bool:
    return used + LONGEST_PACKET > budget.bytes


def corrected(
    budget: NodeQuota, look: QuotaReading, former: Standing | None, *, is_whole: bool
) -> Standing:
    """When a budget is spent, by what its object and the ledger showed.

    `former` is how it stood before, None where nothing is known, as after a start; `is_whole`
    whether the ledger has seen everything since then.
    """
    # What passes during the look is in the ledger or not.
    if former is None:
        left = look.bound - look.before
        former, is_whole = Standing(look.bound, left, look.used, look.size), False
    low = former.size - look.used + look.before - look.waiting
    high = former.size - look.used + look.after
    # The object counts what is dropped later, too, and the ledger misses what passes while its
    # rules are gone. So the ledger lowers a bound at once, and raises one only by what it did not
    # see pass while it saw everything.
    # The count falls if another program resets it.
    bound = min(look.bound, look.before + former.left)
    if is_whole := is_whole and look.used >= former.used:
        # By what was seen a look ago: the rules may have gone since.
        bound += max(0, min(former.credit, low - former.most - bound))
    bound = max(0, min(bound, high - former.least))
    least, most = former.least, former.most
    if not is_whole:
        least, most = max(0, low - bound), max(0, high - bound)
    standing = Standing(
        bound, bound - look.after, look.used, former.size, low - most - bound, least, most
    )
    return standing.resized(budget.bytes)
