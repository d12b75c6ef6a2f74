"""Metrics of limits and quotas, and of what they are for: connections that fill a node's table.

`series` is what a node has on which ten pods and two namespaces are limited.
"""

from __future__ import annotations

from exporter.metric import Metric, metrics_of

TRAFFICS = 2
LIMITED = 12 * TRAFFICS
"""Of ten pods and two namespaces: all 250 would be 500 series more of each metric."""
CONNECTION_LIMITS = 12
QUOTAS = 12 * TRAFFICS
"""One of each."""
FULLEST = 10
"""Pods whose connections are shown."""
LIMIT_RATE = Metric(
    "netmgr_limit_bytes_per_second",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "The limit of a pod's internet traffic, or without a pod of a namespace's on this node. Like "
    "the other figures of limits it includes Ethernet headers.",
)
LIMIT_BYTES = Metric(
    "netmgr_limit_sent_bytes_total",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "Bytes that a limit let pass.",
)
LIMIT_PACKETS = Metric(
    "netmgr_limit_sent_packets_total",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "Packets that a limit let pass.",
)
LIMIT_DELAYS = Metric(
    "netmgr_limit_delays_total",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "How often packets had to wait because of a limit.",
)
LIMIT_DROPPED = Metric(
    "netmgr_limit_dropped_packets_total",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "Packets dropped because too many waited already; 0 for namespaces, in which only pods wait.",
)
LIMIT_BACKLOG = Metric(
    "netmgr_limit_backlog_bytes",
    ("namespace", "pod", "traffic"),
    LIMITED,
    "Bytes that wait because of a limit; 0 for namespaces.",
)
LIMIT_CONNECTIONS = Metric(
    "netmgr_limit_dropped_new_connections_total",
    ("namespace", "pod"),
    CONNECTION_LIMITS,
    "Packets dropped that would have begun a connection too many; without a pod: a namespace's.",
)
QUOTA = Metric(
    "netmgr_quota_bytes",
    ("namespace", "pod", "traffic", "period"),
    QUOTAS,
    "The quota of a pod's internet traffic in a day or month (UTC), or without a pod of a "
    "namespace's on this node.",
)
QUOTA_USED = Metric(
    "netmgr_quota_used_bytes",
    ("namespace", "pod", "traffic", "period"),
    QUOTAS,
    "What was used of a quota, by what the ledger counted since the day or month began. Falls when "
    "the next one begins.",
)
QUOTA_FORECAST = Metric(
    "netmgr_quota_forecast_bytes",
    ("namespace", "pod", "traffic", "period"),
    QUOTAS,
    "What will be used of a quota when its day or month ends, if it goes on as on average.",
)
POD_CONNECTIONS = Metric(
    "netmgr_pod_connections",
    ("namespace", "pod"),
    FULLEST,
    "Connections in the node's connection table that a pod began, of the pods with the most.",
)
TRACKED = Metric(
    "netmgr_tracked_connections",
    (),
    1,
    "Connections in the node's connection table, of pods and the node itself.",
)
TRACKED_MOST = Metric(
    "netmgr_tracked_connections_limit",
    (),
    1,
    "How many connections the table takes (nf_conntrack_max).",
)

LIMITS = metrics_of(globals())
"""Every family of these."""
