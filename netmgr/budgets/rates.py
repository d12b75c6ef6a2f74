"""What the server lends of one budget's rate: running sums, and an answer to each report.

Nobody's demand is guessed, and nothing is sorted. The level is what each pod that is held back gets
if what the others leave is shared by all of these; every node is lent what its pods have, and the
level for those that wait. What is lent counts until a later report says that less is in force.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from netmgr.budgets import terms
from netmgr.budgets.messages import BudgetUse
from netmgr.budgets.terms import AIM, GROWTH, HEADROOM, OUTSTANDING, SPARE

FASTEST_LINK = 100_000_000_000
"""Bits a second of a node's link; nothing is known about it."""

_FIRST_STEP = 10_000
"""The part of a budget that each waiting pod adds to what a node may grow by."""


@dataclass(slots=True)
class NodeRate:
    """What one node has of a budget; rates in bits a second.

    Attributes:
        held: in force at most.
        free: what pods have that are not held back; `waiting` is the number of those that are.
        growing: those of them that cannot have the level yet, but `growth` together.
        level: the last that the node was told; infinite if no pod has to be held back.
        safe: the last that the node was told.
        is_heard: whether it has reported to this leader.
    """

    held: int = 0
    free: int = 0
    waiting: int = 0
    growing: int = 0
    growth: int = 0
    level: float = math.inf
    safe: int = 0
    is_heard: bool = False


@dataclass(frozen=True, slots=True)
class Lent:
    """`rate` until it is old, then `firm`, then `safe`."""

    rate: int
    firm: int
    safe: int


class RateAllocation:
    """One budget's rate.

    Attributes:
        rate: of the budget.
        level: bits a second of each pod that is held back; infinite if none has to be.
        held: of all nodes.
        heard: what nodes had in force when they were first heard, all together.
    """

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.level = math.inf
        self.held = self.heard = self.free = self.waiting = self.growing = self.growth = 0
        self._nodes = 1
        self._expired = 0  # bits a second of nodes whose leases have ended
        self._least = 0
        self._is_all_heard = False

    @property
    def safe(self) -> int:
        """What each node may have whatever the others do."""
        return self.rate // self._nodes

    @property
    def outstanding(self) -> int:
        """The most that is in force on all nodes together, as far as can be known."""
        return self.held + self._elsewhere

    @property
    def _elsewhere(self) -> int:
        """What nodes have that are not heard."""
        # What the former leader lent is no more than the most, but nobody else knows to whom.
        unknown = 0 if self._is_all_heard else int(OUTSTANDING * self.rate) - self.heard
        return max(self._expired, unknown)

    def look(
        self,
        silent: Iterable[NodeRate],
        expired: Iterable[NodeRate],
        nodes: int,
        *,
        is_all_heard: bool,
    ) -> None:
        """Find the level: who is silent, whose leases have ended, and how many Nodes there are.

        `is_all_heard` says that no node can hold what another leader lent it.
        """
        self._nodes, self._is_all_heard = max(1, nodes), is_all_heard
        # The number of Nodes was another one when they were told.
        self._expired = sum(max(node.safe, self.safe) for node in expired)
        held, free, waiting = self._expired, self.free, self.waiting
        growing, growth = self.growing, self.growth
        for node in silent:
            held, free, waiting = held + node.held, free - node.free, waiting - node.waiting
            growing, growth = growing - node.growing, growth - node.growth
        room = AIM * self.rate - held - HEADROOM * free
        if room <= 0:
            # Pods that were free are held back by this, a few more each second; nobody's at once.
            self.level = max(1.0, min(self.level, self.rate) / 2)
        elif room <= growth:
            self.level = room / waiting
        else:
            # What those leave that still grow is for the others.
            others = waiting - growing
            self.level = max(room / waiting, (room - growth) / others) if others else math.inf
        spare = SPARE * max(0.0, OUTSTANDING * self.rate - self.held - self._expired)
        self._least = max(terms.floor(self.rate, self._nodes), int(spare / self._nodes))

    def lend(self, node: NodeRate, use: BudgetUse, pods: int, *, is_listening: bool) -> Lent:
        """Answer a report of a node that can have so many pods.

        `is_listening`: too little is known to change anything.
        """
        self._learn(node, use, pods)
        before = node.held
        wanted = HEADROOM * node.free
        if node.waiting:
            level = self.level * node.waiting
            wanted += min(level, node.growth) if node.growing else level
        rate = int(min(max(wanted, self._least), FASTEST_LINK))
        if rate > before:
            unlent = max(0, int(OUTSTANDING * self.rate) - self.outstanding)
            rate = before + min(rate - before, unlent)
        if is_listening:
            rate = before
        node.held = max(before, rate)
        self.held += node.held - before
        node.level, node.safe = self.level, self.safe
        share = self.rate / max(self.rate, self.outstanding)
        return Lent(rate, int(rate * share), self.safe)

    def _learn(self, node: NodeRate, use: BudgetUse, pods: int) -> None:
        waiting = min(use.waiting, pods)
        # None of the other pods has more than the level.
        others = pods - waiting
        most = others * node.level if others else 0.0
        free = int(min(use.free, FASTEST_LINK, most))
        growth = int(GROWTH * min(use.rate, FASTEST_LINK) + waiting * self.rate / _FIRST_STEP)
        growing = waiting if growth < self.level * waiting else 0
        growth = growth if growing else 0
        held = min(use.held, FASTEST_LINK)
        if not node.is_heard:
            node.is_heard = True
            self.heard += held
        self.held += held - node.held
        self.free += free - node.free
        self.waiting += waiting - node.waiting
        self.growing += growing - node.growing
        self.growth += growth - node.growth
        node.held, node.free, node.waiting = held, free, waiting
        node.growing, node.growth = growing, growth

    def forget(self, node: NodeRate) -> None:
        """A lease ended: what the node has now is its safe rate."""
        self.held -= node.held
        self.free -= node.free
        self.waiting -= node.waiting
        self.growing -= node.growing
        self.growth -= node.growth
        node.held = node.free = node.waiting = node.growing = node.growth = 0
