"""The server's arithmetic for all budgets of a cluster: which node is heard, and what it is lent.

The state is soft: a new leader listens for `HOLD` before it changes anything. Until `OVERLAP` and
`LEASE` have passed it reckons with all that nodes may hold which it has not heard. Times are
seconds of any clock that never steps back; days are those of UTC, as their number since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, BudgetUse, Grant
from netmgr.budgets.quotas import DayAllocation, NodeBytes
from netmgr.budgets.rates import NodeRate, RateAllocation
from netmgr.budgets.terms import DELETED, HOLD, LEASE, OVERLAP

Ceilings = Mapping[str, Mapping[int, int]]
"""By budget and day, the bytes of which no more may be lent before more is kept durably."""

_FORMER_BOOTS = 8
_NOTHING = BudgetUse(0, 0, 0, 0, 0, 0, 0)
_UNLIMITED = 10**18


class ReportRefused(Exception):
    """A report that is not answered; its text is the reason, a word for metrics."""


@dataclass(slots=True)
class KnownNode:
    """A node that has a Node object, or had one when it reported.

    Attributes:
        heard: when it was last heard, or at first when it was to be heard.
        pods: that it can have; None where its Node object is gone.
        boots: by the ids of its boots, the current one last, the last sequence of each.
        has_booted: since the report before.
    """

    heard: float
    pods: int | None
    boots: dict[str, int] = field(default_factory=dict)
    has_booted: bool = False
    is_expired: bool = False
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
        self._began = now
        self._is_first = ceilings is None
        self.is_listening = not self._is_first
        # A clock that was set back gives no second quota.
        self._day = max([day, *(min(kept) for kept in (ceilings or {}).values() if kept)])
        # What a former leader may lend for as long as it believes to lead.
        self._former = self._kept = ceilings or {}
        # Those that were heard least recently first.
        self._nodes: dict[str, KnownNode] = {}
        self._number = 0

    def set_budgets(
        self, budgets: Sequence[Budget], version: str, now: float, *, enforce: bool
    ) -> None:
        """What the document says now."""
        former, self.rates = self.rates, {}
        former_days, self.days = self.days, {}
        for budget in budgets:
            name = budget.name
            self.rates[name] = former.get(name) or RateAllocation(budget.rate)
            self.rates[name].rate = budget.rate
            if budget.per_day:
                self.days[name] = former_days.get(name) or self._new_day(name)
                self.days[name].set_quota(budget.per_day, budget.rate)
        for node in self._nodes.values():
            node.rates = {name: rate for name, rate in node.rates.items() if name in self.rates}
            node.bytes = {name: of for name, of in node.bytes.items() if name in self.days}
        self._budgets, self._version, self._enforce = tuple(budgets), version, enforce
        self.tick(now, self._day)

    def set_nodes(self, pods: Mapping[str, int], now: float) -> None:
        """Which Node objects there are, each with the number of pods that it can have."""
        for name, node in self._nodes.items():
            node.pods = pods.get(name)
        for name, number in pods.items():
            if name not in self._nodes:
                self._nodes[name] = KnownNode(now, number)
        self._number = len(pods)
        self.tick(now, self._day)

    def tick(self, now: float, day: int) -> None:
        """To be called each second."""
        self.is_listening = not self._is_first and now - self._began < HOLD
        if day > self._day:
            self._begin_day(day)
        silent = list(takewhile(lambda node: now - node.heard > HOLD, self._nodes.values()))
        expired = self._expired(silent, now)
        is_all_heard = (
            self._is_first
            or now - self._began > OVERLAP + LEASE
            or all(node.boots for node in self._nodes.values())
        )
        for name, allocation in self.rates.items():
            allocation.look(
                (node.rates.setdefault(name, NodeRate()) for node in silent),
                (node.rates.setdefault(name, NodeRate()) for node in expired),
                self._number,
                is_all_heard=is_all_heard,
            )

    def answer(self, name: str, report: BudgetReport, now: float) -> BudgetAnswer:
        """Answer a node's report; raises ReportRefused."""
        node = self._examined(name, report, now)
        # The order of `_nodes` is that of their last reports.
        self._nodes.pop(name, None)
        self._nodes[name] = node
        node.heard, node.is_expired = now, False
        is_listening = not self._is_first and now - self._began < HOLD
        return BudgetAnswer(
            self.epoch,
            report.sequence,
            self._version,
            self._enforce,
            None if report.version == self._version else self._budgets,
            {
                budget.name: self._grant(
                    budget.name,
                    node,
                    report.uses.get(budget.name, _NOTHING),
                    is_listening=is_listening,
                )
                for budget in self._budgets
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
        node = self._nodes.get(name) or KnownNode(now, None)
        # Also of a former boot: its old reports must lower nothing.
        if report.sequence <= node.boots.get(report.boot, -1):
            raise ReportRefused("old-sequence")
        current = next(reversed(node.boots), report.boot)
        node.has_booted = report.boot != current
        # Of two boots the one that goes on is the true one.
        if report.boot in node.boots and node.has_booted and now - node.heard <= HOLD:
            raise ReportRefused("former-boot")
        node.boots.pop(report.boot, None)
        node.boots[report.boot] = report.sequence
        if len(node.boots) > _FORMER_BOOTS:
            del node.boots[next(iter(node.boots))]
        return node

    def _grant(self, name: str, node: KnownNode, use: BudgetUse, *, is_listening: bool) -> Grant:
        allocation = self.rates[name]
        rate = node.rates.setdefault(name, NodeRate())
        if node.has_booted:
            # Whichever of both boots is the true one has no more than this.
            use = replace(use, held=max(use.held, rate.held))
        lent = allocation.lend(rate, use, node.pods or 0, is_listening=is_listening)
        level = 0 if math.isinf(allocation.level) else max(1, int(allocation.level))
        allowance = _UNLIMITED
        if day := self.days.get(name):
            if use.day != self._day:
                use = _NOTHING
            share = lent.rate / max(1, allocation.held)
            allowance = day.lend(node.bytes.setdefault(name, NodeBytes()), use, lent.rate, share)
        return Grant(lent.rate, lent.firm, lent.safe, level, self._day, allowance)

    def _expired(self, silent: Iterable[KnownNode], now: float) -> list[KnownNode]:
        """Those whose leases have ended, and which may run on at their safe rates."""
        # Whom this leader has not heard at all may have been silent for long.
        expired = [node for node in silent if now - node.heard > LEASE or not node.boots]
        for node in expired:
            if not node.is_expired:
                node.is_expired = True
                for name, rate in node.rates.items():
                    self.rates[name].forget(rate)
        return [node for node in expired if node.pods is not None or now - node.heard <= DELETED]

    def _begin_day(self, day: int) -> None:
        self._day = day
        # Charges of a day end with it, and so does the need to know who is gone.
        self._nodes = {
            name: node
            for name, node in self._nodes.items()
            if node.pods is not None or not node.is_expired
        }
        for node in self._nodes.values():
            node.bytes.clear()
        for budget in self._budgets:
            if budget.per_day:
                self.days[budget.name] = self._new_day(budget.name)
                self.days[budget.name].set_quota(budget.per_day, budget.rate)

    def _new_day(self, name: str) -> DayAllocation:
        former, kept = (
            ceilings.get(name, {}).get(self._day, 0) for ceilings in (self._former, self._kept)
        )
        return DayAllocation(former, max(former, kept))
