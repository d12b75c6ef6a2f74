"""What the server lends of one budget's bytes of a day: no more than the quota, whoever vanishes.

Each node may pass its allowance, which the kernel enforces there, and is charged with all of it
until it reports a lower one. What a former leader lent is known by its ceiling alone, which it kept
durably before it lent so much; what nodes report of it is taken off that.
"""

from __future__ import annotations

from dataclasses import dataclass

from netmgr.budgets.messages import BudgetUse
from netmgr.budgets.terms import OUTSTANDING

AHEAD_SECONDS = 600
"""For how long a node's allowance lasts at its rate, while there is enough: the server may be away
so long."""

_STEP_SECONDS = 60
_LEAST_STEPS = 8


@dataclass(slots=True)
class NodeBytes:
    """What one node has of a budget on this day; all in bytes.

    Attributes:
        count: what has passed, at most; `charged` is that and what it may pass yet.
    """

    count: int = 0
    charged: int = 0


class DayAllocation:
    """One budget's bytes on one day.

    Attributes:
        quota: of a day, in bytes.
        used: what nodes have reported; `charged` is that and what they may pass yet.
        ceiling: no more is charged until more is kept durably, `step` by step.
        former: what a former leader may have lent, of which `heard` is known.
    """

    def __init__(self, former: int, ceiling: int, most: int) -> None:
        """`most` is all that nodes can have of this day already, whoever lent it."""
        self.former, self.ceiling, self._most = former, ceiling, most
        self.quota = self.step = self.used = self.charged = self.heard = 0

    def set_quota(self, quota: int, rate: int) -> None:
        """Bytes of the day, at this rate (bits a second)."""
        self.quota = quota
        # A new leader cannot know what of it was lent: it is small.
        step = int(_STEP_SECONDS * OUTSTANDING * rate / 8)
        self.step = min(step, quota // _LEAST_STEPS)

    @property
    def reserved(self) -> int:
        """What nodes may have that have not been heard."""
        return max(0, self.former - self.heard)

    @property
    def wanted_ceiling(self) -> int:
        """What should be kept durably now; another one only when that is worth a write."""
        lent = self.charged + self.reserved
        if self.ceiling - lent > self.step // 2:
            return self.ceiling
        return max(self.ceiling, min(self.quota, lent + self.step))

    def lend(
        self, node: NodeBytes, use: BudgetUse, rate: int, share: float, *, is_lent_here: bool
    ) -> int:
        """The allowance of a node at this rate (bits a second), which is this part of all rates.

        `use` has to be of this day, or of none: then the node knows nothing of it. `is_lent_here`:
        it has been heard on this day, and since then no other leader has lent it any.
        """
        # Whoever says that more may pass would keep it from everybody else.
        unheard = 0 if is_lent_here else max(0, self._most - self.heard)
        held = min(use.allowance, node.charged + unheard)
        self.heard += max(0, held - node.charged)
        # Reports have what came in and was dropped, too: no more than the allowance has passed.
        count = min(use.bytes, held)
        if count < node.count or not use.day:
            # The node lost its count, or all that it knew: whatever it was charged with may have
            # passed, and stays.
            self.used += node.charged - node.count
            node.count = node.charged = 0
        self.used += count - node.count
        self.charged += held - node.charged
        ceiling = min(self.quota, self.ceiling) - self.reserved
        # Half of what is left is kept for who uses more than others.
        ahead = min(AHEAD_SECONDS * rate / 8, max(0, ceiling - self.used) * share / 2)
        allowance = min(count + int(ahead), held + max(0, ceiling - self.charged))
        node.count, node.charged = count, max(held, allowance)
        self.charged += node.charged - held
        return allowance
