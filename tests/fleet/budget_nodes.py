"""A node of the fleet of budgets: its downloads in virtual time, and what it reports of them.

The rates in force are those of the product's `HeldGrants`; HTB is a water level in each budget,
the inner ones first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from netmgr.backoff import Backoff
from netmgr.budgets.held import HeldGrants
from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport, BudgetUse

HELD_BACK = 0.3
"""Of an interval: what makes a pod one of those that wait."""


@dataclass(slots=True, eq=False)
class Download:
    """A pod that loads something: `path` are its budgets, inner ones first; `left` is in bytes."""

    path: tuple[int, ...]
    demand: float
    left: float
    rate: float = 0.0
    bytes: float = 0.0
    total: float = 0.0
    bound: int = -1
    waited: dict[int, float] = field(default_factory=dict)


class FleetNode:
    """`moved` is told of every change: what is in force, and what passes, of a budget; `ended` of
    downloads that are over.
    """

    def __init__(
        self,
        name: str,
        budgets: Sequence[Budget],
        moved: Callable[[float, int, int, float], None],
        ended: Callable[[int], None],
    ) -> None:
        self.name = name
        self.budgets = budgets
        self.names = [budget.name for budget in budgets]
        self.moved = moved
        self.ended = ended
        self.drift = 1.0
        """Seconds of this machine's clock in a true one."""
        self.downloads: list[Download] = []
        self.in_force = [0] * len(budgets)
        self.rates = [0.0] * len(budgets)
        self.passed = [0.0] * len(budgets)
        self.gone = [0.0] * len(budgets)
        self.day = [0] * len(budgets)
        self.counts = [0.0] * len(budgets)
        self.allowances = [math.inf] * len(budgets)
        self.metered = [place for place, budget in enumerate(budgets) if budget.per_day]
        self.by_day: Counter[tuple[int, int]] = Counter()
        """Bytes that passed, by budget and day of the server."""
        for place in self.metered:
            self.allowances[place] = 0
        self.held = HeldGrants.before_an_answer(tuple(budgets))
        self.report: BudgetReport | None = None
        self.exchange: BudgetReport | None = None
        self.backoff = Backoff()
        self.asked = 0.0
        self.boots = 0
        self.sequence = 0
        self.booted = self.looked = self.began = 0.0
        self.is_reachable = True

    @property
    def boot(self) -> str:
        return f"{self.name}-{self.boots}"

    def clock(self, now: float) -> float:
        """Seconds of boot time."""
        return (now - self.booted) * self.drift

    def start(self, now: float) -> None:
        """The machine boots: its file is there, its downloads are not."""
        self.pass_until(now)
        self.ended(len(self.downloads))
        self.downloads.clear()
        self.boots += 1
        self.sequence = 0
        self.report = None
        self.booted = now
        self.look(now)

    def lose_everything(self, now: float) -> None:
        """The file, and what the ledger and the kernel counted."""
        self.pass_until(now)
        for place in self.metered:
            self.day[place], self.counts[place], self.allowances[place] = 0, 0.0, 0
        self.held = HeldGrants.before_an_answer(tuple(self.budgets))
        self.look(now)

    def begin(self, download: Download, now: float) -> None:
        self.pass_until(now)
        self.downloads.append(download)
        self.share(now)

    def apply(self, now: float) -> None:
        """Put in force what the last answer says by its age."""
        rates = self.held.rates(self.boot, self.clock(now))
        in_force = [rates[name] for name in self.names]
        if in_force != self.in_force:
            self.pass_until(now)
            for place, rate in enumerate(in_force):
                if rate != self.in_force[place]:
                    self.moved(now, place, rate - self.in_force[place], 0.0)
            self.in_force = in_force
            self.share(now)

    def pass_until(self, now: float) -> None:
        """Count what passed, and end downloads that are over."""
        seconds, self.looked = now - self.looked, now
        if not seconds or not self.downloads:
            return
        for place, rate in enumerate(self.rates):
            # This may look late; the kernel looks at each packet.
            left = max(0.0, self.allowances[place] - self.counts[place])
            size = min(rate * seconds / 8, left)
            self.passed[place] += size
            self.counts[place] += size
            if place in self.metered:
                self.by_day[place, self.day[place]] += size
        for download in self.downloads:
            size = download.rate * seconds / 8
            download.bytes += size
            download.total += size
            download.left -= size
            if download.bound >= 0:
                waited = download.waited
                waited[download.bound] = waited.get(download.bound, 0.0) + seconds
        if any(download.left < 1 for download in self.downloads):
            for download in self.downloads:
                if download.left < 1:
                    for place in download.path:
                        self.gone[place] += download.bytes
            left = [download for download in self.downloads if download.left >= 1]
            self.ended(len(self.downloads) - len(left))
            self.downloads = left
            self.share(now)

    def share(self, now: float) -> None:
        """Share the rates in force among the downloads."""
        members: dict[int, list[Download]] = {}
        for download in self.downloads:
            download.rate, download.bound = download.demand, -1
            for place in download.path:
                members.setdefault(place, []).append(download)
        # Inner budgets have the higher places.
        rates = [0.0] * len(self.rates)
        for place in sorted(members, reverse=True):
            inside = members[place]
            most = self.in_force[place] if self.counts[place] + 1 < self.allowances[place] else 0
            if sum(download.rate for download in inside) > most:
                level = water_level([download.rate for download in inside], most)
                for download in inside:
                    if download.rate > level:
                        download.rate, download.bound = level, place
        for place, inside in members.items():
            rates[place] = sum(download.rate for download in inside)
        for place, rate in enumerate(rates):
            if rate != self.rates[place]:
                self.moved(now, place, 0, rate - self.rates[place])
        self.rates = rates

    def changes(self, now: float) -> float:
        """When something changes here by itself."""
        ends = [download.left * 8 / download.rate for download in self.downloads if download.rate]
        ends += [
            (most - count) * 8 / rate
            for most, count, rate in zip(self.allowances, self.counts, self.rates, strict=True)
            if rate and most < math.inf
        ]
        soon = now + max(1e-3, min(ends, default=math.inf))
        if (ends_at := self.held.changes(self.boot, self.clock(now))) is not None:
            soon = min(soon, self.booted + ends_at / self.drift + 1e-3)
        return soon

    def look(self, now: float) -> None:
        """Something has changed here."""
        self.pass_until(now)
        self.apply(now)
        self.share(now)

    def reported(self, now: float) -> BudgetReport:
        """The next report, of the time since the last one."""
        self.pass_until(now)
        seconds = max(now - self.began, 1e-3)
        self.began = now
        grants = self.held.answer.grants
        uses = {}
        waiting = [0] * len(self.rates)
        free = [size * 8 / seconds for size in self.gone]
        levels = [(grants[name].level if name in grants else 0) or math.inf for name in self.names]
        for download in self.downloads:
            rate = download.bytes * 8 / seconds
            for place in download.path:
                waited = download.waited.get(place, 0.0)
                if waited > HELD_BACK * seconds or rate > levels[place]:
                    waiting[place] += 1
                else:
                    free[place] += rate
            download.bytes = 0.0
            download.waited.clear()
        for place, name in enumerate(self.names):
            allowance = self.allowances[place]
            uses[name] = BudgetUse(
                self.in_force[place],
                int(self.passed[place] * 8 / seconds),
                waiting[place],
                int(free[place]),
                self.day[place],
                math.ceil(self.counts[place]),
                0 if math.isinf(allowance) else int(allowance),
            )
        self.passed = [0.0] * len(self.rates)
        self.gone = [0.0] * len(self.rates)
        self.sequence += 1
        answer = self.held.answer
        age = int(self.held.age(self.boot, self.clock(now)))
        self.report = BudgetReport(
            answer.epoch, self.boot, self.sequence, answer.version, uses, age
        )
        self.asked = self.clock(now)
        return self.report

    def receive(self, answer: BudgetAnswer, now: float) -> None:
        """An answer arrives, perhaps one to a report of a former boot."""
        if self.report is None:
            return
        try:
            self.held = self.held.after(self.report, self.asked, answer)
        except ValueError:
            return
        self.pass_until(now)
        for place, budget in enumerate(self.budgets):
            grant = answer.grants[budget.name]
            if budget.per_day and grant.day >= self.day[place]:
                if grant.day > self.day[place]:
                    self.day[place], self.counts[place] = grant.day, 0.0
                # No less than has passed since the report (`limits.quotas.Standing.resized`).
                self.allowances[place] = max(grant.allowance, math.ceil(self.counts[place]))
        self.apply(now)
        self.share(now)


def water_level(demands: list[float], most: float) -> float:
    """What each may have at most, so that all together have this much."""
    left, number = most, len(demands)
    for demand in sorted(demands):
        if demand * number >= left:
            return left / number
        left -= demand
        number -= 1
    return math.inf
