"""What a node keeps of the server's last answer, and the rates that are in force by its age.

The server counts what it lent until `LEASE` after the last report. So nothing that follows from an
answer's age alone may be more than was lent, until then; not even on a machine that booted again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

from netmgr.budgets import messages
from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, Grant
from netmgr.budgets.terms import GRACE, HOLD, LEASE, LEAST

NO_ANSWER = BudgetAnswer(0, 0, "", enforce=True, budgets=(), grants={})
"""What a node goes by before its first answer."""


@dataclass(frozen=True, slots=True)
class HeldGrants:
    """The last good answer.

    Attributes:
        boot: id of the boot in which it was asked for.
        asked: seconds of boot time (CLOCK_BOOTTIME) at which its report was sent.
        answer: always with its budgets.
    """

    boot: str
    asked: Annotated[float, msgspec.Meta(ge=0, lt=1e10)]
    answer: BudgetAnswer

    @classmethod
    def before_an_answer(cls, budgets: tuple[Budget, ...] = ()) -> HeldGrants:
        """What a node has that nobody has answered yet."""
        return cls("", 0.0, replace(NO_ANSWER, budgets=budgets))

    @property
    def budgets(self) -> tuple[Budget, ...]:
        return self.answer.budgets or ()

    def after(self, report: BudgetReport, asked: float, answer: BudgetAnswer) -> HeldGrants:
        """What is held from now on; ValueError if this is no answer to the node's last report."""
        if answer.epoch < self.answer.epoch:
            raise ValueError(f"it is of epoch {answer.epoch}, before {self.answer.epoch}")
        if answer.sequence != report.sequence:
            raise ValueError(f"it answers report {answer.sequence}, not {report.sequence}")
        if answer.budgets is None:
            if answer.version != self.answer.version:
                raise ValueError(f"it is for budgets that this node lacks: {answer.version}")
            answer = replace(answer, budgets=self.budgets)
        _require_grants(answer)
        return HeldGrants(report.boot, asked, answer)

    def age(self, boot: str, now: float) -> float:
        """Seconds of boot time since the report, at least; after a boot, since that."""
        # A report of the future is none of this boot.
        return now - self.asked if boot == self.boot and self.asked <= now else now

    def rates(self, boot: str, now: float) -> dict[str, int]:
        """Bits a second in force at this boot time, by budget."""
        is_of_this_boot = boot == self.boot and self.asked <= now
        age = self.age(boot, now)
        return {
            # A server that listens first may lend a node nothing that had nothing.
            budget.name: max(
                LEAST,
                _in_force(grant, age, is_of_this_boot=is_of_this_boot)
                if (grant := self.answer.grants.get(budget.name))
                else 0,
            )
            for budget in self.budgets
        }

    def changes(self, boot: str, now: float) -> float | None:
        """The boot time at which the rates in force change next if no answer comes."""
        began = now - self.age(boot, now)
        # What is in force at its end is in force until then.
        ends = (began + age for age in (HOLD, LEASE, LEASE + GRACE))
        return next((end for end in ends if end >= now), None)


def _in_force(grant: Grant, age: float, *, is_of_this_boot: bool) -> int:
    if age <= HOLD and is_of_this_boot:
        return grant.rate
    if age <= LEASE and is_of_this_boot:
        return min(grant.rate, grant.firm)
    return min(grant.rate, grant.firm, grant.safe) if age <= LEASE + GRACE else grant.safe


def decode(text: bytes | str) -> HeldGrants:
    """What the node's file says, as `messages.encode` writes it; ValueError if it is none."""
    held = messages.decode(text, HeldGrants)
    if held.answer.budgets is None:
        raise ValueError("it names no budgets")
    if held.answer.grants:
        _require_grants(held.answer)
    return held


def _require_grants(answer: BudgetAnswer) -> None:
    if answer.grants.keys() != {budget.name for budget in answer.budgets or ()}:
        raise ValueError("its grants are not those of its budgets")
