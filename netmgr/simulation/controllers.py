"""The cluster's controllers: the product's, each with its election, watches and reconcilers."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import FunctionType, ModuleType

from netmgr.kube.api import Api
from netmgr.kube.assigner import AssignerSettings
from netmgr.kube.controller import Controller, Maker, Settings, standard_reconcilers
from netmgr.kube.election import Candidate, Term
from netmgr.kube.health import Health, Telemetry
from netmgr.kube.node_conditions import NodeConditions
from netmgr.kube.node_taints import UnhealthyTaint
from netmgr.kube.plan_watch import PlanWatch
from netmgr.kube.reconciling import Leadership, Reconciler
from netmgr.simulation.api_server import ApiServer
from netmgr.simulation.virtual_time import VirtualTime

POOL_LABEL = "netmgr.io/node-pool"
AGENT_NAMESPACE, CLAIM_NAMESPACE = "netmgr", "netmgr-claims"
REPLICAS = 2

CLIENT = "controller-"
"""How their names as clients of the API server begin."""

QUARANTINE_SECONDS = 600.0


class Controllers:
    """Controllers, of which one leads.

    Attributes:
        led: who led from when until when, in seconds since the beginning; infinite until now.
    """

    def __init__(
        self, time: VirtualTime, server: ApiServer, plan: PlanWatch, request_seconds: float
    ) -> None:
        self.led: list[tuple[str, float, float]] = []
        self._time = time
        self._server = server
        self._plan = plan
        self._request_seconds = request_seconds
        self._leading: dict[str, tuple[float, list[Reconciler]]] = {}
        self._started = 0

    def start(self) -> None:
        """Start one more, as a Deployment does."""
        name = f"{CLIENT}{self._started}"
        self._started += 1
        api = self._server.api(name, self._request_seconds)
        health, telemetry = Health(self._time.monotonic), Telemetry(api)
        settings = Settings(name, POOL_LABEL, AGENT_NAMESPACE)
        work = Controller(api, settings, [*self._makers(name)], telemetry, health, self._time)

        def lead(lost: threading.Event) -> None:
            self._leading[name] = self._time.monotonic(), []
            work.lead(lost)
            self._note_end(name)

        term = Term(CLAIM_NAMESPACE, "netmgr-controller", name)
        candidate = Candidate(api, term, lead, threading.Event(), health, self._time)
        self._time.start_for(name, candidate.run, name)

    def _makers(self, name: str) -> Iterator[Maker]:
        settings = AssignerSettings(CLAIM_NAMESPACE, QUARANTINE_SECONDS)
        makers: list[Maker] = [
            *standard_reconcilers(lambda: self._plan, settings),
            lambda leadership, telemetry: NodeConditions(leadership, None, telemetry),
            lambda leadership, telemetry: UnhealthyTaint(leadership, telemetry, None, 0),
        ]
        for make in makers:
            yield partial(self._make, name, make)

    def _make(
        self, name: str, make: Maker, leadership: Leadership, telemetry: Telemetry
    ) -> Reconciler:
        made = make(leadership, telemetry)
        self._leading[name][1].append(made)
        return made

    def _note_end(self, name: str) -> None:
        began, _ = self._leading.pop(name)
        self.led.append((name, began, self._time.monotonic()))

    def kill_leader(self) -> None:
        """End the process that leads at once; its Lease stays as it is."""
        for name in list(self._leading):
            self._time.kill(name)
            self._note_end(name)

    def finish(self) -> None:
        """Note those that lead until now."""
        for name in list(self._leading):
            self._note_end(name)

    def memory(self) -> int:
        """Bytes of what a leader knows of the cluster: Nodes, agents' pods, claims, the plan."""
        return _size([made for _, reconcilers in self._leading.values() for made in reconcilers])


def _size(root: object) -> int:
    """Bytes of an object and all that it refers to, but for code and what it asks."""
    pending, known, total = [root], {id(root)}, 0
    while pending:
        found = pending.pop()
        total += sys.getsizeof(found)
        for other in gc.get_referents(found):
            if id(other) not in known and not isinstance(other, _APART):
                known.add(id(other))
                pending.append(other)
    return total


_APART = (type, ModuleType, FunctionType, Api, VirtualTime, Controller)
