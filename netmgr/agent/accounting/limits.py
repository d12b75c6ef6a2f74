"""Keeps pods' internet traffic within the limits and quotas of the node document.

What the limits are follows from the document and the pods that are there, so none of it is
stored. They stay in force while no agent runs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Self

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.accounting.accounts import Accounts
from netmgr.agent.accounting.budgets_file import BudgetsFile
from netmgr.agent.core.components import Agent, Component, Query, Remnants
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import VERSION, Quota, QuotaState, Snapshot, SpentQuota
from netmgr.clock import Clock
from netmgr.dataplane import sandbox
from netmgr.documents.accounting import Charge
from netmgr.ledger.history import FARTHEST, SECONDS, By, Period, charged
from netmgr.limits import quotas, shaper, tree
from netmgr.limits.quotas import NodeQuota
from netmgr.limits.rules import KnownPeers
from netmgr.limits.shaper import Shaper
from netmgr.limits.tree import Tree
from netmgr.model import Attachment, Traffic
from netmgr.rules.classifier import Classifier

_FOLLOW_SECONDS = 1.0

_COPY = "budgets.json"
"""In the state directory: the cluster's budgets as they were read last."""

log = logging.getLogger(__name__)

_Sums = Counter[tuple[str, str | None, str]]
"""What quotas are charged with, by namespace, pod and traffic; also of each namespace, with an
empty pod. With None it is what a cluster's budgets are, which are of bytes on every node."""

_END = int(FARTHEST // SECONDS)


class Spending:
    """What pods have used of their quotas, by the ledger's hours. Usable from any thread.

    The node's own quotas are of bytes, or of `wire` bytes.
    """

    def __init__(self, accounts: Accounts, clock: Clock, *, wire: bool) -> None:
        self._accounts = accounts
        self._clock = clock
        self._wire = wire
        self._past: dict[Period, _Sums] = {}

    def now(self, budgets: Iterable[NodeQuota]) -> Mapping[NodeQuota, int]:
        """Bytes used, after a reading of all counters."""
        self._accounts.read(at_once=True)
        return self.recent(budgets)

    def recent(self, budgets: Iterable[NodeQuota]) -> Mapping[NodeQuota, int]:
        """Bytes used, as of the last reading."""
        now = self._clock.now()
        hour = int(now // SECONDS)
        # Hours ahead of the clock as well: one that is set back gives no second budget.
        latest = self._sums(Period(hour, _END))
        # Hours that have passed do not change, and a month's are many.
        past = {period: sums for period, sums in self._past.items() if period.end == hour}
        used: dict[NodeQuota, int] = {}
        for budget in budgets:
            period = Period(budget.began // SECONDS, hour)
            if period not in past:
                past[period] = self._sums(period)
            # A budget's day may have begun by the server's clock and not yet by the node's.
            is_ahead = period.first > hour
            since = self._sums(Period(period.first, _END)) if is_ahead else latest
            used[budget] = _charged(past[period], budget) + _charged(since, budget)
        self._past = past
        return used

    def _sums(self, period: Period) -> _Sums:
        sums: _Sums = Counter()
        for row in self._accounts.usage(period, (By.POD,)) if period.first < period.end else ():
            namespace, traffic = row["namespace"], row["traffic"]
            sums[namespace, None, traffic] += row["bytes"]
            size = charged(row, wire=self._wire)
            for pod in {"", row["pod"]}:
                sums[namespace, pod, traffic] += size
        return sums


def _charged(sums: _Sums, budget: NodeQuota) -> int:
    if not budget.budget:
        return sums[budget.namespace, budget.pod, str(budget.traffic)]
    return sum(
        bytes_
        for (namespace, pod, traffic), bytes_ in sums.items()
        if pod is None and traffic == budget.traffic and budget.charges(namespace, "")
    )


class Limits(Component):
    """The limits of all pods, on a node whose document has some, or which is to keep budgets."""

    vital = ("limits", "quotas")

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self.honours_annotations = agent.document.limits_by_annotation
        accounting = agent.get(NodeAccounting)
        self._losses = accounting.ledger.losses
        is_wire = agent.document.accounting.charge is Charge.WIRE
        self.spending = Spending(accounting.accounts, agent.clock, wire=is_wire)
        path = agent.document.budgets_file
        copy = agent.document.state_dir / _COPY
        self.budgets = BudgetsFile(path, copy, agent.clock) if path else None
        classifier = Classifier.of(agent.document)
        peers = KnownPeers(
            agent.document.not_internet, dict(classifier.pieces) if classifier else {}
        )
        at_links = accounting.rules.backend.abilities.counts_at_links
        shaping = Shaper(peers, self.spending.recent, at_links=at_links)
        self.shaper = agent.stack.enter_context(closing(shaping))

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """None without limits; a predecessor's are removed then."""
        if not agent.document.budgets_file:
            (agent.document.state_dir / _COPY).unlink(missing_ok=True)
        if agent.document.limits_pods:
            return cls(agent)
        for removal in shaper.remove():
            log.info("limits-removed what=%s", removal)
        return None

    def start(self) -> None:
        if self.budgets:
            self._agent.health.attempt("budgets-file", self.budgets.read)
        self.apply()
        self.correct()

    def begin(self, attachment: Attachment) -> None:
        """Limit a pod that was attached, if a limit is for it."""
        trees = self._trees_of([attachment])
        if any(pod_tree.links for pod_tree in trees.values()):
            self.shaper.add(trees)
        if any(target.charges for pod_tree in trees.values() for target in pod_tree.links.values()):
            # A packet that is segmented later is charged with one header: by UDP_SEGMENT a process
            # passed 24 times its quota.
            sandbox.segment_early(attachment)

    def reconcile(self) -> None:
        self._agent.health.repair("limits", self.apply)
        self._agent.health.attempt("quotas", self._settle)

    def _settle(self) -> None:
        # Each hour, a month's first sums take a third of a second, when no ADD is to wait for the
        # shaper.
        self.spending.recent(self.shaper.budgets)
        self.correct()

    def correct(self) -> None:
        """Have each quota be spent when what is left of it has passed."""
        now = self._agent.clock.now()
        self.shaper.correct_quotas(self.spending.now, self._losses, now)

    def tasks(self) -> Iterable[Task]:
        # No ADD calls `begin` for pods that another plugin wires.
        if not self._agent.document.cni:
            repair = partial(self._agent.health.repair, "limits", self.apply)
            yield Task(repair, _FOLLOW_SECONDS)

    def snapshot(self, snapshot: Snapshot) -> None:
        usage = self.shaper.usage()
        if self.shaper.budgets:
            snapshot["quotas"] = self._quota_states()
        snapshot["limits"] = [
            {
                "namespace": limited.namespace,
                "pod": limited.pod,
                "traffic": limited.traffic,
                "rate": limited.rate,
                "bytes": class_usage.bytes,
                "packets": class_usage.packets,
                "delays": class_usage.delayed,
                "dropped_packets": class_usage.dropped,
                "backlog": class_usage.backlog,
            }
            for limited, class_usage in usage
            if limited.is_shown
        ]

    def queries(self) -> Mapping[str, Query]:
        # Spent quotas alone, without a reading of counters: many nodes are asked at a time.
        return {"quotas": self._spent}

    def _spent(self, _: Mapping[str, object]) -> Mapping[str, object]:
        pods = [attachment.pod for attachment in self._agent.attachments()]
        uids = {(pod.namespace, pod.name): pod.uid for pod in pods}
        spent: list[SpentQuota] = [
            {**quota, "uid": uids.get((budget.namespace, budget.pod), ""), "slow": budget.slow}
            for budget, quota, used in self._quotas(self._agent.clock.now())
            if quotas.is_spent(budget, used)
        ]
        return {"version": VERSION, "spent": spent}

    def _quota_states(self) -> list[QuotaState]:
        now = self._agent.clock.now()
        return [
            {
                **quota,
                "used": used,
                "spent": quotas.is_spent(budget, used),
                "forecast": quotas.forecast(budget, used, now),
            }
            for budget, quota, used in self._quotas(now)
        ]

    def _quotas(self, now: float) -> Iterator[tuple[NodeQuota, Quota, int]]:
        """Each with its bytes used, also those that passed and are not in the ledger."""
        own = [budget for budget in self.shaper.budgets if not budget.budget]
        for budget, recorded in self.spending.recent(own).items():
            quota: Quota = {
                "namespace": budget.namespace,
                "pod": budget.pod,
                "traffic": budget.traffic,
                "period": budget.period,
                "budget": budget.bytes,
                "until": quotas.end(budget.period, now),
            }
            yield budget, quota, recorded + self.shaper.missed(budget)

    def apply(self) -> list[str]:
        """Have the kernel hold all limits; describes what another program had changed."""
        # The list of pods is read within the shaper's lock: an older one must not come last.
        return self.shaper.apply(lambda: self._trees_of(self._agent.attachments()))

    def _trees_of(self, attachments: Iterable[Attachment]) -> dict[Traffic, Tree]:
        pods = [
            replace(attachment, rates=attachment.rates if self.honours_annotations else ())
            for attachment in attachments
        ]
        now = self._agent.clock.now()
        held = self.budgets.in_force() if self.budgets else ()
        return {
            traffic: tree.tree(self._agent.document.limits, pods, traffic, now, held)
            for traffic in (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)
        }

    @classmethod
    def remove(cls, _remnants: Remnants) -> Iterator[str]:
        yield from shaper.remove()
