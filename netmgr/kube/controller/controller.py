"""The controller: follows the Nodes and the agents' pods, and runs its reconcilers while it leads.

Nodes and pods have one watch each, whatever the number of reconcilers. Each reconciler
(`kube/controller/reconciling.py`) writes one kind of thing; one that is refused delays no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from netmgr.backoff import Backoff
from netmgr.errors import ApiAway, ApiError
from netmgr.kube.client.agent_pods import SELECTOR, agent_pod
from netmgr.kube.client.api import Api
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.client.reflector import Reflector
from netmgr.kube.controller.agent_ranges import AgentRanges
from netmgr.kube.controller.assigner import Assigner, AssignerSettings
from netmgr.kube.controller.health import Health, Telemetry
from netmgr.kube.controller.nodes import node_view
from netmgr.kube.controller.plan_watch import PlanWatch
from netmgr.kube.controller.reconciling import Leadership, Reconciler
from netmgr.kube.controller.startup import Startup

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
"""Pause between rounds without any change: for cooldowns that end, and a new plan."""

GATHER_SECONDS = 0.1
"""Changes that come within this time of each other are decided on together."""

ROUNDS = "rounds"
"""Their name in `Health`."""

Maker = Callable[[Leadership, Telemetry], Reconciler]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    identity: str
    pool_label: str
    agent_namespace: str
    """Namespace of the agents' DaemonSet."""


class Controller:
    """Follows the cluster and runs the reconcilers while it leads."""

    def __init__(
        self,
        api: Api,
        settings: Settings,
        reconcilers: Sequence[Maker],
        telemetry: Telemetry,
        health: Health,
        concurrency: Concurrency = THREADS,
    ) -> None:
        """Send nothing yet. Every round is a beat of `health`."""
        self._api = api
        self._settings = settings
        self._reconcilers = reconcilers
        self._telemetry = telemetry
        self._health = health
        self._concurrency = concurrency

    def lead(self, lost: threading.Event) -> None:
        """Work until the leadership is lost, or given up."""
        changed = threading.Event()
        view_of = partial(node_view, pool_label=self._settings.pool_label)
        nodes, agents = ObjectCache(view_of, changed), ObjectCache(agent_pod, changed)
        pods = f"/api/v1/namespaces/{self._settings.agent_namespace}/pods"
        beside = self._concurrency
        leadership = Leadership(
            self._api, self._settings.identity, nodes, agents, pods, lost, self._beat, beside
        )
        reconcilers = [make(leadership, self._telemetry) for make in self._reconcilers]
        followed = {
            "nodes": Reflector(self._api, "/api/v1/nodes", nodes, lost, concurrency=beside),
            "agents": Reflector(
                self._api, pods, agents, lost, selector=SELECTOR, concurrency=beside
            ),
        }
        for reflector in followed.values():
            reflector.start()
        backoff = Backoff()
        self._telemetry.leader.set(1)
        while not lost.is_set():
            self._beat()
            for name, reflector in followed.items():
                if reflector.failure is not None:
                    raise reflector.failure
                self._telemetry.lists.labels(name).set(reflector.lists)
                self._telemetry.watches.labels(name).set(reflector.watches)
            # The pods are not waited for: ranges are assigned before there is any agent.
            if not beside.wait(followed["nodes"].synced, 1):
                continue
            # Before anything is read: a change from now on starts another round.
            changed.clear()
            is_settled = self._round(reconcilers, backoff)
            self._wait(changed, lost, ROUND_SECONDS if is_settled else backoff.next())
        self._telemetry.leader.set(0)
        self._health.idle(ROUNDS)

    def _beat(self) -> None:
        self._health.beat(ROUNDS)

    def _round(self, reconcilers: Sequence[Reconciler], backoff: Backoff) -> bool:
        """Run every reconciler once; False when another round should follow soon."""
        is_settled, is_refused = True, False
        for reconciler in reconcilers:
            try:
                is_settled &= reconciler.reconcile()
            except ApiError as error:
                is_refused = True
                _log_failure(error, backoff.failures)
        if not is_refused:
            backoff.reset()
        return is_settled and not is_refused

    def _wait(self, changed: threading.Event, lost: threading.Event, seconds: float) -> None:
        """Until something changed, the time has passed, or the leadership is lost."""
        beside = self._concurrency
        deadline = beside.monotonic() + seconds
        while (left := deadline - beside.monotonic()) > 0 and not lost.is_set():
            # Two events cannot be waited for together; this bounds how late a lost leadership is
            # noticed.
            if beside.wait(changed, min(left, 0.5)):
                beside.sleep(GATHER_SECONDS)
                return


def standard_reconcilers(
    plan: Callable[[], PlanWatch | None] | None, settings: AssignerSettings
) -> Iterator[Maker]:
    """What every controller does, in the order of every round; with a plan it assigns ranges."""
    if plan is not None:
        yield lambda leadership, telemetry: Assigner(leadership, settings, plan, telemetry)
    yield lambda leadership, _: AgentRanges(leadership)
    yield lambda leadership, _: Startup(leadership, lambda: bool(plan and plan()))


def _log_failure(error: ApiError, failures: int) -> None:
    level = logging.WARNING if isinstance(error, ApiAway) else logging.ERROR
    log.log(level, "round-failed failures=%s reason=%s", failures, error.message)
