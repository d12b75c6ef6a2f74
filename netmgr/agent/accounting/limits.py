"""Keeps pods' internet traffic within the limits of the node document.

What the limits are follows from the document and the pods that are there, so none of it is
stored. They stay in force while no agent runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Self

from netmgr.agent.accounting.accounting import Accounting
from netmgr.agent.accounting.quotas import Spending
from netmgr.agent.core.components import Agent, Component, Query, Remnants
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import VERSION, LimitState, Snapshot
from netmgr.dataplane import sandbox
from netmgr.errors import KernelError, SetupError, StateError
from netmgr.kernel.traffic_control import ClassUsage
from netmgr.limits import shaper, tree
from netmgr.limits.rules import Peers
from netmgr.limits.shaper import Shaper
from netmgr.limits.tree import Limited, Tree
from netmgr.model import Attachment, Traffic
from netmgr.rules.classifier import Classifier

_FOLLOW_SECONDS = 1.0

log = logging.getLogger(__name__)


class Limits(Component):
    """The limits of all pods, on a node whose document has some."""

    vital = ("limits", "quotas")

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._limits = agent.document.limits
        self.honours_annotations = agent.document.limits_by_annotation
        self._spending = Spending(agent.get(Accounting).accounts, agent.clock)
        classifier = Classifier.of(agent.document, None)
        peers = Peers(agent.document.not_internet, dict(classifier.pieces) if classifier else {})
        self._shaper = agent.stack.enter_context(closing(Shaper(peers, self._spending.recent)))

    @classmethod
    def open(cls, agent: Agent) -> Self | None:
        """None without limits; a predecessor's are removed then.

        Raises:
            SetupError: nftables' library is missing.
        """
        if agent.document.limits or agent.document.limits_by_annotation:
            return cls(agent)
        for removal in shaper.remove():
            log.info("limits-removed what=%s", removal)
        return None

    def start(self) -> None:
        """Limit the pods that are there.

        Raises:
            SetupError: the kernel lacks what limits need.
        """
        self._apply()
        self._shaper.settle(self._spending)

    def begin(self, attachment: Attachment) -> None:
        """Limit a pod that was attached, if a limit is for it.

        Raises:
            KernelError: it could not be limited.
        """
        trees = self._trees_of([attachment])
        if any(pod_tree.links for pod_tree in trees.values()):
            self._shaper.add(trees)
        if any(target.charges for pod_tree in trees.values() for target in pod_tree.links.values()):
            sandbox.segment_early(attachment)

    def reconcile(self) -> None:
        """Put back what another program changed, and remove what no pod needs any more."""
        self._agent.health.repair("limits", self._apply)
        self._agent.health.attempt("quotas", self._settle)

    def _settle(self) -> None:
        # Each hour, a month's first sums take a third of a second, when no ADD is to wait for the
        # shaper.
        self._spending.recent(self._shaper.budgets)
        self._shaper.settle(self._spending)

    def tasks(self) -> Iterable[Task]:
        """Limit pods that another plugin wired as soon as they are found."""
        if not self._agent.document.cni:
            follow = partial(self._agent.health.repair, "limits", self._apply)
            yield Task(follow, _FOLLOW_SECONDS)

    def snapshot(self, snapshot: Snapshot) -> None:
        try:
            usage = self._shaper.usage()
            if budgets := self._shaper.budgets:
                snapshot["quotas"] = self._spending.states(budgets, self._shaper.missed)
        except (KernelError, StateError, SetupError) as error:
            log.warning("limits-unread error=%s", error)
            return
        snapshot["limits"] = [_state(*reading) for reading in usage if reading[0].is_shown]

    def queries(self) -> Mapping[str, Query]:
        """Spent quotas alone: this reads no counters, and may be asked of many nodes at a time."""
        return {"quotas": self._spent}

    def _spent(self, request: Mapping[str, object]) -> Mapping[str, object]:
        del request
        pods = [attachment.pod for attachment in self._agent.attachments()]
        spent = self._spending.spent(self._shaper.budgets, pods, self._shaper.missed)
        return {"version": VERSION, "spent": spent}

    def _apply(self) -> list[str]:
        # The list of pods is read within the shaper's lock: an older one must not come last.
        return self._shaper.apply(lambda: self._trees_of(self._agent.attachments()))

    def _trees_of(self, attachments: Iterable[Attachment]) -> dict[Traffic, Tree]:
        pods = [
            replace(attachment, rates=attachment.rates if self.honours_annotations else ())
            for attachment in attachments
        ]
        now = self._agent.clock.now()
        return {
            traffic: tree.tree(self._limits, pods, traffic, now)
            for traffic in (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)
        }

    @classmethod
    def remove(cls, remnants: Remnants) -> Iterator[str]:
        del remnants
        yield from shaper.remove()


def _state(limited: Limited, usage: ClassUsage) -> LimitState:
    return {
        "namespace": limited.namespace,
        "pod": limited.pod,
        "traffic": limited.traffic,
        "rate": limited.rate,
        "bytes": usage.bytes,
        "packets": usage.packets,
        "delays": usage.delayed,
        "dropped_packets": usage.dropped,
        "backlog": usage.backlog,
    }
