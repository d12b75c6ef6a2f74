"""Writes taints of Nodes: a list that is replaced as a whole, and the taint of unhealthy Nodes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from netmgr.kube.client.api import Object
from netmgr.kube.controller import tainting
from netmgr.kube.controller.health import Telemetry
from netmgr.kube.controller.nodes import UNHEALTHY_TAINT, NodeView
from netmgr.kube.controller.reconciling import Leadership, patch, write_each

Taints = list[Mapping[str, str]]

log = logging.getLogger(__name__)


def rewrite(leadership: Leadership, view: NodeView, change: Callable[[Taints], Taints]) -> bool:
    """Change a Node's taints; False when another program changed the Node meanwhile."""
    # Both of one moment: if the version were newer than the list, a taint added in between would
    # be lost.
    current = leadership.nodes.current(view.name)
    if current is None or current[0].uid != view.uid:
        return True
    before, version = list(current[0].taints), current[1]
    after = change(before)
    if after == before:
        return True
    body: Object = {
        "metadata": {"uid": view.uid, "resourceVersion": version},
        "spec": {"taints": after},
    }
    return patch(leadership.nodes, leadership.api.patch, f"/api/v1/nodes/{view.name}", body)


def without(taints: Iterable[Mapping[str, str]], key: str) -> Taints:
    return [taint for taint in taints if taint["key"] != key]


class UnhealthyTaint:
    """Keeps new pods from Nodes whose networks are bad, by what `tainting` decides."""

    def __init__(
        self, leadership: Leadership, telemetry: Telemetry, share: Fraction | None, after: float
    ) -> None:
        """`share` of a node pool may be tainted; with None, taints are removed.

        A condition has to be False for `after` seconds, from when this leader knows it.
        """
        self._leadership = leadership
        self._telemetry = telemetry
        self._share = share
        self._after = after
        self._since: dict[str, float] = {}
        self._withheld: frozenset[str] = frozenset()
        self._settled, self._ends = -1, -math.inf

    def reconcile(self) -> bool:
        # Before anything is read: what changes meanwhile is for another round.
        generation = self._leadership.nodes.generation
        now = self._leadership.concurrency.monotonic()
        if generation == self._settled and now < self._ends:
            return True
        views = self._leadership.nodes.views()
        unhealthy = {view.name for view in views if view.health and view.health[0] == "False"}
        self._since = {name: self._since.get(name, now) for name in unhealthy}
        lasting = {name for name, at in self._since.items() if at + self._after <= now}
        decision = tainting.decide(views, lasting, self._share)
        self._note(views, decision)
        # Removals come first, additions in a later round, which our own writes bring about: so
        # there are never too many in between.
        if decision.remove:
            is_settled = write_each(self._leadership, decision.remove, self._untaint)
        else:
            is_settled = write_each(self._leadership, decision.add, self._taint)
        if is_settled:
            self._settled, self._ends = generation, self._next_end(now)
        return is_settled

    def _next_end(self, now: float) -> float:
        """When the next Node has been unhealthy for long enough."""
        ends = (at + self._after for at in self._since.values())
        return min((end for end in ends if end > now), default=math.inf)

    def _note(self, views: Iterable[NodeView], decision: tainting.Tainting) -> None:
        tainted = sum(view.has_taint(UNHEALTHY_TAINT) for view in views)
        self._telemetry.unhealthy.labels("tainted").set(tainted)
        self._telemetry.unhealthy.labels("withheld").set(len(decision.withheld))
        for view in decision.withheld:
            if view.name not in self._withheld:
                name, pool = view.name, view.pool or "none"
                log.warning(
                    "unhealthy-taint-withheld node=%s pool=%s share=%s", name, pool, self._share
                )
        self._withheld = frozenset(view.name for view in decision.withheld)

    def _taint(self, view: NodeView) -> bool:
        taint = {"key": UNHEALTHY_TAINT, "effect": "NoSchedule"}
        is_written = rewrite(
            self._leadership, view, lambda taints: [*without(taints, UNHEALTHY_TAINT), taint]
        )
        if is_written:
            pool, reason = view.pool or "none", view.health[1] if view.health else "none"
            log.warning("unhealthy-taint-added node=%s pool=%s reason=%s", view.name, pool, reason)
        return is_written

    def _untaint(self, view: NodeView) -> bool:
        is_written = rewrite(
            self._leadership, view, lambda taints: without(taints, UNHEALTHY_TAINT)
        )
        if is_written:
            log.info("unhealthy-taint-removed node=%s pool=%s", view.name, view.pool or "none")
        return is_written
