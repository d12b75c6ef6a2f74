"""The Node's condition NetmgrHealthy: whether its network has problems that last.

A node that reports nothing for a while gets the status Unknown, as the node controller gives it to
a kubelet's own conditions. The condition alone keeps no pod away.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from netmgr.errors import ApiError
from netmgr.kube.api import CONFLICT, NOT_FOUND, Object
from netmgr.kube.assigning import NodeView
from netmgr.kube.node_reports import NodeReports, Report
from netmgr.kube.nodes import HEALTHY
from netmgr.kube.reconciling import Leadership, write_each

HEALTHY_REASON, SILENT_REASON = "NoProblems", "NoReport"
LONGEST_MESSAGE = 4096

log = logging.getLogger(__name__)


class NodeConditions:
    """Writes what differs: one request for a node whose health changes."""

    def __init__(self, leadership: Leadership, reports: NodeReports) -> None:
        self._leadership = leadership
        self._reports = reports

    def reconcile(self) -> bool:
        """Write the conditions; False when another round should follow soon."""
        reports, silent = self._reports.by_node, self._reports.silent()
        changes: list[tuple[NodeView, tuple[str, str, str]]] = []
        for view in self._leadership.nodes.views():
            if view.name in reports:
                wanted = condition(reports[view.name])
            elif view.name in silent and view.health is not None:
                wanted = ("Unknown", SILENT_REASON, "its exporter has not answered for a while")
            else:
                continue
            # Not the message: its figures change all the time.
            if wanted[:2] != view.health:
                changes.append((view, wanted))
        is_settled, refused = write_each(self._leadership, changes, self._write)
        if refused is not None:
            raise refused
        return is_settled

    def _write(self, change: tuple[NodeView, tuple[str, str, str]]) -> bool:
        view, (status, reason, message) = change
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        made = {
            "type": HEALTHY,
            "status": status,
            "reason": reason,
            "message": message[:LONGEST_MESSAGE],
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        body: Object = {"metadata": {"uid": view.uid}, "status": {"conditions": [made]}}
        path = f"/api/v1/nodes/{view.name}/status"
        try:
            # Conditions are merged by their type, which a JSON merge patch cannot do.
            self._leadership.nodes.change(self._leadership.api.patch_by_key(path, body))
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            return False
        level = logging.INFO if status == "True" else logging.WARNING
        log.log(
            level,
            "node-health node=%s healthy=%s reason=%s message=%s",
            view.name,
            status,
            reason,
            message,
        )
        return True


def condition(report: Report) -> tuple[str, str, str]:
    """Status, reason and message for what a node reports."""
    if not report.problems:
        return "True", HEALTHY_REASON, "the agent of netmgr finds no problem that lasts"
    # The first by name, so that it stays while others come and go.
    found = sorted(report.problems, key=lambda each: each.reason)
    return "False", found[0].reason, "; ".join(each.message for each in found)
