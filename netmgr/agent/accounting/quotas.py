"""What pods have used of their quotas, by the ledger's hours.

Hours ahead of the clock count as well, so a clock that is set back gives no second budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from netmgr.agent.accounting.accounts import Accounts
from netmgr.api.snapshot import QuotaState, SpentQuota
from netmgr.clock import Clock
from netmgr.ledger.history import FARTHEST, SECONDS, By, Period
from netmgr.limits import quotas
from netmgr.limits.quotas import Budget
from netmgr.model import PodRef

_Sums = Counter[tuple[str, str, str]]
"""Bytes by namespace, pod and traffic; also of each namespace, with an empty pod."""

Missed = Callable[[Budget], int]
"""Bytes of a budget that passed and are not in the ledger."""

_END = int(FARTHEST // SECONDS)


class Spending:
    """Usable from any thread."""

    def __init__(self, accounts: Accounts, clock: Clock) -> None:
        self._accounts = accounts
        self._clock = clock
        self._past: dict[Period, _Sums] = {}

    def now(self, budgets: Iterable[Budget]) -> Mapping[Budget, int]:
        """Bytes used, after a reading of all counters.

        Raises:
            KernelError: they cannot be read.
            StateError: the ledger is damaged.
        """
        self._accounts.read(at_once=True)
        return self.recent(budgets)

    def losses(self) -> object:
        """What the ledger has missed so far."""
        return self._accounts.losses()

    def recent(self, budgets: Iterable[Budget]) -> Mapping[Budget, int]:
        """Bytes used, as of the last reading.

        Raises:
            StateError: the ledger is damaged.
        """
        now = self._clock.now()
        hour = int(now // SECONDS)
        latest = self._sums(Period(hour, _END))
        # Hours that have passed do not change, and a month's are many.
        past = {period: sums for period, sums in self._past.items() if period.end == hour}
        used: dict[Budget, int] = {}
        for budget in budgets:
            period = Period(budget.began // SECONDS, hour)
            if period not in past:
                past[period] = self._sums(period)
            key = budget.namespace, budget.pod, str(budget.traffic)
            used[budget] = past[period][key] + latest[key]
        self._past = past
        return used

    def _sums(self, period: Period) -> _Sums:
        sums: _Sums = Counter()
        for row in self._accounts.usage(period, (By.POD,)) if period.first < period.end else ():
            keys = {(row["namespace"], pod, row["traffic"]) for pod in ("", row["pod"])}
            for key in keys:
                sums[key] += row["bytes"]
        return sums

    def spent(
        self, budgets: Iterable[Budget], pods: Iterable[PodRef], missed: Missed
    ) -> list[SpentQuota]:
        """The budgets that are spent; `pods` are those that the node has.

        Raises:
            StateError: the ledger is damaged.
        """
        now = self._clock.now()
        uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
        return [
            {
                "namespace": budget.namespace,
                "pod": budget.pod,
                "uid": uids.get((budget.namespace, budget.pod), ""),
                "traffic": budget.traffic,
                "period": budget.period,
                "budget": budget.bytes,
                "slow": budget.slow,
                "until": quotas.end(budget.period, now),
            }
            for budget, used in self.recent(budgets).items()
            if quotas.is_spent(budget, used + missed(budget))
        ]

    def states(self, budgets: Iterable[Budget], missed: Missed) -> list[QuotaState]:
        """Budgets, and what is used of them.

        Raises:
            StateError: the ledger is damaged.
        """
        now = self._clock.now()
        return [
            {
                "namespace": budget.namespace,
                "pod": budget.pod,
                "traffic": budget.traffic,
                "period": budget.period,
                "budget": budget.bytes,
                "used": used,
                "until": quotas.end(budget.period, now),
                "spent": quotas.is_spent(budget, used),
                "forecast": quotas.forecast(budget, used, now),
            }
            for budget, recorded in self.recent(budgets).items()
            for used in (recorded + missed(budget),)
        ]
