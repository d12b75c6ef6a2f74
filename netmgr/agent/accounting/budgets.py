"""Keeps pods within the node's part of the cluster's budgets, and tells what they make of it.

`Limits` puts the budgets into the kernel. Here is what changes them: another file, and their own
end, also while whoever writes the file is dead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Self

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.accounting.budgets_file import BudgetsFile, boot_time
from netmgr.agent.accounting.limits import Limits
from netmgr.agent.core.components import Agent, Component, Query
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import VERSION, BudgetState, Fault, Problem, Snapshot
from netmgr.budgets.messages import Budget, BudgetUse
from netmgr.budgets.terms import PERIOD
from netmgr.documents.quantity import written
from netmgr.file_version import versions
from netmgr.kernel.inotify import Watch
from netmgr.limits import budgets, held_back
from netmgr.limits.budgets import NodeBudget
from netmgr.limits.held_back import Look
from netmgr.model import Attachment, Traffic

_LOOK_SECONDS, _LEAST_SECONDS = 1.0, 0.5
# Whoever writes the file must not keep this busy.
_GATHERING_SECONDS = 0.05

log = logging.getLogger(__name__)


class Budgets(Component):
    """The budgets of a cluster, on a node whose document names their file."""

    vital = ("budgets",)

    def __init__(self, agent: Agent, limits: Limits, file: BudgetsFile) -> None:
        super().__init__(agent)
        self._limits, self._file = limits, file
        self._ledger = agent.get(NodeAccounting).ledger
        directory = file.path.parent
        self._watch = agent.stack.enter_context(closing(Watch(directory)))
        self._version = versions([file.path])
        self._applied: tuple[NodeBudget, ...] = ()
        self._lock = threading.Lock()
        self._looks: list[Look] = []
        self._was_enforced = True
        self._throttled: Counter[tuple[str, str]] = Counter()
        """Milliseconds, by namespace and budget."""

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        limits = agent.find(Limits)
        return cls(agent, limits, limits.budgets) if limits and limits.budgets else None

    def tasks(self) -> Iterable[Task]:
        # Apart from repairs, which may take long: a rate ends when its time has come.
        yield Task(self._follow, _LOOK_SECONDS, wakes=self._watch.fileno(), thread="budgets")

    def _follow(self) -> float:
        time.sleep(_GATHERING_SECONDS)
        attempt = self._agent.health.attempt
        if self._watch.drain() is None:
            attempt("budgets-file", self._watch.renew)
        if (version := versions([self._file.path])) != self._version:
            self._version = version
            attempt("budgets-file", self._file.read)
        attempt("budgets", self._apply)
        attempt("budgets-seen", self._look)
        return min(_LOOK_SECONDS, self._file.next_change)

    def _apply(self) -> None:
        former, held = self._applied, self._file.in_force()
        if _days(held) != _days(former):
            self._agent.health.repaired("limits", self._limits.apply())
        else:
            self._limits.shaper.retune(self._file.in_force)
        if [budget.allowance for budget in held] != [budget.allowance for budget in former]:
            self._limits.correct()
        self._applied = held

    def _look(self) -> None:
        now = boot_time()
        is_enforced = self._file.held.answer.enforce
        if is_enforced is not self._was_enforced:
            # The ledger's bytes are not the classes'.
            self._was_enforced, self._looks = is_enforced, []
        former = self._looks[-1] if self._looks else None
        # The ledger is seldom read.
        if former and now - former.at < (_LEAST_SECONDS if is_enforced else PERIOD):
            return
        if is_enforced:
            look = held_back.seen(now, self._limits.shaper.usage())
        else:
            totals = self._ledger.totals()
            held = self._file.known()
            look = held_back.reckoned(now, totals.namespaces, totals.pods, held, former)
        recent = [other for other in self._looks if other.at >= now - PERIOD - _LOOK_SECONDS]
        with self._lock:
            self._looks = [*(recent or self._looks[-1:]), look]
            if former:
                self._throttled.update(held_back.throttled(look, now - former.at))

    def problems(self) -> Iterable[Problem]:
        if self._file.fault:
            yield {"reason": Fault.BUDGETS, "message": self._file.fault}

    def queries(self) -> Mapping[str, Query]:
        return {"budgets": self._report}

    def _report(self, _: Mapping[str, object]) -> Mapping[str, object]:
        """What a `BudgetReport` needs."""
        uses = {budget.name: asdict(use) for budget, use in self._uses()}
        return {"version": VERSION, "boot": self._file.boot, "uses": uses}

    def _uses(self) -> Iterator[tuple[NodeBudget, BudgetUse]]:
        held = self._file.known()
        with self._lock:
            looks = self._looks
        rates = held_back.rates(looks, held)
        quotas = {budget.name: quota for budget in held if (quota := budget.quota)}
        used = self._limits.spending.recent(quotas.values())
        shaper = self._limits.shaper
        for budget in held:
            made = rates[budget.name]
            bytes_, allowance = 0, budget.allowance
            if quota := quotas.get(budget.name):
                bytes_, allowance = used[quota] + shaper.missed(quota), shaper.size(quota)
            yield (
                budget,
                BudgetUse(
                    *(budget.rate, made.rate, made.waiting, made.free),
                    *(budget.day, bytes_, allowance),
                ),
            )

    def snapshot(self, snapshot: Snapshot) -> None:
        answer = self._file.held.answer
        with self._lock:
            sent = self._looks[-1].budgets if self._looks else {}
            throttled = sorted(self._throttled.items())
        uses: list[BudgetState] = [
            {
                "budget": budget.name,
                "traffic": budget.budget.traffic,
                "limit": budget.budget.rate,
                "sent": sent.get(budget.name, 0),
                "is_quota": budget.budget.per_day > 0,
                "use": asdict(use),
            }
            for budget, use in self._uses()
        ]
        snapshot["budgets"] = {
            "epoch": answer.epoch,
            "enforced": answer.enforce,
            "age": self._file.age,
            "uses": uses,
            "throttled": [
                {"namespace": namespace, "budget": budget, "seconds": milliseconds / 1000}
                for (namespace, budget), milliseconds in throttled
            ],
        }

    def explain(self, attachment: Attachment) -> Iterator[str]:
        pod = attachment.pod
        answer, held = self._file.held.answer, self._file.known()
        would = "" if answer.enforce else "would have been "
        with self._lock:
            looks = self._looks
        for traffic in (Traffic.INTERNET_IN, Traffic.INTERNET_OUT):
            blocking = [
                look.pods.get((pod.namespace, pod.name, traffic), (0, ""))[1] for look in looks
            ]
            for budget in budgets.around(held, pod.namespace, traffic):
                name, whole = budget.name, written(budget.budget.rate)
                share = f"{blocking.count(name) / max(1, len(blocking)):.0%}"
                yield (
                    f"budget {name}: {traffic} {written(budget.rate)} of {whole} on this node; "
                    f"{would}held back {share} of the last {PERIOD:.0f} s"
                )


def _days(held: Iterable[NodeBudget]) -> list[tuple[Budget, int]]:
    """What the kernel's chains and classes follow from."""
    return [(budget.budget, budget.day) for budget in held]
