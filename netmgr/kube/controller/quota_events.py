"""Events for quotas that are spent, by what the nodes report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from netmgr.kube.controller.events import MOST_EVENTS, Events, WarningEvent
from netmgr.kube.controller.node_reports import NodeReport, NodeReports, Spent
from netmgr.kube.controller.reconciling import Leadership

REASON = "QuotaSpent"


class QuotaEvents:
    """Writes an Event for each pod and namespace with a quota that is spent."""

    def __init__(self, leadership: Leadership, reports: NodeReports) -> None:
        self._events = Events(leadership)
        self._reports = reports

    def reconcile(self) -> bool:
        return self._events.report(notices(self._reports.by_node))


def notices(reports: Mapping[str, NodeReport]) -> list[WarningEvent]:
    """The Events that follow from what the Nodes report.

    A pod that moved, or a namespace that has pods on many nodes, has one Event for each quota.
    """
    nodes: dict[Spent, list[str]] = {}
    for node, report in reports.items():
        for spent in report.spent:
            nodes.setdefault(spent, []).append(node)
    # Sorted, so that of too many the same ones are kept up in every round.
    due = [_notice(spent, sorted(where)) for spent, where in nodes.items()]
    return sorted(due, key=lambda notice: (notice.namespace, notice.name, notice.key))[:MOST_EVENTS]


def _notice(spent: Spent, nodes: Sequence[str]) -> WarningEvent:
    others = f" and {len(nodes) - 1} other nodes" if len(nodes) > 1 else ""
    then = f"pass at {spent.slow} bits a second" if spent.slow else "are dropped"
    ends = datetime.fromtimestamp(spent.until, UTC).isoformat(timespec="minutes")
    # Not the nodes: a namespace's pods may spend their quota on one after the other.
    key = f"{spent.traffic} {spent.period} {spent.until} {spent.budget}"
    return WarningEvent(
        kind="Pod" if spent.pod else "Namespace",
        name=spent.pod or spent.namespace,
        uid=spent.uid,
        reason=REASON,
        message=(
            f"{spent.budget} bytes of {spent.traffic} a {spent.period} are used on "
            f"{nodes[0]}{others}: further packets {then} until {ends}"
        ),
        namespace=spent.namespace,
        key=key,
    )
