"""Gives each Node its allocation of the plan, as Node.spec.podCIDRs.

A round reads nothing from the server: a watch follows the Nodes, and the claims are what was last
written. A round decides, writes claims, and only then the Nodes; each patch is bound to the Node's
UID and resourceVersion. Whatever was refused or lost is decided again in the next round.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from netmgr.clock import Clock
from netmgr.errors import ApiError
from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeAllocations
from netmgr.kube.controller.assigning import Decision, decide, released, takeovers
from netmgr.kube.controller.claim_store import ClaimStore
from netmgr.kube.controller.events import Events, WarningEvent, event_of
from netmgr.kube.controller.health import Telemetry
from netmgr.kube.controller.node_document import RANGES
from netmgr.kube.controller.nodes import NodeView
from netmgr.kube.controller.plan_watch import PlanWatch
from netmgr.kube.controller.reconciling import WRITERS, Leadership, patch, try_each

log = logging.getLogger(__name__)

_STATES = ("held", "cooldown", "free")

# A wall clock this far off since the last round was set, not slewed.
STEP_SECONDS = 1.0


class Assigner:
    def __init__(
        self,
        leadership: Leadership,
        plan: Callable[[], PlanWatch | None],
        namespace: str,
        quarantine: float,
        telemetry: Telemetry,
    ) -> None:
        """Send nothing yet. While there is no plan, no Node is written.

        Claims are kept in `namespace`; `quarantine` is a cooldown's time in seconds.
        """
        self._leadership = leadership
        self._api = leadership.api
        self._plan = plan
        self._namespace = namespace
        self._quarantine = quarantine
        self._telemetry = telemetry
        self._clock: Clock = leadership.concurrency
        self._events = Events(leadership)
        self._store: ClaimStore | None = None
        # The wall clock as it is now: cooldowns outlive this process, and other machines read when
        # they began, but setting the clock must not end one.
        self._epoch = self._offset()
        # What the last decision was made from, if it left nothing to write, and how long it holds:
        # one about 7,500 Nodes takes some 20 ms, and rounds are two seconds apart.
        self._settled: tuple[NodeAllocations, int] | None = None
        self._ends = -math.inf
        self._refusals: Sequence[WarningEvent] = ()
        self._pools: set[str] = set()

    def reconcile(self) -> bool:
        plan = self._plan()
        if plan is None:
            return True
        try:
            if self._store is None:
                store = ClaimStore(self._api, self._namespace, plan.cluster)
                store.load()
                log.info("claims-read number=%s", len(store.claims))
                self._store = store
            return self._round(plan, self._store)
        except ApiError:
            # The claims may be out of date by now, or only half of them were written.
            self._store = None
            self._settled = None
            raise

    def _round(self, plan: PlanWatch, store: ClaimStore) -> bool:
        allocations = plan.allocations(store.claims)
        self._telemetry.plan_refused.set(bool(plan.refused))
        if not self._follow_clock(store):
            return False
        now = self._clock.monotonic() + self._epoch
        # Before the Nodes are looked at: what changes meanwhile is for another round.
        generation = self._leadership.nodes.generation
        if self._settled == (allocations, generation) and now < self._ends:
            return self._events.report(self._refusals)
        self._settled = None
        views = self._leadership.nodes.views()
        decision = decide(allocations, store.claims, views, now, self._quarantine)
        # `lost` only spares the server requests. A leader unaware of its replacement is stopped by
        # the claims' resourceVersion.
        if self._leadership.lost.is_set() or not self._is_current(store, views, decision):
            return False
        # Claims first: of two controllers that give the same allocation away, one is refused here,
        # before any Node has it.
        if decision.claims and not store.write(decision.claims):
            self._telemetry.conflicts.labels("claims").inc()
            return False
        known = {view.name: view for view in views}
        assignments = [(known[name], held) for name, held in decision.assignments.items()]
        settled, refused = try_each(self._leadership, assignments, self._assign)
        refusals = list(map(event_of, decision.refusals))
        are_reported = self._events.report(refusals)
        self._count(allocations, store, decision, known)
        if refused is not None:
            raise refused
        if settled:
            self._settled, self._refusals = (allocations, generation), refusals
            self._ends = self._next_end(store)
        return settled and are_reported

    def _next_end(self, store: ClaimStore) -> float:
        """When the next cooldown is over, in seconds since the epoch."""
        since = (claim.released for claim in store.claims.values() if claim.released is not None)
        return min(since, default=math.inf) + self._quarantine

    def _follow_clock(self, store: ClaimStore) -> bool:
        """After a step of the wall clock, begin running cooldowns anew; False on a conflict."""
        offset = self._offset()
        if abs(offset - self._epoch) < STEP_SECONDS:
            return True
        log.warning("clock-stepped seconds=%.0f", offset - self._epoch)
        now = self._clock.monotonic() + offset
        cooling = [claim for claim in store.claims.values() if claim.released is not None]
        self._settled = None
        if not store.write({claim.index: replace(claim, released=now) for claim in cooling}):
            return False
        # What is written later has the new time: the next leader, whose clock may always have been
        # right, would take it for older than it is.
        self._epoch = offset
        return True

    def _offset(self) -> float:
        """How far the wall clock is ahead of the monotonic one, in seconds."""
        return self._clock.now() - self._clock.monotonic()

    def _is_current(self, store: ClaimStore, views: list[NodeView], decision: Decision) -> bool:
        """Ask for Nodes that lose an allocation or take another's: the watch may lag behind."""
        known = {view.uid for view in views}
        gone = (claim for claim in released(store.claims, decision) if claim.uid not in known)
        unsure = [(claim, False) for claim in gone]
        unsure += [(claim, True) for claim in takeovers(store.claims, decision)]
        return all(self._leadership.concurrency.map(WRITERS, self._is_as_listed, unsure))

    def _is_as_listed(self, unsure: tuple[Claim, bool]) -> bool:
        claim, is_listed = unsure
        node = self._api.find(f"/api/v1/nodes/{claim.node}")
        # With another UID it is a new Node of the same name: the claim's own is gone all the same.
        is_there = node is not None and node["metadata"]["uid"] == claim.uid
        if is_there != is_listed:
            log.warning("watch-lags node=%s index=%s", claim.node, claim.index)
        return is_there == is_listed

    def _assign(self, assignment: tuple[NodeView, NodeAllocation]) -> bool:
        """Write a Node's ranges; False when it changed meanwhile and another round must decide."""
        view, allocation = assignment
        nodes = self._leadership.nodes
        current = nodes.current(view.name)
        if current is None:
            return True
        body = {
            "metadata": {
                # Both differ for a Node that was deleted and recreated: it has to be decided anew.
                "uid": view.uid,
                "resourceVersion": current[1],
                "annotations": {RANGES: allocation.annotation or None},
            },
            "spec": {
                # The API requires both: the first entry of podCIDRs must equal podCIDR.
                "podCIDR": str(allocation.cidrs[0]),
                "podCIDRs": [str(cidr) for cidr in allocation.cidrs],
            },
        }
        if not patch(nodes, self._api.patch, f"/api/v1/nodes/{view.name}", body):
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
    ) -> None:
        """Count Nodes and allocations by state, as the writes of this round left them."""
        now = {view.name: view for view in self._leadership.nodes.views()}
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
        # A pool no longer in the plan would keep its last figures, and their alerts.
        for pool, state in product(self._pools - allocations.capacity.keys(), _STATES):
            self._telemetry.allocations.remove(pool, state)
        self._pools = set(allocations.capacity)
        for index, claim in store.claims.items():
            taken[index.pool, "held" if claim.released is None else "cooldown"] += 1
        for pool, capacity in allocations.capacity.items():
            taken[pool, "free"] = capacity - taken[pool, "held"] - taken[pool, "cooldown"]
            for state in _STATES:
                self._telemetry.allocations.labels(pool, state).set(taken[pool, state])


def _is_served(view: NodeView | None, allocation: NodeAllocation | None) -> bool:
    """Whether a Node has what was decided for it; without a decision it keeps what it has."""
    if view is None:
        return False
    if allocation is None:
        return bool(view.cidrs)
    return (view.cidrs, view.annotation) == (allocation.cidrs, allocation.annotation)
