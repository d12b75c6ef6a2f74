"""Every metric of the range controller's page, which `netmgr/kube/controller/health.py` serves.

`series` is what a controller of a cluster with `NODE_POOLS` node pools exposes. Only a leader's
values are current: who loses the Lease keeps its last ones, but `netmgr_controller_leader` is 0.
"""

from __future__ import annotations

from exporter.catalog import Metric, metrics_of

NODE_POOLS = 4
# Combinations of verb and status that a controller meets.
API_ANSWERS = 12
BUDGETS = 9
# Answered, not the leader's, and reasons of refusals.
REPORT_OUTCOMES = 15

LEADER = Metric("netmgr_controller_leader", "Whether this controller leads.")
NODES = Metric(
    "netmgr_controller_nodes",
    "Nodes that run pods: served, waiting until their ranges are written, or refused.",
    ("state",),
    3,
)
ALLOCATIONS = Metric(
    "netmgr_controller_allocations",
    "Allocations of the plan by node pool: held, in cooldown after their Node, or free.",
    ("pool", "state"),
    3 * NODE_POOLS,
)
ASSIGNMENTS = Metric("netmgr_controller_assignments_total", "Nodes that were given their ranges.")
CONFLICTS = Metric(
    "netmgr_controller_conflicts_total",
    "Writes of claims or Nodes that were refused because another client wrote first.",
    ("of",),
    2,
)
LISTS = Metric(
    "netmgr_controller_lists",
    "Full lists of Nodes, and of agents' pods, since this controller leads.",
    ("of",),
    2,
)
WATCHES = Metric(
    "netmgr_controller_watches",
    "Watches of Nodes, and of agents' pods, since this controller leads.",
    ("of",),
    2,
)
PLAN_REFUSED = Metric(
    "netmgr_controller_plan_refused",
    "Whether the plan on disk is not in force because it would move Nodes, or cannot be read.",
)
UNHEALTHY = Metric(
    "netmgr_controller_unhealthy_nodes",
    "Nodes whose condition NetmgrHealthy stays False: tainted, or withheld from it by the share of "
    "their node pool. Without --taint-unhealthy both are 0.",
    ("state",),
    2,
)
PREFLIGHT_FAILED = Metric(
    "netmgr_controller_preflight_failed",
    "Nodes whose agents do not start because their preflight fails.",
)
SHARING_RANGES = Metric(
    "netmgr_controller_nodes_sharing_ranges",
    "Nodes whose podCIDRs overlap those of an older Node, so that pods have the same addresses.",
)
API_REQUESTS = Metric(
    "netmgr_controller_api_requests_total",
    "Requests to the API server; code 0: no answer.",
    ("verb", "code"),
    API_ANSWERS,
)

BUDGET_RATE = Metric(
    "netmgr_controller_budget_bytes_per_second",
    "Of a budget: its limit, and what is in force on all nodes together.",
    ("budget", "of"),
    2 * BUDGETS,
)
BUDGET_LEVEL = Metric(
    "netmgr_controller_budget_level_bytes_per_second",
    "What each pod gets that a budget holds back; none while it holds back nobody.",
    ("budget",),
    BUDGETS,
)
BUDGET_WAITING = Metric(
    "netmgr_controller_budget_waiting_pods", "Pods that a budget holds back.", ("budget",), BUDGETS
)
BUDGET_QUOTA = Metric(
    "netmgr_controller_budget_quota_bytes",
    "Of a budget's bytes of this day (UTC): the quota, and what nodes used of it, or may have.",
    ("budget", "of"),
    2 * BUDGETS,
)
BUDGET_SILENT = Metric(
    "netmgr_controller_budget_silent_nodes", "Nodes whose reports on budgets do not come."
)
BUDGET_REPORTS = Metric(
    "netmgr_controller_budget_reports_total",
    "Nodes' reports on budgets: answered, not the leader's to answer, or why they were refused.",
    ("outcome",),
    REPORT_OUTCOMES,
)
BUDGETS_REFUSED = Metric(
    "netmgr_controller_budgets_refused",
    "Whether the document of budgets on disk is not in force because it cannot be used.",
)

CONTROLLER = metrics_of(globals())
"""Every family of the controller's page."""
