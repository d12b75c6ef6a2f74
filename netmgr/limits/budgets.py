"""A cluster's budgets on one node: what its pods may have of each at a time.

They are known by a file that a process without privileges writes, so nothing of it is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from netmgr.budgets.held import HeldGrants
from netmgr.budgets.messages import MOST, Budget
from netmgr.clock import DAY_SECONDS
from netmgr.documents import patterns
from netmgr.documents.budgets import MOST_NESTED
from netmgr.documents.limits import QuotaPeriod
from netmgr.limits.quotas import NodeQuota
from netmgr.model import Traffic


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """A budget on this node.

    Attributes:
        rate: bits a second in force.
        level: those that each pod that is held back has in the cluster; 0 where none has to be.
        day: its number since the epoch, and `allowance` the bytes that may pass on it.
    """

    budget: Budget
    rate: int
    level: int
    day: int
    allowance: int

    @property
    def name(self) -> str:
        return self.budget.name

    def holds(self, namespace: str) -> bool:
        return patterns.matches(self.budget.namespaces, namespace)

    @property
    def quota(self) -> NodeQuota | None:
        """That of its day."""
        if not self.budget.per_day:
            return None
        # Of the rate that all nodes have together for what is beyond the quota, as large a share as
        # of the budget; at least a byte a second.
        slow = max(8, self.budget.slow * self.rate // self.budget.rate) if self.budget.slow else 0
        return NodeQuota(
            "",
            "",
            self.budget.traffic,
            QuotaPeriod.DAY,
            self.allowance,
            slow,
            self.day * DAY_SECONDS,
            self.budget.name,
            self.budget.namespaces,
        )


def on_node(held: HeldGrants, boot: str, now: float, today: int) -> tuple[NodeBudget, ...]:
    """The budgets at a boot time, parents first; `today` is for one that no answer named yet."""
    grants, rates = held.answer.grants, held.rates(boot, now)
    return tuple(
        NodeBudget(budget, rates[budget.name], grant.level, grant.day, grant.allowance)
        if (grant := grants.get(budget.name))
        else NodeBudget(budget, rates[budget.name], 0, today, 0)
        for budget in held.budgets
    )


def around(held: Sequence[NodeBudget], namespace: str, traffic: str) -> list[NodeBudget]:
    """Those that a namespace's pods are in, parents first."""
    holding = [
        budget for budget in held if budget.budget.traffic == traffic and budget.holds(namespace)
    ]
    return path(held, holding[-1].name) if holding else []


def path(held: Sequence[NodeBudget], name: str) -> list[NodeBudget]:
    """A budget behind those that it is within; empty if there is none of this name."""
    by_name = {budget.name: budget for budget in held}
    outwards: list[NodeBudget] = []
    while name in by_name:
        outwards.append(by_name[name])
        name = by_name[name].budget.within
    return outwards[::-1]


def require_sound(content: HeldGrants) -> None:
    """ValueError if no document could have the budgets."""
    depths: dict[str, int] = {}
    directions = {"": set(Traffic)}
    for budget in content.budgets:
        depth = depths.get(budget.within, -1) + 1
        is_new = budget.name not in depths and len(depths) < MOST and depth < MOST_NESTED
        is_within = budget.traffic in directions.get(budget.within, ())
        if not (is_new and is_within and budget.slow <= budget.rate):
            raise ValueError(f"it has a budget {budget.name!r} that no document can have")
        depths[budget.name], directions[budget.name] = depth, {budget.traffic}
