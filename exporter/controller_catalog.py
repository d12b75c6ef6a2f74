"""Every metric of the range controller's page, which `netmgr/kube/controller/health.py` serves.

`series` is what a controller of a cluster with `NODE_POOLS` node pools exposes. Only a leader's
values are current: who loses the Lease keeps its last ones, but `netmgr_controller_leader` is 0.
"""

from __future__ import annotations

from exporter.metric import Metric, metrics_of

NODE_POOLS = 4
API_ANSWERS = 12
"""Combinations of verb and status that a controller meets."""

LEADER = Metric("netmgr_controller_leader", (), 1, "Whether this controller leads.")
NODES = Metric(
    "netmgr_controller_nodes",
    ("state",),
    3,
    "Nodes that run pods: served, waiting until their ranges are written, or refused.",
)
ALLOCATIONS = Metric(
    "netmgr_controller_allocations",
    ("pool", "state"),
    3 * NODE_POOLS,
    "Allocations of the plan by node pool: held, in cooldown after their Node, or free.",
)
ASSIGNMENTS = Metric(
    "netmgr_controller_assignments_total", (), 1, "Nodes that were given their ranges."
)
CONFLICTS = Metric(
    "netmgr_controller_conflicts_total",
    ("of",),
    2,
    "Writes of claims or Nodes that were refused because another client wrote first.",
)
LISTS = Metric(
    "netmgr_controller_lists",
    ("of",),
    2,
    "Full lists of Nodes, and of agents' pods, since this controller leads.",
)
WATCHES = Metric(
    "netmgr_controller_watches",
    ("of",),
    2,
    "Watches of Nodes, and of agents' pods, since this controller leads.",
)
PLAN_REFUSED = Metric(
    "netmgr_controller_plan_refused",
    (),
    1,
    "Whether the plan on disk is not in force because it would move Nodes, or cannot be read.",
)
UNHEALTHY = Metric(
    "netmgr_controller_unhealthy_nodes",
    ("state",),
    2,
    "Nodes whose condition NetmgrHealthy stays False: tainted, or withheld from it by the share of "
    "their node pool. Without --taint-unhealthy both are 0.",
)
PREFLIGHT_FAILED = Metric(
    "netmgr_controller_preflight_failed",
    (),
    1,
    "Nodes whose agents do not start because their preflight fails.",
)
API_REQUESTS = Metric(
    "netmgr_controller_api_requests_total",
    ("verb", "code"),
    API_ANSWERS,
    "Requests to the API server; code 0: no answer.",
)

CONTROLLER = metrics_of(globals())
"""Every family of the controller's page."""
