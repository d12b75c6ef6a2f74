"""What is wrong with the node's network, for whoever looks after the cluster.

What a component knows to be wrong is reported at once. The node's figures are watched for problems
that last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from netmgr.agent.core.components import PLUGIN, Agent, Component, Query
from netmgr.agent.core.scheduler import Task
from netmgr.agent.core.uplinks import uplinks
from netmgr.agent.health import diagnosis
from netmgr.agent.health.diagnosis import Look
from netmgr.agent.queries import Readers
from netmgr.api.snapshot import VERSION, Fault, Problem, Snapshot
from netmgr.dataplane.taps import read_taps
from netmgr.errors import LimitedConnectivity, NodeFull, NotReady
from netmgr.kernel import links

ROUNDS = 6
"""Repairs come once in `reconcile_seconds`, and all figures are looked at once in so many of them:
a minute, by default."""

log = logging.getLogger(__name__)


class Problems(Component):
    """The lasting problems of the node's network."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._looks: list[Look] = []
        self._uplinks: frozenset[str] = frozenset()
        self._lasting: list[Problem] = []
        self._known: set[str] = set()

    def tasks(self) -> Iterable[Task]:
        yield Task(self._try_to_look, ROUNDS * self._agent.document.reconcile_seconds)

    def _try_to_look(self) -> None:
        self._agent.health.attempt("problems", self._look)

    def _look(self) -> None:
        snapshot = self._agent.get(Readers).snapshot_now()
        carried = links.read_carried()
        # Without its uplink a node has no default route either, which would name it.
        former, self._uplinks = self._uplinks, uplinks(self._agent.document) or self._uplinks
        carried_by_uplinks = [carried[name] for name in self._uplinks if name in carried]
        look = replace(
            diagnosis.look_at(snapshot, carried_by_uplinks, time.monotonic()),
            taps=read_taps(self._uplinks),
            missing=(former | self._uplinks) - carried.keys(),
        )
        self._looks = diagnosis.recent([*self._looks, look])
        self._lasting = diagnosis.problems(self._looks)

    def _present(self) -> list[Problem]:
        problems = [*self._of_components(), *self._lasting]
        known, self._known = self._known, {problem["reason"] for problem in problems}
        for problem in problems:
            if problem["reason"] not in known:
                log.warning(
                    "node-unhealthy reason=%s message=%s", problem["reason"], problem["message"]
                )
        for reason in sorted(known - self._known):
            log.info("node-healthy-again reason=%s", reason)
        return problems

    def _of_components(self) -> Iterator[Problem]:
        if not self._agent.serves:
            return
        for component in self._agent.components:
            yield from component.problems()
        try:
            self._agent.check_health(apart_from=(PLUGIN,))
        except NodeFull:
            # Pods that have used up its addresses or its disk are no fault of the network.
            pass
        except (NotReady, LimitedConnectivity) as error:
            yield {"reason": Fault.NOT_READY, "message": error.message}

    def snapshot(self, snapshot: Snapshot) -> None:
        snapshot["problems"] = self._present()

    def queries(self) -> Mapping[str, Query]:
        """The problems alone, which many nodes may be asked for at a time."""
        return {"problems": lambda _: {"version": VERSION, "problems": self._present()}}
