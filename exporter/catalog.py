"""Every metric of the exporter's page; names follow prometheus.io/docs/practices/naming.

`series` is what a node with 250 pods in 20 namespaces exposes, with addresses of both
families, the four node rules in each of them, a histogram of the usual buckets, and limits of ten
pods and two namespaces. A metric whose number depends on what happens (CNI codes) has its upper
bound there.

The three `iptables_…` families are those of PyPI's iptables-exporter 0.9.3, so that dashboards
made for it go on working.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from netmgr.api.snapshot import LATENCY_BUCKETS, Fault

PODS = 250
NAMESPACES = 20
# Pods of other nodes that clients reach by this one and that are shown, the busiest ones.
REMOTE_PODS = 100
TRAFFICS = 2
FAMILIES = 2
# Six verbs, and "invalid" for anything else.
COMMANDS = 7
# 0, and every code of netmgr/errors.py.
CODES = 18
GAP_REASONS = 8
# Rules, wiring, deleted links, forwarding, routes, files, limits, connection limits.
DRIFT_REASONS = 8
# Chains of `raw`, `mangle` and `nat` with the backend iptables; any other chain is one more.
TABLES_OF_RULES = FAMILIES * 6
SPOKES = 20
# A node drops between its own spoke and each other one, both ways; a hub router all 380.
SPOKE_PAIRS = 2 * (SPOKES - 1)
# Of a node: spoofed, forged, fragments, loopback, link-local, router, redirect, dhcp, icmp,
# protected.
DROP_REASONS = 10
# TCP, UDP and SCTP of each family.
PORT_BUDGETS = FAMILIES * 3
# Of ten pods and two namespaces: all 250 would be 500 series more of each metric.
LIMITED = 12 * TRAFFICS
# One of each of these pods and namespaces.
CONNECTION_LIMITS = 12
QUOTAS = 12 * TRAFFICS
# Of a cluster.
BUDGETS = 9
# Pods whose connections are shown.
FULLEST = 10

UNITS = ("bytes", "packets", "seconds", "ratio")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family, as it is exposed: a histogram's series add their suffixes to `name`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    series: int = 1
    is_histogram: bool = False

    @property
    def kind(self) -> MetricKind:
        if self.is_histogram:
            return MetricKind.HISTOGRAM
        # OpenMetrics demands this suffix of counters.
        return MetricKind.COUNTER if self.name.endswith("_total") else MetricKind.GAUGE

    @property
    def unit(self) -> str:
        """The base unit; empty for numbers of something."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


def totals(stem: str, labels: tuple[str, ...], series: int, **helps: str) -> tuple[Metric, ...]:
    """Metrics that count the same in several units, in this order."""
    return tuple(
        Metric(f"{stem}_{unit}_total", text, labels, series) for unit, text in helps.items()
    )


def metrics_of(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Every metric that a module defines, so that none is forgotten in a list."""
    return tuple(value for value in module.values() if isinstance(value, Metric))


POD_BYTES, POD_PACKETS = totals(
    "netmgr_pod_traffic",
    ("namespace", "pod", "traffic"),
    PODS * TRAFFICS,
    bytes="Bytes (IP headers included) between a pod and the internet, or a class of traffic. "
    "Lingers after the pod's end, then goes.",
    packets="Packets between a pod and the internet, or a class of traffic. Lingers after the "
    "pod's end, then goes.",
)
POD_WIRE_BYTES, POD_WIRE_UNKNOWN = totals(
    "netmgr_pod_traffic",
    POD_BYTES.labels,
    POD_BYTES.series,
    wire_bytes="Bytes with the IP headers of every segment, as a wire carries them, and "
    "accounting.link_layer_bytes (0) for each. Of packets whose segments are known, where links "
    "count (accounting.at).",
    wire_unknown_bytes="Bytes (IP headers included) of packets that are in no wire bytes, since "
    "nobody knows their segments.",
)
NAMESPACE_BYTES, NAMESPACE_PACKETS = totals(
    "netmgr_namespace_traffic",
    ("namespace", "traffic"),
    NAMESPACES * TRAFFICS,
    bytes="Bytes (IP headers included) between the internet and all pods that a namespace ever had "
    "on this node.",
    packets="Packets between the internet and all pods that a namespace ever had on this node.",
)
NODE_BYTES, NODE_PACKETS = totals(
    "netmgr_node_traffic",
    ("traffic",),
    TRAFFICS,
    bytes="Bytes (IP headers included) between the internet and this node: its own, its "
    "host-network pods', its pods'.",
    packets="Packets between the internet and this node: its own, its host-network pods', its "
    "pods'.",
)
ORIGIN_BYTES = Metric(
    "netmgr_node_traffic_origin_bytes_total",
    "The node's total by origin: its pods', its host-network pods' (accounting.host_pods), "
    "its own, other nodes' pods' (remote-pods: accounting.cluster_cidrs), and what was forwarded "
    "for no pod (unattributed; transit where no pods run).",
    ("origin", "traffic"),
    5 * TRAFFICS,
)
REMOTE_POD_BYTES = Metric(
    "netmgr_remote_pod_traffic_bytes_total",
    "Bytes between the internet and a pod of another node that entered or left by this one: "
    "NodePorts and load balancers (accounting.cluster_cidrs, nftables alone). The busiest alone, "
    "as far as they fit. Goes after an hour without a packet.",
    ("address", "traffic"),
    REMOTE_PODS * TRAFFICS,
)
RULE_BYTES, RULE_PACKETS = totals(
    "iptables",
    ("ip_version", "table", "chain", "rule"),
    4 * FAMILIES,
    bytes="Number of matched bytes, as iptables-exporter gives them: of the article's rules, from "
    "any backend, and of whatever other rule of iptables is tagged for it.",
    packets="Number of matched packets, as iptables-exporter gives them: of the article's rules, "
    "from any backend, and of whatever other rule of iptables is tagged for it.",
)
RULE_COUNT = Metric(
    "iptables_rules",
    "Number of rules in a chain of iptables, as iptables-exporter gives it, for tables that exist.",
    ("ip_version", "table", "chain"),
    TABLES_OF_RULES,
)
GAPS = Metric(
    "netmgr_accounting_gaps_total",
    "Gaps: events in which traffic may be missing from the totals, whatever the number of counters "
    "they concern: counters removed, reset or restored by others, reboots, a state file that was "
    "unwritable, lost or an older copy, pods of other plugins that were noticed late.",
    ("reason",),
    GAP_REASONS,
)
GAP_SECONDS = Metric(
    "netmgr_accounting_gap_seconds_total",
    "Time during which counting was possibly incomplete: from the last good reading of what was "
    "removed, reset or rebooted to the moment that was seen, as long as the state file could not "
    "be written, or until a pod was noticed.",
    ("reason",),
    GAP_REASONS,
)
UNATTRIBUTED = Metric(
    "netmgr_accounting_unattributed_bytes_total",
    "Bytes that the internet exchanged through the node with no pod that has a counter.",
    ("traffic",),
    TRAFFICS,
)
AUDIT_RATIO = Metric(
    "netmgr_accounting_audit_ratio",
    "1 less the unattributed share of what the forward rules counted (against=forward; 1 is "
    "everything), or what was counted, divided by what the pods' links (against=links) or, since "
    "the agent started, the uplinks (against=uplinks) carried, Ethernet headers taken off: the "
    "internet share. The rest bounds what nobody was counted for.",
    ("against", "traffic"),
    3 * TRAFFICS,
)
FORWARDED = Metric(
    "netmgr_accounting_forwarded_bytes_total",
    "Bytes (IP headers included) that the node forwarded between the internet and whatever is on "
    "it.",
    ("traffic",),
    TRAFFICS,
)
DURABLE = Metric(
    "netmgr_accounting_durable",
    "1 while totals reach the disk; at 0 they are in the agent's memory alone, and its end would "
    "lose them.",
)
DRIFT = Metric(
    "netmgr_rules_drift_repaired_total",
    "Things of netmgr's (rules, links and routes of pods, forwarding, static routes, state files "
    "and sockets) that another program changed or removed and that were repaired.",
    ("reason",),
    DRIFT_REASONS,
)
ISOLATION_PACKETS, ISOLATION_BYTES = totals(
    "netmgr_isolation_dropped",
    ("from", "to"),
    SPOKE_PAIRS,
    packets="Packets from one spoke to another that were dropped on this machine. Every pair it "
    "can drop is there.",
    bytes="Bytes (IP headers included) from one spoke to another that were dropped on this "
    "machine.",
)
DROPPED_PACKETS, DROPPED_BYTES = totals(
    "netmgr_dropped",
    ("reason",),
    DROP_REASONS,
    packets="Packets dropped here: spoofed, link-local, router, redirect, dhcp (what a pod may not "
    "send), icmp (of no connection), loopback (from another link), fragments (too many of a pod), "
    "forged (this machine's or its pods' addresses from elsewhere; on a router a site's), "
    "unplanned (private sources of no site, to a spoke), stranded (a NAT host's), endpoint (of a "
    "Service, that is a machine or outside the spoke), protected.",
    bytes="IP bytes dropped here, by reason.",
)
PROTECTED_PACKETS, PROTECTED_BYTES = totals(
    "netmgr_namespace_protected",
    ("namespace",),
    NAMESPACES,
    packets="Packets from a namespace's pods to addresses that `protect` keeps from them, dropped. "
    "Namespaces without any have no series.",
    bytes="Bytes (IP headers included) from a namespace's pods to addresses that `protect` keeps "
    "from them, dropped.",
)
NAT_PACKETS, NAT_BYTES = totals(
    "netmgr_nat_translated",
    ("vip_range", "service_cidr"),
    FAMILIES,
    packets="On a NAT host, packets of connections to a VIP range; `service_cidr` is the same "
    "range inside the spoke.",
    bytes="On a NAT host, bytes (IP headers included) of connections to a VIP range.",
)
NAT_BUDGET = Metric(
    "netmgr_nat_port_budget",
    "On a NAT host that gives clients its own addresses, the connections it can have toward one "
    "endpoint: 64,512 an address.",
    ("family", "protocol"),
    PORT_BUDGETS,
)
NAT_USED = Metric(
    "netmgr_nat_ports_used",
    "Connections toward the endpoint (address, port and protocol) that has most, by the kernel's "
    "connection table.",
    ("family", "protocol"),
    PORT_BUDGETS,
)
NAT_SHARE = Metric(
    "netmgr_nat_ports_used_ratio",
    "The share of the port budget that is in use; at 1, new connections toward that endpoint fail.",
    ("family", "protocol"),
    PORT_BUDGETS,
)
ADDRESSES = Metric(
    "netmgr_ipam_addresses",
    "Addresses of the node's ranges: allocated, cooldown (released, not yet to be reused) or free; "
    "and those that are of no range any more while a pod still holds them: withdrawn.",
    ("family", "state"),
    FAMILIES * 4,
)
FLOWTABLE_LINKS = Metric(
    "netmgr_flowtable_links",
    "Links whose established connections skip the rules, those with the internet only where links "
    "count; 0 without a flowtable, and then "
    "`netmgr node status` says why.",
)
RESULT_FILES = Metric(
    "netmgr_observer_result_files",
    "With cni: off, files of the runtime's result cache: counted, stale (the kernel has nothing of "
    "them), superseded (their address is another pod's now), or why they cannot be used.",
    ("state",),
    8,
)
LONGEST_DELAY = Metric(
    "netmgr_observer_longest_delay_seconds",
    "With cni: off, the longest time from a pod's wiring until it was counted, since the agent "
    "started: what the pod sent meanwhile is not in its totals.",
)
REQUESTS = Metric(
    "netmgr_cni_requests_total",
    "CNI requests answered, by verb and CNI error code; 0 is success.",
    ("command", "code"),
    COMMANDS * CODES,
)
DURATIONS = Metric(
    "netmgr_cni_request_duration_seconds",
    "Time the agent took to answer a CNI request, by verb.",
    ("command",),
    COMMANDS * (len(LATENCY_BUCKETS) + 3),
    is_histogram=True,
)
REBUILDS = Metric(
    "netmgr_state_rebuilds_total",
    "State files that were found damaged, set aside and rebuilt from the kernel.",
)
STARTED = Metric(
    "netmgr_agent_start_time_seconds",
    "When the agent started, since the epoch: counters of requests, repairs and rebuilds begin at "
    "zero then.",
)
PROBLEMS = Metric(
    "netmgr_node_problem",
    "1 while the node's network has this problem, or keeps having it, 0 otherwise; "
    "`netmgr node status` says what to do.",
    ("reason",),
    len(Fault),
)
READY = Metric(
    "netmgr_agent_ready",
    "1 while the agent can do what it is for: serve an ADD, find pods (cni: off), or forward "
    "between sites; else 0.",
)
BUILD = Metric(
    "netmgr_build_info",
    "Always 1; the labels tell the agent's version, rule backend and role. While it is away: the "
    "exporter's version alone.",
    ("version", "backend", "node", "role"),
    1,
)
DROPPED = Metric(
    "netmgr_exporter_dropped_series",
    "Series left out of this scrape because of --max-series, by their pods: lingering ones go "
    "first, then live ones with the least traffic. Namespaces' and the node's totals are always "
    "whole.",
    ("pods",),
    2,
)
UP = Metric("netmgr_up", "1 if the agent answered this scrape, else 0.")
SCRAPE = Metric(
    "netmgr_exporter_scrape_duration_seconds",
    "Time this scrape took to get the agent's answer and arrange it.",
)
LIMIT = ("namespace", "pod", "traffic"), LIMITED
LIMIT_RATE = Metric(
    "netmgr_limit_bytes_per_second",
    "The limit of a pod's internet traffic, or without a pod of a namespace's on this node. Like "
    "the other figures of limits it includes Ethernet headers.",
    *LIMIT,
)
LIMIT_BYTES, LIMIT_PACKETS = totals(
    "netmgr_limit_sent",
    *LIMIT,
    bytes="Bytes that a limit let pass.",
    packets="Packets that a limit let pass.",
)
LIMIT_DELAYS = Metric(
    "netmgr_limit_delays_total", "How often packets had to wait because of a limit.", *LIMIT
)
LIMIT_DROPPED = Metric(
    "netmgr_limit_dropped_packets_total",
    "Packets dropped because too many waited already; 0 for namespaces, in which only pods wait.",
    *LIMIT,
)
LIMIT_BACKLOG = Metric(
    "netmgr_limit_backlog_bytes", "Bytes that wait because of a limit; 0 for namespaces.", *LIMIT
)
LIMIT_CONNECTIONS = Metric(
    "netmgr_limit_dropped_new_connections_total",
    "Packets dropped that would have begun a connection too many; without a pod: a namespace's.",
    ("namespace", "pod"),
    CONNECTION_LIMITS,
)
PERIODIC = ("namespace", "pod", "traffic", "period"), QUOTAS
QUOTA = Metric(
    "netmgr_quota_bytes",
    "The quota of a pod's internet traffic in a day or month (UTC), or without a pod of a "
    "namespace's on this node.",
    *PERIODIC,
)
QUOTA_USED = Metric(
    "netmgr_quota_used_bytes",
    "What was used of a quota, by what the ledger counted since the day or month began. Falls when "
    "the next one begins.",
    *PERIODIC,
)
QUOTA_FORECAST = Metric(
    "netmgr_quota_forecast_bytes",
    "What will be used of a quota when its day or month ends, if it goes on as on average.",
    *PERIODIC,
)
BUDGET_RATE = Metric(
    "netmgr_budget_bytes_per_second",
    "What the pods of this node may have of a cluster's budget now, Ethernet headers included.",
    ("budget",),
    BUDGETS,
)
BUDGET_SENT = Metric(
    "netmgr_budget_sent_bytes_total",
    "Bytes that passed in a budget on this node, Ethernet headers included.",
    ("budget",),
    BUDGETS,
)
BUDGET_WAITING = Metric(
    "netmgr_budget_waiting_pods", "Pods that a budget holds back.", ("budget",), BUDGETS
)
BUDGET_THROTTLED = Metric(
    "netmgr_budget_throttled_seconds_total",
    "For how long a namespace's pods were held back by a budget, all pods together; with "
    "`enforce: false` for how long they would have been.",
    ("namespace", "budget"),
    NAMESPACES * BUDGETS,
)
BUDGET_ALLOWANCE = Metric(
    "netmgr_budget_allowance_bytes",
    "What the pods of this node may have of a budget's quota on this day.",
    ("budget",),
    BUDGETS,
)
BUDGET_USED = Metric(
    "netmgr_budget_used_bytes", "What they had of it, by the ledger.", ("budget",), BUDGETS
)
BUDGET_AGE = Metric(
    "netmgr_budget_answer_age_seconds",
    "How long ago the report was sent that the server of budgets answered last.",
)
BUDGET_EPOCH = Metric("netmgr_budget_epoch", "The epoch of the server that answered last.")
BUDGET_ENFORCED = Metric(
    "netmgr_budget_enforced", "0 while nobody is held back by budgets, else 1."
)
POD_CONNECTIONS = Metric(
    "netmgr_pod_connections",
    "Connections in the node's connection table that a pod began, of the pods with the most.",
    ("namespace", "pod"),
    FULLEST,
)
TRACKED = Metric(
    "netmgr_tracked_connections",
    "Connections in the node's connection table, of pods and the node itself.",
)
TRACKED_MOST = Metric(
    "netmgr_tracked_connections_limit", "How many connections the table takes (nf_conntrack_max)."
)

ALWAYS = (BUILD, UP, SCRAPE)
"""Families of every scrape; all others are there only while the agent answers."""

CATALOG = metrics_of(globals())
"""Every family of the exporter's page."""
