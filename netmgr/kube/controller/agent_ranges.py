"""Gives each agent the ranges of its Node: an annotation of its pod, which it reads as a file.

An agent has no token and watches nothing. What it was started with is out of date once its Node is
deleted and registered again with other podCIDRs, while another Node may get the former ones. So the
annotation follows the Node; while there is no Node, or one without ranges, no range is in force.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from netmgr.errors import ApiError, ConfigError
from netmgr.kube.client.agent_pods import AgentPod
from netmgr.kube.client.api import Object
from netmgr.kube.controller.events import WarningEvent, write
from netmgr.kube.controller.node_document import all_ranges
from netmgr.kube.controller.nodes import NodeView
from netmgr.kube.controller.reconciling import Leadership, patch, write_each
from netmgr.prefixes import Prefix
from netmgr.ranges.assigned import NODE_RANGES, AssignedRanges

log = logging.getLogger(__name__)

CHANGED = "NodeRangesChanged"
"""Reason of the Event on a Node that was registered again with other ranges."""


class AgentRanges:
    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._api = leadership.api
        self._settled = (-1, -1)

    def reconcile(self) -> bool:
        pods = self._leadership.agents.listed()
        # Before anything is read: what changes meanwhile is for another round.
        generation = self._leadership.generation
        if pods is None or generation == self._settled:
            return True
        nodes = {view.name: view for view in self._leadership.nodes.views()}
        differing = []
        for pod in pods:
            node = nodes.get(pod.node)
            wanted = wanted_ranges(pod, node)
            if wanted is not None:
                differing.append((pod, node, wanted))
        is_settled = write_each(self._leadership, differing, self._write)
        if is_settled:
            self._settled = generation
        return is_settled

    def _write(self, change: tuple[AgentPod, NodeView | None, AssignedRanges]) -> bool:
        pod, node, wanted = change
        # The watches of Nodes and pods are independent: a pod may be known before its Node is.
        if node is None and self._api.find(f"/api/v1/nodes/{pod.node}") is not None:
            return False
        # Both of one moment: a version newer than what was decided on would hide that it changed.
        current = self._leadership.agents.current(pod.name)
        if current is None or current[0] != pod:
            return False
        # The version of the Node changes all the time, and so is not compared.
        current_node = self._leadership.nodes.current(node.name) if node else None
        version = int(current_node[1]) if current_node else 0
        annotation = str(replace(wanted, version=version))
        body: Object = {
            "metadata": {
                "uid": pod.uid,
                # Also keeps a leader unaware of its replacement from writing an older state.
                "resourceVersion": current[1],
                "annotations": {NODE_RANGES: annotation},
            }
        }
        # The subresource cannot change a pod's image, whatever the account sends.
        path = f"{self._leadership.agents_path}/{pod.name}/status"
        if not patch(self._leadership.agents, self._api.patch, path, body):
            return False
        log.info(
            "node-ranges-written pod=%s node=%s uid=%s ranges=%s",
            pod.name,
            pod.node,
            wanted.node or "none",
            ",".join(map(str, wanted.ranges)),
        )
        if node is not None and wanted.node:
            self._report_change(pod, node, wanted.ranges)
        return True

    def _report_change(self, pod: AgentPod, node: NodeView, ranges: tuple[Prefix, ...]) -> None:
        before = pod.assigned.ranges if pod.assigned else ()
        if not before or set(before) == set(ranges):
            return
        message = (
            f"the Node was registered again: its agent gives out {', '.join(map(str, ranges))} "
            f"and no longer {', '.join(map(str, before))}; delete pods that still have addresses "
            "of it ('netmgr node status' on the node lists them)"
        )
        try:
            warning = WarningEvent("Node", node.name, node.uid, CHANGED, message)
            write(self._leadership, warning)
        # Another round would find the annotation written, and report nothing.
        except ApiError as error:
            log.warning("event-not-written of=%s reason=%s", node.name, error.message)


def wanted_ranges(pod: AgentPod, node: NodeView | None) -> AssignedRanges | None:
    """What a pod's annotation should be, without a version; None if it already is, or unneeded."""
    before = pod.assigned
    if node is not None and node.cidrs and node.runs_pods:
        try:
            ranges = all_ranges(node.name, node.cidrs, node.annotation)
        except ConfigError:
            # The annotation contradicts the podCIDRs, which are the Node's beyond doubt.
            ranges = node.cidrs
        if before and before.node == node.uid and set(before.ranges) == set(ranges):
            return None
        return AssignedRanges(node.uid, 0, ranges)
    is_written = before is not None and not before.node
    # A Node that runs no pods, or whose ranges come from the cloud, never had an annotation.
    if is_written or (before is None and node is not None):
        return None
    # The former ranges stay named, for the Event once there are others.
    return AssignedRanges("", 0, before.ranges if before else ())
