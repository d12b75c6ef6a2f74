"""Reports which pods fill the node's connection table, which all of its pods share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import PodConnections, Snapshot
from netmgr.kernel import conntrack

COUNT_SHARE = 0.005
"""Connections are counted in this share of a processor at most: there may be many."""

FULLEST = 10


class Tracking(Component):
    """The pods that began the most connections."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._fullest: list[PodConnections] = []

    def tasks(self) -> Iterable[Task]:
        seconds = self._agent.document.reconcile_seconds
        count = partial(self._agent.health.attempt, "tracking", self._count)
        yield Task(count, seconds, share=COUNT_SHARE)

    def _count(self) -> None:
        if conntrack.occupancy() is None:
            return
        pods = {
            address: attachment.pod
            for attachment in self._agent.attachments()
            for address in attachment.addresses
        }
        by_pod: Counter[tuple[str, str]] = Counter()
        for address, connections in conntrack.begun_by(pods).items():
            by_pod[pods[address].namespace, pods[address].name] += connections
        self._fullest = [
            {"namespace": namespace, "pod": pod, "connections": connections}
            for (namespace, pod), connections in by_pod.most_common(FULLEST)
        ]

    def snapshot(self, snapshot: Snapshot) -> None:
        """How full the table is, and who fills it."""
        if occupancy := conntrack.occupancy():
            snapshot["tracking"] = {
                "connections": occupancy.connections,
                "most": occupancy.most,
                "pods": self._fullest,
            }
