"""The controller: follows the Nodes and the agents' pods, and runs its reconcilers while it leads.

Nodes and pods have one watch each, whatever the number of reconcilers. Each reconciler
(`kube/controller/reconciling.py`) writes one kind of thing; one that is refused delays no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from netmgr.backoff import Backoff
from netmgr.errors import ApiError, ApiUnavailable
from netmgr.kube.client.agent_pods import SELECTOR, agent_pod
from netmgr.kube.client.api import Api
from netmgr.kube.client.concurrency import THREADS, Concurrency
from netmgr.kube.client.object_cache import ObjectCache
from netmgr.kube.client.reflector import Reflector
from netmgr.kube.controller.agent_ranges import AgentRanges
from netmgr.kube.controller.assigner import Assigner
from netmgr.kube.controller.health import ControllerHealth, Telemetry
from netmgr.kube.controller.node_conditions import NodeConditions
from netmgr.kube.controller.node_lister import NodeLister
from netmgr.kube.controller.node_reports import NodeReports
from netmgr.kube.controller.node_taints import UnhealthyTaint
from netmgr.kube.controller.nodes import node_view
from netmgr.kube.controller.plan_watch import PlanWatch
from netmgr.kube.controller.quota_events import QuotaEvents
from netmgr.kube.controller.reconciling import ClusterReconciler, Leadership
from netmgr.kube.controller.startup import Startup

if TYPE_CHECKING:
    # Not otherwise: a controller without budgets needs no aiohttp.
    from netmgr.kube.controller.budgets import BudgetService

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
"""Pause between rounds without any change: for cooldowns that end, and a new plan."""

GATHER_SECONDS = 0.1
"""Changes that come within this time of each other are decided on together."""

ROUNDS = "rounds"
"""Their name in `ControllerHealth`."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    identity: str
    pool_label: str
    agent_namespace: str
    """Of the agents' DaemonSet."""
    claim_namespace: str
    """Of the ConfigMaps that say which Node holds what."""
    quarantine: float
    """Seconds that an allocation is in cooldown after its Node is gone."""
    lists_nodes: bool = False
    """Whether agents get the list of Nodes from which they keep routes."""
    quota_events: bool = False
    node_health: bool = False
    taint_share: Fraction | None = None
    """Of a node pool that may be tainted; None removes every taint."""
    taint_after: float = 0
    """Seconds that a Node has to be unhealthy before that."""


@dataclass(frozen=True, slots=True)
class Controller:
    api: Api
    settings: ControllerSettings
    plan: Callable[[], PlanWatch | None] | None
    """Without one, no ranges are assigned."""
    telemetry: Telemetry
    health: ControllerHealth
    """Every round is a beat of it."""
    concurrency: Concurrency = THREADS
    budgets: BudgetService | None = None

    def lead(self, lost: threading.Event) -> None:
        changed = threading.Event()
        view_of = partial(node_view, pool_label=self.settings.pool_label)
        nodes, agents = ObjectCache(view_of, changed), ObjectCache(agent_pod, changed)
        pods = f"/api/v1/namespaces/{self.settings.agent_namespace}/pods"
        beside = self.concurrency
        beat = partial(self.health.beat, ROUNDS)
        leadership = Leadership(
            self.api, self.settings.identity, nodes, agents, pods, lost, beat, beside
        )
        reconcilers = list(self._reconcilers(leadership))
        followed = {
            "nodes": Reflector(self.api, "/api/v1/nodes", nodes, lost, concurrency=beside),
            "agents": Reflector(
                self.api, pods, agents, lost, selector=SELECTOR, concurrency=beside
            ),
        }
        for reflector in followed.values():
            reflector.start()
        backoff = Backoff()
        self.telemetry.leader.set(1)
        while not lost.is_set():
            beat()
            for name, reflector in followed.items():
                if reflector.failure is not None:
                    raise reflector.failure
                self.telemetry.lists.labels(name).set(reflector.lists)
                self.telemetry.watches.labels(name).set(reflector.watches)
            # The pods are not waited for: ranges are assigned before there is any agent.
            # A second at a time: a reflector may fail meanwhile, or the leadership be lost.
            if not beside.wait(followed["nodes"].synced, 1):
                continue
            # Before anything is read: a change from now on starts another round.
            changed.clear()
            is_settled = self._round(reconcilers, backoff)
            self._wait(changed, lost, ROUND_SECONDS if is_settled else backoff.next())
        self.telemetry.leader.set(0)
        # A follower has no rounds, and does not hang for that.
        self.health.idle(ROUNDS)

    def _reconcilers(self, leadership: Leadership) -> Iterator[ClusterReconciler]:
        """In the order of every round."""
        settings, telemetry, plan = self.settings, self.telemetry, self.plan
        if plan is not None:
            namespace, quarantine = settings.claim_namespace, settings.quarantine
            # First: what the others write follows from the podCIDRs, which are in the copy at once.
            yield Assigner(leadership, plan, namespace, quarantine, telemetry)
        if self.budgets is not None:
            yield self.budgets.reconciler(leadership, settings.claim_namespace, telemetry)
        yield AgentRanges(leadership)
        yield Startup(leadership, lambda: bool(plan and plan()))
        if settings.lists_nodes:
            yield NodeLister(leadership, settings.agent_namespace)
        is_asking = settings.quota_events or settings.node_health
        # Each node is asked once for both.
        reports = NodeReports(leadership) if is_asking else None
        if reports and settings.quota_events:
            yield QuotaEvents(leadership, reports)
        # Also by what kubelets say of preflights, for which nobody is asked.
        yield NodeConditions(leadership, reports if settings.node_health else None, telemetry)
        # Also without a share, since taints of a controller that had one are removed.
        yield UnhealthyTaint(leadership, telemetry, settings.taint_share, settings.taint_after)

    def _round(self, reconcilers: Sequence[ClusterReconciler], backoff: Backoff) -> bool:
        """Run every reconciler once; False when another round should follow soon."""
        is_settled, is_refused = True, False
        for reconciler in reconcilers:
            try:
                # Not `and`, which would leave out those behind one that has more to do.
                is_settled &= reconciler.reconcile()
            except ApiError as error:
                is_refused = True
                level = logging.WARNING if isinstance(error, ApiUnavailable) else logging.ERROR
                log.log(
                    level, "round-failed failures=%s reason=%s", backoff.failures, error.message
                )
        if not is_refused:
            backoff.reset()
        return is_settled and not is_refused

    def _wait(self, changed: threading.Event, lost: threading.Event, seconds: float) -> None:
        """Until something changed, the time has passed, or the leadership is lost."""
        beside = self.concurrency
        deadline = beside.monotonic() + seconds
        while (left := deadline - beside.monotonic()) > 0 and not lost.is_set():
            # Two events cannot be waited for together; this bounds how late a lost leadership is
            # noticed.
            if beside.wait(changed, min(left, 0.5)):
                beside.sleep(GATHER_SECONDS)
                return
