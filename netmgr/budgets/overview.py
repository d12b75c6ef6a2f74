"""How a cluster's budgets stand, for operators (pure): what commands, metrics and Events show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from netmgr.budgets.allocator import Allocator
from netmgr.budgets.messages import Budget

DAY_SECONDS = 86_400
MOST_NODES = 20
"""Nodes of each budget that are shown: those that hold the most."""


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """Rates are bits a second; bytes are of this day (UTC).

    Attributes:
        outstanding: in force on all nodes together, at most.
        free: what pods have that are not held back; `waiting` is the number of those that are.
        level: of each pod that is held back; None where none has to be.
        per_day: 0 for no quota.
        spent_at: when the quota ends if the day goes on as on average, in seconds since the epoch;
            None where it lasts.
    """

    name: str
    within: str
    namespaces: tuple[str, ...]
    traffic: str
    rate: int
    outstanding: int
    free: int
    waiting: int
    level: int | None
    per_day: int = 0
    used: int = 0
    slow: int = 0
    spent_at: int | None = None


def statuses(allocator: Allocator, budgets: Sequence[Budget], now: float) -> list[BudgetStatus]:
    """One for each budget; `now` in seconds since the epoch."""
    return [_status(allocator, budget, now) for budget in budgets if budget.name in allocator.rates]


def _status(allocator: Allocator, budget: Budget, now: float) -> BudgetStatus:
    lent, day = allocator.rates[budget.name], allocator.days.get(budget.name)
    used = day.used if day else 0
    return BudgetStatus(
        name=budget.name,
        within=budget.within,
        namespaces=budget.namespaces,
        traffic=budget.traffic,
        rate=budget.rate,
        outstanding=lent.outstanding,
        free=lent.free,
        waiting=lent.waiting,
        level=None if math.isinf(lent.level) else int(lent.level),
        per_day=budget.per_day,
        used=used,
        slow=budget.slow,
        spent_at=_spent_at(budget.per_day, used, now),
    )


def _spent_at(quota: int, used: int, now: float) -> int | None:
    began = now - now % DAY_SECONDS
    if not quota or not used:
        return None
    end = int(began + (now - began) * quota / used)
    return end if end < began + DAY_SECONDS else None


def largest(allocator: Allocator, budget: str) -> list[dict[str, Any]]:
    """The nodes that hold the most of a budget."""
    shares = allocator.shares(budget).items()
    return [
        {"node": node, "held": share.held, "free": share.free, "waiting": share.waiting}
        for node, share in nlargest(MOST_NODES, shares, key=lambda named: named[1].held)
    ]
