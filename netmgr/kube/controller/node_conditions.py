"""The Node's condition NetmgrHealthy: whether its network has problems that last.

A Node whose agent does not start because its preflight fails has the condition as well, and so has
one with ranges of an older Node. A node that reports nothing for a while gets the status Unknown,
as the node controller gives it to a kubelet's own conditions. The condition alone keeps no pod
away.

Messages are written by nodes: they are bounded, and a Node's condition is written at most every
`CALM_SECONDS`, so that a node that changes its mind all the time costs the API server little.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.controller.events import Events, WarningEvent
from netmgr.kube.controller.health import Telemetry
from netmgr.kube.controller.node_reports import NodeReport, NodeReports
from netmgr.kube.controller.nodes import HEALTHY, NodeView
from netmgr.kube.controller.reconciling import Condition, Leadership, write_condition, write_each
from netmgr.kube.controller.shared_ranges import shared_ranges

HEALTHY_REASON, SILENT_REASON = "NoProblems", "NoReport"
PREFLIGHT_FAILED, PREFLIGHT_PASSED = "PreflightFailed", "PreflightPassed"
RANGES_SHARED, RANGES_OWN = "RangesShared", "RangesOwn"
LONGEST_MESSAGE = 4096
CALM_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of nodes, by their Nodes' names."""

    unhealthy: Mapping[str, Condition]
    """Those that the controller itself knows to be unhealthy, whatever they report."""
    ready: Collection[str]
    """Those whose agents serve."""
    reports: Mapping[str, NodeReport]
    """What their exporters said."""
    silent: Collection[str]
    """Those whose exporters have not answered for long."""


class NodeConditions:
    """Writes what differs: one request for a node whose health changes."""

    def __init__(
        self, leadership: Leadership, reports: NodeReports | None, telemetry: Telemetry
    ) -> None:
        """Without `reports`, only preflights and ranges are looked at."""
        self._leadership = leadership
        self._reports = reports
        self._telemetry = telemetry
        self._events = Events(leadership)
        self._written: dict[str, float] = {}
        self._notices: list[WarningEvent] = []
        self._settled: tuple[int, int] | None = None

    def reconcile(self) -> bool:
        pods = self._leadership.agents.listed()
        # Before anything is read: what changes meanwhile is for another round.
        generation = self._leadership.generation
        if pods is None:
            return True
        # Reports change by themselves, and what was written just now may have to be again.
        if self._reports is None and not self._written and generation == self._settled:
            self._events.report(self._notices)
            return True
        views = self._leadership.nodes.views()
        known = self._known(pods, views)
        now = self._leadership.concurrency.monotonic()
        self._written = {name: at for name, at in self._written.items() if now - at < CALM_SECONDS}
        due = ((view, _wanted(view, known)) for view in views if view.name not in self._written)
        changes = [(view, wanted) for view, wanted in due if wanted and _differs(wanted, view)]
        is_settled = write_each(self._leadership, changes, self._write)
        if is_settled:
            self._settled = generation
        return is_settled

    def _report(self, views: Iterable[NodeView], failed: Mapping[str, str]) -> None:
        reason = PREFLIGHT_FAILED
        self._notices = [
            # With a key of its own, and not the message's: one Event for a Node, whatever it says.
            WarningEvent("Node", view.name, view.uid, reason, failed[view.name], key=reason)
            for view in views
            if view.name in failed
        ]
        self._telemetry.preflight_failed.set(len(self._notices))
        self._events.report(self._notices)

    def _known(self, pods: Collection[AgentPod], views: Sequence[NodeView]) -> _Known:
        """What is known of nodes; what the controller itself knows is told by metrics, too."""
        unhealthy = {
            shared.younger: Condition("False", RANGES_SHARED, f"{shared.message}; {shared.remedy}")
            for shared in shared_ranges(views)
        }
        self._telemetry.sharing_ranges.set(len(unhealthy))
        failed = {pod.node: pod.failed_preflight for pod in pods if pod.failed_preflight}
        self._report(views, failed)
        for name, failure in failed.items():
            message = f"its agent does not start, because its preflight fails: {failure}"
            unhealthy[name] = Condition("False", PREFLIGHT_FAILED, message)
        return _Known(
            unhealthy=unhealthy,
            ready={pod.node for pod in pods if pod.is_ready},
            reports=self._reports.by_node if self._reports else {},
            silent=self._reports.silent() if self._reports else frozenset(),
        )

    def _write(self, change: tuple[NodeView, Condition]) -> bool:
        view, wanted = change
        # A transition is one of the status (API conventions), whatever the reason.
        is_other = view.health is None or view.health[0] != wanted.status
        since = "" if is_other else view.health_since
        bounded = wanted._replace(message=wanted.message[:LONGEST_MESSAGE])
        if not write_condition(self._leadership, view, HEALTHY, bounded, since):
            return False
        self._written[view.name] = self._leadership.concurrency.monotonic()
        level = logging.INFO if wanted.status == "True" else logging.WARNING
        log.log(
            level,
            "node-health node=%s healthy=%s reason=%s message=%s",
            view.name,
            wanted.status,
            wanted.reason,
            wanted.message,
        )
        return True


def _wanted(view: NodeView, known: _Known) -> Condition | None:
    """The condition that a Node should have; None where nothing is known of it."""
    if view.name in known.unhealthy:
        return known.unhealthy[view.name]
    if view.name in known.reports:
        return condition(known.reports[view.name])
    if view.health == ("False", PREFLIGHT_FAILED):
        # Not before its agent serves: a pod that was just made has not failed yet, either.
        is_over = view.name in known.ready
        return Condition("True", PREFLIGHT_PASSED, "its agent serves") if is_over else None
    if view.health == ("False", RANGES_SHARED):
        return Condition("True", RANGES_OWN, "no other Node has its ranges any more")
    if view.health is not None and view.name in known.silent:
        return Condition("Unknown", SILENT_REASON, "its exporter has not answered for a while")
    return None


def _differs(wanted: Condition, view: NodeView) -> bool:
    if (wanted.status, wanted.reason) != view.health:
        return True
    # Not for other reasons: the figures in their messages change all the time.
    knows_itself = wanted.reason in (PREFLIGHT_FAILED, RANGES_SHARED)
    return knows_itself and wanted.message != view.health_message


def condition(report: NodeReport) -> Condition:
    if not report.problems:
        message = "the agent of netmgr finds no problem that lasts"
        return Condition("True", HEALTHY_REASON, message)
    # The first by name, so that it stays while others come and go.
    problems = sorted(report.problems, key=lambda problem: problem.reason)
    return Condition(
        "False", problems[0].reason, "; ".join(problem.message for problem in problems)
    )
