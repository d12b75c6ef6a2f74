"""The range controller: gives each Node its allocation of the plan, as Node.spec.podCIDRs.

A round reads nothing from the server: a watch follows the Nodes, and the claims are what was last
written. A round decides, writes claims, and only then the Nodes; each patch is bound to the Node's
UID and resourceVersion. Whatever was refused or lost is decided again in the next round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from netmgr.backoff import Backoff
from netmgr.errors import ApiAway, ApiError
from netmgr.kube.allocations import Claim, NodeAllocation, NodeAllocations
from netmgr.kube.api import CONFLICT, NOT_FOUND, Api
from netmgr.kube.assigning import Decision, NodeView, decide, released
from netmgr.kube.claim_store import ClaimStore
from netmgr.kube.health import Health, Telemetry
from netmgr.kube.node_document import RANGES
from netmgr.kube.nodes import ClusterNodes, Events
from netmgr.kube.plan_watch import PlanWatch
from netmgr.kube.reflector import Reflector

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
"""Pause between rounds without any change: for cooldowns that end, and a new plan."""

GATHER_SECONDS = 0.1
"""Nodes that come within this time of each other are decided on together."""

ROUNDS = "rounds"
"""Their name in `Health`."""

WRITERS = 4
"""Nodes written at a time: 7,500 take half a minute, and a server has 200 writes in flight."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says."""

    namespace: str
    cluster: str
    pool_label: str
    quarantine: float
    """Seconds that an allocation is in cooldown after its Node is gone."""
    identity: str


class Controller:
    """Assigns allocations while it leads."""

    def __init__(
        self, api: Api, settings: Settings, plan: PlanWatch, telemetry: Telemetry, health: Health
    ) -> None:
        """Ask nothing yet. Every round, and every Node written in it, is a beat of `health`."""
        self._api = api
        self._settings = settings
        self._plan = plan
        self._telemetry = telemetry
        self._health = health
        self._events = Events(api, settings.identity)

    def lead(self, lost: threading.Event) -> None:
        """Work until the leadership is lost, or given up."""
        nodes = ClusterNodes(self._settings.pool_label)
        reflector = Reflector(self._api, "/api/v1/nodes", nodes, lost)
        reflector.start()
        backoff, store = Backoff(), None
        self._telemetry.leader.set(1)
        while not lost.is_set():
            self._health.beat(ROUNDS)
            if reflector.failure is not None:
                raise reflector.failure
            if not reflector.synced.wait(1):
                continue
            try:
                store = store or self._open()
                settled = self._round(nodes, store, lost)
                backoff.reset()
            except ApiError as error:
                # The claims may be out of date by now, or only half of them were written.
                store, settled = None, False
                _log_failure(error, backoff.failures)
            self._telemetry.lists.set(reflector.lists)
            self._telemetry.watches.set(reflector.watches)
            _wait(nodes.changed, lost, ROUND_SECONDS if settled else backoff.next())
        self._telemetry.leader.set(0)
        self._health.idle(ROUNDS)

    def _open(self) -> ClaimStore:
        store = ClaimStore(self._api, self._settings.namespace, self._settings.cluster)
        store.load()
        log.info("claims-read number=%s", len(store.claims))
        return store

    def _round(self, nodes: ClusterNodes, store: ClaimStore, lost: threading.Event) -> bool:
        """One round; False when another should follow soon."""
        # Before the Nodes are read: a change from now on starts another round.
        nodes.changed.clear()
        allocations = self._plan.allocations(store.claims)
        self._telemetry.plan_refused.set(bool(self._plan.refused))
        views = nodes.views()
        # Wall clock: cooldowns outlive this process, and other machines read when they began.
        decision = decide(allocations, store.claims, views, time.time(), self._settings.quarantine)
        # `lost` only spares the server requests. A leader that does not know that it was replaced
        # is stopped by the claims' resourceVersion.
        if lost.is_set() or not self._are_gone(store, views, decision):
            return False
        # Claims first: of two controllers that give the same allocation away, one is refused here,
        # before any Node has it.
        if decision.claims and not store.write(decision.claims):
            self._telemetry.conflicts.labels("claims").inc()
            return False
        known = {view.name: view for view in views}
        refused: list[ApiError] = []
        settled = self._assign_all(nodes, known, decision, lost, refused)
        self._events.report(decision.refusals)
        self._count(allocations, store, decision, known, nodes)
        if refused:
            raise refused[0]
        return settled

    def _are_gone(self, store: ClaimStore, views: list[NodeView], decision: Decision) -> bool:
        """Ask for each Node whose cooldown would begin: the watch may lag behind."""
        known = {view.uid for view in views}
        unsure = [claim for claim in released(store.claims, decision) if claim.uid not in known]
        if not unsure:
            return True
        with ThreadPoolExecutor(WRITERS, "read") as readers:
            # A list, because `all` alone would stop at the first False and drop the errors behind
            # it.
            return all(list(readers.map(self._is_gone, unsure)))

    def _is_gone(self, claim: Claim) -> bool:
        try:
            found = self._api.get(f"/api/v1/nodes/{claim.node}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return True
        # A new Node of the same name: the claim's own is gone all the same.
        if found["metadata"]["uid"] != claim.uid:
            return True
        log.warning("watch-lags node=%s keeps=%s", claim.node, claim.index)
        return False

    def _assign_all(
        self,
        nodes: ClusterNodes,
        views: Mapping[str, NodeView],
        decision: Decision,
        lost: threading.Event,
        refused: list[ApiError],
    ) -> bool:
        """Write every Node; errors of single Nodes go into `refused` and delay no other."""

        def assign(entry: tuple[str, NodeAllocation]) -> bool:
            try:
                return lost.is_set() or self._assign(nodes, views[entry[0]], entry[1])
            # The server is away for every other Node as well: end the round, and wait.
            except ApiAway:
                raise
            except ApiError as error:
                refused.append(error)
                return False

        if not decision.assignments:
            return True
        with ThreadPoolExecutor(WRITERS, "write") as writers:
            return all(list(writers.map(assign, decision.assignments.items())))

    def _assign(self, nodes: ClusterNodes, view: NodeView, allocation: NodeAllocation) -> bool:
        """Write a Node's ranges; False when it changed meanwhile and another round must decide."""
        self._health.beat(ROUNDS)
        version = nodes.version(view.name)
        if version is None:
            return True
        body = {
            "metadata": {
                # With another UID the server answers 409: a Node that was deleted and made again
                # under its name has to be decided on anew.
                "uid": view.uid,
                "resourceVersion": version,
                "annotations": {RANGES: allocation.annotation or None},
            },
            "spec": {
                # The API requires both: the first entry of podCIDRs must equal podCIDR.
                "podCIDR": str(allocation.cidrs[0]),
                "podCIDRs": [str(cidr) for cidr in allocation.cidrs],
            },
        }
        try:
            # Applied at once: the watch delivers it later, and until then the next round would find
            # the Node without podCIDRs and write it again.
            nodes.change(self._api.patch(f"/api/v1/nodes/{view.name}", body))
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            self._telemetry.conflicts.labels("node").inc()
            return False
        self._telemetry.assigned.inc()
        log.info(
            "assigned node=%s index=%s ranges=%s",
            view.name,
            allocation.index,
            ",".join(map(str, allocation.ranges)),
        )
        return True

    def _count(
        self,
        allocations: NodeAllocations,
        store: ClaimStore,
        decision: Decision,
        views: Mapping[str, NodeView],
        nodes: ClusterNodes,
    ) -> None:
        """Count Nodes and allocations by state, as the writes of this round left them."""
        now = {view.name: view for view in nodes.views()}
        refused = {refusal.node.name for refusal in decision.refusals}
        states = Counter(refused=len(refused))
        for name in views.keys() - refused:
            if views[name].runs_pods:
                is_served = _is_served(now.get(name), decision.assignments.get(name))
                states["served" if is_served else "waiting"] += 1
        for state in ("refused", "served", "waiting"):
            self._telemetry.nodes.labels(state).set(states[state])
        self._count_allocations(allocations, store)

    def _count_allocations(self, allocations: NodeAllocations, store: ClaimStore) -> None:
        taken: Counter[tuple[str, str]] = Counter()
        for index, claim in store.claims.items():
            taken[index.pool, "held" if claim.released is None else "cooldown"] += 1
        for pool, capacity in allocations.capacity.items():
            taken[pool, "free"] = capacity - taken[pool, "held"] - taken[pool, "cooldown"]
            for state in ("held", "cooldown", "free"):
                self._telemetry.allocations.labels(pool, state).set(taken[pool, state])


def _log_failure(error: ApiError, failures: int) -> None:
    level = logging.WARNING if isinstance(error, ApiAway) else logging.ERROR
    log.log(level, "round-failed failures=%s reason=%s", failures, error.message)


def _is_served(view: NodeView | None, allocation: NodeAllocation | None) -> bool:
    """Whether a Node has what was decided for it; without a decision it keeps what it has."""
    if view is None:
        return False
    if allocation is None:
        return bool(view.cidrs)
    return (view.cidrs, view.annotation) == (allocation.cidrs, allocation.annotation)


def _wait(changed: threading.Event, lost: threading.Event, seconds: float) -> None:
    """Until something changed, the time has passed, or the leadership is lost."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not lost.is_set():
        # Two events cannot be waited for together; this bounds how late a lost leadership is
        # noticed.
        if changed.wait(min(left, 0.5)):
            time.sleep(GATHER_SECONDS)
            return
