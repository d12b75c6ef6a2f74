"""Watches the node's figures for problems that last, for whoever looks after the cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from netmgr.agent import diagnosis
from netmgr.agent.components import Agent, Component, Query
from netmgr.agent.diagnosis import Look
from netmgr.agent.queries import Readers
from netmgr.agent.scheduler import Task
from netmgr.agent.uplinks import uplinks
from netmgr.api.snapshot import VERSION, Problem, Snapshot
from netmgr.dataplane.taps import read_taps
from netmgr.kernel import links

ROUNDS = 6
"""Repairs come once in `reconcile_seconds`, and all figures are looked at once in so many of them:
a minute, by default."""

log = logging.getLogger(__name__)


class Problems(Component):
    """The problems that the node's network has for good."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._looks: list[Look] = []
        self._uplinks: frozenset[str] = frozenset()
        self._problems: list[Problem] = []

    def tasks(self) -> Iterable[Task]:
        """Look at all figures now and then."""
        yield Task(self._try_to_look, ROUNDS * self._agent.document.reconcile_seconds)

    def _try_to_look(self) -> None:
        self._agent.health.attempt("problems", self._look)

    def _look(self) -> None:
        snapshot = self._agent.get(Readers).snapshot_now()
        carried = links.read_carried()
        # Without its uplink a node has no default route either, which would name it.
        former, self._uplinks = self._uplinks, uplinks(self._agent.document) or self._uplinks
        found = [carried[name] for name in self._uplinks if name in carried]
        look = replace(
            diagnosis.look_at(snapshot, found, _now()),
            taps=read_taps(self._uplinks),
            missing=(former | self._uplinks) - carried.keys(),
        )
        self._looks = diagnosis.recent([*self._looks, look])
        problems = diagnosis.problems(self._looks)
        known = {one["reason"] for one in self._problems}
        for one in problems:
            if one["reason"] not in known:
                log.warning("node-unhealthy reason=%s message=%s", one["reason"], one["message"])
        for reason in sorted(known - {one["reason"] for one in problems}):
            log.info("node-healthy-again reason=%s", reason)
        self._problems = problems

    def snapshot(self, snapshot: Snapshot) -> None:
        """The problems found last."""
        snapshot["problems"] = self._problems

    def queries(self) -> Mapping[str, Query]:
        """The problems alone, which many nodes may be asked for at a time."""
        return {"problems": lambda _: {"version": VERSION, "problems": self._problems}}


def _now() -> float:
    return time.monotonic()
