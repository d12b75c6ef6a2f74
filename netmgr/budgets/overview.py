"""How a cluster's budgets stand, for operators (pure): what commands, metrics and Events show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from heapq import nlargest
from typing import Any

from netmgr.budgets.allocator import BudgetAllocator
from netmgr.budgets.messages import Budget
from netmgr.clock import DAY_SECONDS

MOST_NODES = 20
"""Nodes of each budget that are shown: those that hold the most."""


def statuses(
    allocator: BudgetAllocator, budgets: Sequence[Budget], now: float
) -> list[dict[str, Any]]:
    """For each budget what the document says, and how it stands; `now` since the epoch.

    `outstanding` is in force on all nodes together, at most. `used` has what a former leader may
    have lent and nobody reports. `level` is what each pod gets that is held back, and None where
    none has to be; `spent_at` (since the epoch) when the quota ends if the day goes on as on
    average, and None where it lasts.
    """
    return [_status(allocator, budget, now) for budget in budgets]


def _status(allocator: BudgetAllocator, budget: Budget, now: float) -> dict[str, Any]:
    lent, day = allocator.rates[budget.name], allocator.days.get(budget.name)
    used = day.used if day else 0
    if day and not allocator.is_listening:
        used += day.reserved
    began = now - now % DAY_SECONDS
    end = began + (now - began) * budget.per_day / max(1, used)
    return asdict(budget) | {
        "outstanding": lent.outstanding,
        "free": lent.free,
        "waiting": lent.waiting,
        "level": None if math.isinf(lent.level) else int(lent.level),
        "used": used,
        "spent_at": int(end) if budget.per_day and end < began + DAY_SECONDS else None,
    }


def largest(allocator: BudgetAllocator, budget: str) -> list[dict[str, Any]]:
    """The nodes that hold the most of a budget."""
    shares = allocator.shares(budget).items()
    return [
        {"node": node, "held": share.held, "free": share.free, "waiting": share.waiting}
        for node, share in nlargest(MOST_NODES, shares, key=lambda named: named[1].held)
    ]
