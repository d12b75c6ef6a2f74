"""What the server lends of one budget's rate: running sums, and an answer to each report.

Nobody's demand is guessed, and nothing is sorted. The level is what each pod that is held back gets
if what the others leave is shared by all of these; every node is lent what its pods have, and the
level for those that wait. What is lent counts until a later report says that less is in force.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from netmgr.budgets.messages import BudgetUse
from netmgr.budgets.terms import AIM, GROWTH, HEADROOM, LEAST, NEWCOMERS, OUTSTANDING, SPARE

FASTEST_LINK = 100_000_000_000
"""Bits a second of a node's link; nothing is known about it."""


@dataclass(slots=True)
class NodeRate:
    """What one node has of a budget; rates in bits a second.

    Attributes:
        held: in force at most.
        free: what pods have that are not held back; `waiting` is the number of those that are.
        growth: what these can have together until they can have the level; 0 from then on.
        level: the last that the node was told; infinite if no pod has to be held back.
        safe: the last that the node was told.
        lent: by this leader, and in force at most.
    """

    held: int = 0
    free: int = 0
    waiting: int = 0
    growth: int = 0
    level: float = math.inf
    safe: int = 0
    lent: int = 0

    @property
    def growing(self) -> int:
        """Those that wait and cannot have the level yet."""
        return self.waiting if self.growth else 0


class RateAllocation:
    """One budget's rate.

    Attributes:
        rate: of the budget.
        level: bits a second of each pod that is held back; infinite if none has to be.
        safe: what each node may have whatever the others do.
        held: of all nodes.
        heard: what nodes had in force when they were first heard, all together.
    """

    def __init__(self) -> None:
        self.level = math.inf
        self.rate = self.safe = self.held = self.heard = 0
        self.free = self.waiting = self.growing = self.growth = 0
        self._elsewhere = self._lendable = self._least = 0

    @property
    def outstanding(self) -> int:
        """The most that is in force on all nodes together, as far as can be known."""
        return self.held + self._elsewhere

    def hear(self, held: int) -> NodeRate:
        """A node reports for the first time, and has this in force."""
        self.heard += min(held, FASTEST_LINK)
        return NodeRate()

    def look(
        self,
        silent: Sequence[NodeRate],
        expired: Sequence[NodeRate],
        nodes: int,
        *,
        is_all_heard: bool,
    ) -> None:
        """Find the level: who is silent, whose leases have ended, and how many Nodes there are.

        `is_all_heard` says that no node can hold what another leader lent it.
        """
        nodes = max(1, nodes)
        self.safe = self.rate // nodes
        for node in expired:
            self._set(node, 0, 0, 0, 0)
            node.lent = 0
        safe = sum(map(self._safe_of, expired))
        # What the former leader lent is no more than the most, but nobody else knows to whom.
        unknown = 0 if is_all_heard else int(OUTSTANDING * self.rate) - self.heard
        self._elsewhere = max(safe, unknown)
        self._lendable = int(OUTSTANDING * self.rate) - self._elsewhere
        held = safe + sum(node.held for node in silent)
        free = self.free - sum(node.free for node in silent)
        waiting = self.waiting - sum(node.waiting for node in silent)
        growth = self.growth - sum(node.growth for node in silent)
        growing = self.growing - sum(node.growing for node in silent)
        room = AIM * self.rate - held - HEADROOM * free
        if room <= 0:
            # Pods that were free are held back by this, a few more each second; nobody's at once.
            self.level = max(1.0, min(self.level, self.rate) / 2)
        elif waiting > growing or room <= growth:
            # What those leave that still grow is for the others.
            self.level = max(1.0, room / waiting, (room - growth) / max(1, waiting - growing))
        else:
            self.level = math.inf
        spare = SPARE * (OUTSTANDING * self.rate - self.held - safe)
        self._least = max(LEAST, int(spare / nodes))

    def lend(
        self, node: NodeRate, use: BudgetUse, pods: int, *, is_lent_here: bool, is_old: bool
    ) -> tuple[int, int]:
        """Answer a report of a node that can have so many pods: its rate, and the firm one.

        `is_lent_here`: no other leader has lent it what is in force. `is_old`: the lease of the
        last answer that it got has ended.
        """
        # Whoever says that more is in force would keep it from everybody else.
        held = min(use.held, max(node.lent, node.safe) if is_lent_here else FASTEST_LINK)
        self._learn(node, use, held, pods, is_old=is_old)
        wanted = HEADROOM * node.free
        if node.waiting:
            level = self.level * node.waiting
            wanted += min(level, node.growth) if node.growth else level
        rate = int(min(max(wanted, self._least), FASTEST_LINK))
        rate = min(rate, max(held, node.held + self._lendable - self.held))
        raised = max(0, rate - node.held)
        node.held += raised
        self.held += raised
        node.level, node.safe = self.level, self.safe
        node.lent = max(held if is_lent_here else node.lent, rate)
        return rate, rate * self.rate // max(self.rate, self.outstanding)

    def _learn(self, node: NodeRate, use: BudgetUse, held: int, pods: int, *, is_old: bool) -> None:
        waiting = min(use.waiting, pods)
        # None of the other pods has more than the level.
        others = pods - waiting
        most = others * node.level if others else 0.0
        free = int(min(use.free, FASTEST_LINK, most))
        first = waiting * max(0, self._lendable - self.held) / (NEWCOMERS + self.waiting)
        growth = int(GROWTH * min(use.rate, FASTEST_LINK) + first)
        growth = growth if growth < self.level * waiting else 0
        if is_old or not node.held:
            # It takes its safe rate if it misses this answer as well.
            held = max(held, self._safe_of(node))
        self._set(node, held, free, waiting, growth)

    def _safe_of(self, node: NodeRate) -> int:
        # The number of Nodes was another one when it was told; nobody tells it another since.
        return node.safe or self.safe

    def _set(self, node: NodeRate, held: int, free: int, waiting: int, growth: int) -> None:
        self.held += held - node.held
        self.free += free - node.free
        self.waiting += waiting - node.waiting
        self.growth += growth - node.growth
        self.growing -= node.growing
        node.held, node.free, node.waiting, node.growth = held, free, waiting, growth
        self.growing += node.growing
