"""Lets pods onto a Node once its agent serves: the startup taint, and the cloud's condition.

A kubelet may register its Node with the taint `netmgr.io/agent-not-ready:NoSchedule`, so that no
pod is scheduled there before it can get an address. The runtime's own readiness is no substitute:
containerd 1.6 never asks a plugin for its STATUS. The taint is removed once and never added: an
agent that is replaced or restarted leaves the pods of its Node running, and new ones wait seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from netmgr.kube.controller.node_taints import rewrite, without
from netmgr.kube.controller.nodes import NETWORK_UNAVAILABLE, STARTUP_TAINT, NodeView
from netmgr.kube.controller.reconciling import Condition, Leadership, write_condition, write_each
from netmgr.logs import caused_by
from netmgr.ranges.assigned import AssignedRanges

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Startup:
    leadership: Leadership
    is_range_controller: Callable[[], bool]
    """Whether this controller gives Nodes their podCIDRs."""

    def reconcile(self) -> bool:
        waiting = [
            view
            for view in self.leadership.nodes.views()
            if view.has_taint(STARTUP_TAINT) or self._is_to_clear(view)
        ]
        if not waiting:
            return True
        # What was written to an agent that is ready about its Node's ranges: None where these are
        # not the Node's podCIDRs.
        pods = self.leadership.agents.listed() or ()
        serving = {pod.node: pod.assigned for pod in pods if pod.is_ready}
        are_served = [view for view in waiting if _serves(view, serving)]
        return write_each(self.leadership, are_served, self._admit)

    def _is_to_clear(self, view: NodeView) -> bool:
        # Otherwise it is kube-controller-manager's, which sets and clears it for cloud routes, and
        # writes these only where it gives podCIDRs itself.
        return view.is_network_unavailable and bool(view.cidrs) and self.is_range_controller()

    def _admit(self, view: NodeView) -> bool:
        is_available = not self._is_to_clear(view) or self._clear(view)
        return is_available and (not view.has_taint(STARTUP_TAINT) or self._untaint(view))

    def _untaint(self, view: NodeView) -> bool:
        is_written = rewrite(self.leadership, view, lambda taints: without(taints, STARTUP_TAINT))
        if is_written:
            log.info("startup-taint-removed node=%s", view.name, extra=caused_by(view.name))
        return is_written

    def _clear(self, view: NodeView) -> bool:
        message = "the agent of netmgr serves on this Node"
        condition = Condition("False", "NetmgrAgentReady", message)
        is_written = write_condition(self.leadership, view, NETWORK_UNAVAILABLE, condition)
        if is_written:
            log.info("network-available node=%s", view.name, extra=caused_by(view.name))
        return is_written


def _serves(view: NodeView, serving: Mapping[str, AssignedRanges | None]) -> bool:
    """Whether a ready agent gives addresses of this Node, not of a former one of its name."""
    if view.name not in serving:
        return False
    assigned = serving[view.name]
    if not view.runs_pods:
        return True
    if not view.cidrs:
        # An agent with ranges of a former Node, which was registered again, waits for its new ones.
        return assigned is None or not assigned.ranges
    return assigned is not None and assigned.node == view.uid
