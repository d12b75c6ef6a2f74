"""The server's arithmetic for all budgets of a cluster: which node is heard, and what it is lent.

The state is soft: until `OVERLAP` and `LEASE` have passed, a new leader reckons with all that nodes
may hold which it has not heard. Times are seconds of any clock that never steps back; days are
those of UTC, as their number since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, BudgetUse, Grant
from netmgr.budgets.quotas import DayAllocation, NodeBytes
from netmgr.budgets.rates import NodeRate, RateAllocation
from netmgr.budgets.terms import DELETED, HOLD, LEASE, OVERLAP

Ceilings = Mapping[str, Mapping[int, int]]
"""By budget and day, the bytes of which no more may be lent before more is kept durably."""

_FORMER_BOOTS = 8
_NOTHING = BudgetUse(0, 0, 0, 0, 0, 0, 0)
_UNHEARD = NodeRate()
_UNLIMITED = 10**18


class ReportRefused(Exception):
    """A report that is not answered; its text is the reason, a word for metrics."""


@dataclass(slots=True)
class KnownNode:
    """A node that has a Node object, or had one when it reported.

    Attributes:
        heard: when it was last heard, or at first when it was to be heard.
        pods: that it can have; None where its Node object is gone.
        is_old: when it was last heard, the lease of the answer that it had was over.
        boots: by the ids of its last boots, the last sequence of each.
    """

    heard: float
    pods: int | None
    is_old: bool = False
    boots: dict[str, int] = field(default_factory=dict)
    rates: dict[str, NodeRate] = field(default_factory=dict)
    bytes: dict[str, NodeBytes] = field(default_factory=dict)


class BudgetAllocator:
    """What a leader answers to reports.

    Attributes:
        epoch: of this leader; every later one's is greater.
        rates, days: by budget, for who shows how it stands.
        is_listening: whether nodes that are well may still be unheard.
    """

    def __init__(self, epoch: int, now: float, day: int, ceilings: Ceilings | None = None) -> None:
        """`ceilings` are those that the former leader kept; None if there never was one."""
        self.epoch = epoch
        self.rates: dict[str, RateAllocation] = {}
        self.days: dict[str, DayAllocation] = {}
        self._budgets: tuple[Budget, ...] = ()
        self._version = ""
        self._enforce = True
        self._began, self._is_first = now, ceilings is None
        # What was kept may have been lost, and nodes have some of this day nevertheless.
        self._is_unknown = ceilings is None
        self.is_listening = self._is_alone = False
        # A clock that was set back gives no second quota.
        self._day = max([day, *(min(kept) for kept in (ceilings or {}).values() if kept)])
        # What a former leader may lend for as long as it believes to lead.
        self._former = self._kept = ceilings or {}
        # Those that were heard least recently first.
        self._nodes: dict[str, KnownNode] = {}
        # What the others are charged with, who may be back on the same day.
        self._gone: dict[str, dict[str, NodeBytes]] = {}

    def set_budgets(
        self, budgets: Sequence[Budget], version: str, now: float, *, enforce: bool
    ) -> None:
        """What the document says now."""
        self._budgets, self._version, self._enforce = tuple(budgets), version, enforce
        former, self.rates = self.rates, {}
        for budget in budgets:
            self.rates[budget.name] = former.get(budget.name) or RateAllocation()
            self.rates[budget.name].rate = budget.rate
        # A budget that was removed may be back: this leader lent some of it, too.
        self._set_days(self.days, self._kept)
        for node in self._nodes.values():
            node.rates = {name: rate for name, rate in node.rates.items() if name in self.rates}
        for charged in (*(node.bytes for node in self._nodes.values()), *self._gone.values()):
            for name in charged.keys() - self.days.keys():
                del charged[name]
        self.tick(now, self._day)

    def set_nodes(self, pods: Mapping[str, int], now: float) -> None:
        """Which Node objects there are, each with the number of pods that it can have."""
        for name, node in self._nodes.items():
            node.pods = pods.get(name)
        for name, number in pods.items():
            if name not in self._nodes:
                self._nodes[name] = self._new(name, number, now)
        self.tick(now, self._day)

    def tick(self, now: float, day: int) -> None:
        """To be called each second."""
        # No node has a rate any more that another leader lent it.
        self._is_alone = now > self._began + OVERLAP + LEASE
        self.is_listening = not self._is_first and now - self._began < HOLD
        if day > self._day:
            self._begin_day(day)
        silent = self._silent(now)
        # Whom this leader has not heard at all may have been silent for long.
        expired = [node for node in silent if now - node.heard > LEASE or not node.boots]
        is_all_heard = (
            self._is_first or self._is_alone or all(node.boots for node in self._nodes.values())
        )
        for name, allocation in self.rates.items():
            allocation.look(
                _shares(name, silent),
                _shares(name, expired),
                # Also those whose machines may run on without their Node objects.
                len(self._nodes),
                is_all_heard=is_all_heard,
            )
        for name, node in list(self._nodes.items()):
            if node.pods is None and now - node.heard > DELETED:
                self._gone[name] = self._nodes.pop(name).bytes

    def _silent(self, now: float) -> list[KnownNode]:
        """Nodes whose pods are lent nothing now: those that do not report, or get no answers."""
        return [node for node in self._nodes.values() if node.is_old or now - node.heard > HOLD]

    def answer(self, name: str, report: BudgetReport, now: float) -> BudgetAnswer:
        """Answer a node's report; raises ReportRefused."""
        node = self._examined(name, report, now)
        # The order of `_nodes` is that of their last reports.
        self._nodes.pop(name, None)
        self._nodes[name] = node
        node.heard, node.is_old = now, report.age > LEASE
        is_answered = report.epoch == self.epoch
        return BudgetAnswer(
            self.epoch,
            report.sequence,
            self._version,
            self._enforce,
            None if report.version == self._version else self._budgets,
            {
                name: self._grant(
                    name, node, report.uses.get(name, _NOTHING), is_answered=is_answered
                )
                for name in self.rates
            },
        )

    def ceilings(self) -> dict[str, dict[int, int]]:
        """What has to be kept durably, where it differs from what is, before more can be lent.

        It has to be kept so that no former leader can do so any more: conditionally on what was
        read when this one began.
        """
        return {
            name: {self._day: day.wanted_ceiling, self._day + 1: day.step}
            for name, day in self.days.items()
        }

    def keep(self, ceilings: Ceilings) -> None:
        """These are kept durably now."""
        self._kept = ceilings
        for name, day in self.days.items():
            day.ceiling = max(day.ceiling, ceilings.get(name, {}).get(self._day, 0))

    def silent(self, now: float) -> list[str]:
        """Nodes that have not reported for so long that their rates are firm, longest first."""
        return [name for name, node in self._nodes.items() if now - node.heard > HOLD]

    def shares(self, budget: str) -> dict[str, NodeRate]:
        """Which node has what of a budget."""
        return {
            name: node.rates[budget] for name, node in self._nodes.items() if budget in node.rates
        }

    def _examined(self, name: str, report: BudgetReport, now: float) -> KnownNode:
        if report.epoch > self.epoch:
            raise ReportRefused("newer-epoch")
        # What runs without a Node object holds its part nevertheless.
        node = self._nodes.get(name) or self._new(name, None, now)
        # Also of a former boot: its old reports must lower nothing.
        if report.sequence <= node.boots.get(report.boot, -1):
            raise ReportRefused("old-sequence")
        node.boots[report.boot] = report.sequence
        if len(node.boots) > _FORMER_BOOTS:
            del node.boots[next(iter(node.boots))]
        return node

    def _new(self, name: str, pods: int | None, now: float) -> KnownNode:
        return KnownNode(now, pods, bytes=self._gone.pop(name, {}))

    def _grant(self, name: str, node: KnownNode, use: BudgetUse, *, is_answered: bool) -> Grant:
        allocation = self.rates[name]
        if (share := node.rates.get(name)) is None:
            share = node.rates[name] = allocation.hear(use.held)
        is_lent_here = is_answered or self._is_alone
        rate, firm = allocation.lend(
            share, use, node.pods or 0, is_lent_here=is_lent_here, is_old=node.is_old
        )
        level = 0 if math.isinf(allocation.level) else int(allocation.level)
        allowance = _UNLIMITED
        if day := self.days.get(name):
            if use.day not in (_NOTHING.day, self._day):
                use = replace(_NOTHING, day=self._day)
            if not use.day or use.allowance == _UNLIMITED:
                # It has yet to hear of the quota, or of the day's part of it.
                use = replace(use, allowance=0)
            is_lent_here = is_lent_here and name in node.bytes
            spent = node.bytes.setdefault(name, NodeBytes())
            part = rate / max(1, allocation.held)
            allowance = day.lend(spent, use, rate, part, is_lent_here=is_lent_here)
        return Grant(rate, firm, allocation.safe, level, self._day, allowance)

    def _begin_day(self, day: int) -> None:
        # Charges of a day end with it.
        self._day, self._is_unknown = day, False
        for node in self._nodes.values():
            node.bytes.clear()
        self._gone.clear()
        self._set_days({}, self._former)

    def _set_days(self, former: Mapping[str, DayAllocation], given: Ceilings) -> None:
        """`given`: no more of a day can have been lent already."""
        self.days = {}
        for budget in self._budgets:
            if budget.per_day:
                lent, kept, most = (
                    ceilings.get(budget.name, {}).get(self._day, 0)
                    for ceilings in (self._former, self._kept, given)
                )
                most = budget.per_day if self._is_unknown else most
                day = former.get(budget.name) or DayAllocation(lent, max(lent, kept), most)
                day.set_quota(budget.per_day, budget.rate)
                self.days[budget.name] = day


def _shares(budget: str, nodes: Sequence[KnownNode]) -> list[NodeRate]:
    return [node.rates.get(budget, _UNHEARD) for node in nodes]
