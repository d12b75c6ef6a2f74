"""Every metric, in one place: name, type, meaning, unit, labels and how many series it gives.

`series` is what a node with 250 pods in 20 namespaces exposes, with addresses of both
families, the four node rules in each of them, and a histogram of the usual buckets. A metric
whose number depends on what happens (CNI codes) has its upper bound there.

Names follow prometheus.io/docs/practices/naming. The three `iptables_…` families are those of
PyPI's iptables-exporter 0.9.3, so that dashboards made for it go on working.
"""

from __future__ import annotations

from exporter.crossing_catalog import CROSSINGS
from exporter.metric import Kind, Metric
from netmgr.snapshot import LATENCY_BUCKETS

PODS = 250
NAMESPACES = 20
TRAFFICS = 2
FAMILIES = 2
COMMANDS = 7
"""Six verbs, and "invalid" for whatever is none of them."""
CODES = 19
"""0, and every code of netmgr/errors.py."""
GAP_REASONS = 7
DRIFT_REASONS = 6
"""Rules, wiring, forwarding, routes, services, files."""
TABLES_OF_RULES = FAMILIES * 6
"""Chains of `raw`, `mangle` and `nat` with the backend iptables; every further chain of anybody's is one more."""


POD_BYTES = Metric(
    "netmgr_pod_traffic_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("namespace", "pod", "traffic"),
    PODS * TRAFFICS,
    "Bytes (IP headers included) between a pod and the internet, or a class of traffic. "
    "Lingers after the pod's end, then goes.",
)
POD_PACKETS = Metric(
    "netmgr_pod_traffic_packets_total",
    Kind.COUNTER,
    "packets",
    ("namespace", "pod", "traffic"),
    PODS * TRAFFICS,
    "Packets between a pod and the internet, or a class of traffic. Lingers after the pod's end, then goes.",
)
NAMESPACE_BYTES = Metric(
    "netmgr_namespace_traffic_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("namespace", "traffic"),
    NAMESPACES * TRAFFICS,
    "Bytes (IP headers included) between the internet and all pods that a namespace ever had on this node.",
)
NAMESPACE_PACKETS = Metric(
    "netmgr_namespace_traffic_packets_total",
    Kind.COUNTER,
    "packets",
    ("namespace", "traffic"),
    NAMESPACES * TRAFFICS,
    "Packets between the internet and all pods that a namespace ever had on this node.",
)
NODE_BYTES = Metric(
    "netmgr_node_traffic_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("traffic",),
    TRAFFICS,
    "Bytes (IP headers included) between the internet and this node: its own, its host-network pods', its pods'.",
)
NODE_PACKETS = Metric(
    "netmgr_node_traffic_packets_total",
    Kind.COUNTER,
    "packets",
    ("traffic",),
    TRAFFICS,
    "Packets between the internet and this node: its own, its host-network pods', its pods'.",
)
ORIGIN_BYTES = Metric(
    "netmgr_node_traffic_origin_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("origin", "traffic"),
    4 * TRAFFICS,
    "The node's total by whose it is: its pods', its host-network pods' (accounting.host_pods), its own, and what was "
    "forwarded for no pod (unattributed; transit where no pods run).",
)
RULE_BYTES = Metric(
    "iptables_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("ip_version", "table", "chain", "rule"),
    4 * FAMILIES,
    "Number of matched bytes, as iptables-exporter gives them: of the article's rules, from any backend, and of "
    "whatever other rule of iptables is tagged for it.",
)
RULE_PACKETS = Metric(
    "iptables_packets_total",
    Kind.COUNTER,
    "packets",
    ("ip_version", "table", "chain", "rule"),
    4 * FAMILIES,
    "Number of matched packets, as iptables-exporter gives them: of the article's rules, from any backend, and of "
    "whatever other rule of iptables is tagged for it.",
)
RULE_COUNT = Metric(
    "iptables_rules",
    Kind.GAUGE,
    "",
    ("ip_version", "table", "chain"),
    TABLES_OF_RULES,
    "Number of rules in a chain of iptables, as iptables-exporter gives it, for tables that exist.",
)
GAPS = Metric(
    "netmgr_accounting_gaps_total",
    Kind.COUNTER,
    "",
    ("reason",),
    GAP_REASONS,
    "Times that traffic may be missing from the totals: counters removed or reset by others, reboots, "
    "a state file that was unwritable, lost or an older copy, pods of other plugins that were noticed late.",
)
GAP_SECONDS = Metric(
    "netmgr_accounting_gap_seconds_total",
    Kind.COUNTER,
    "seconds",
    ("reason",),
    GAP_REASONS,
    "Time during which counting was possibly incomplete: from the last good reading of what was removed, reset or "
    "rebooted to the moment that was seen, as long as the state file could not be written, or until a pod was noticed.",
)
UNATTRIBUTED = Metric(
    "netmgr_accounting_unattributed_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("traffic",),
    TRAFFICS,
    "Bytes that the node's forward rules counted and no pod was counted for. Never overstated; lags by one reading.",
)
AUDIT_RATIO = Metric(
    "netmgr_accounting_audit_ratio",
    Kind.GAUGE,
    "ratio",
    ("against", "traffic"),
    2 * TRAFFICS,
    "What pods were counted for, divided by what the forward rules counted (against=forward; 1 is everything) or by "
    "what the pods' links carried, Ethernet headers taken off (against=links; their internet share, never above 1).",
)
FORWARDED = Metric(
    "netmgr_accounting_forwarded_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("traffic",),
    TRAFFICS,
    "Bytes (IP headers included) that the node forwarded between the internet and whatever is on it.",
)
DURABLE = Metric(
    "netmgr_accounting_durable",
    Kind.GAUGE,
    "",
    (),
    1,
    "1 while totals reach the disk; at 0 they are in the agent's memory alone, and its end would lose them.",
)
DRIFT = Metric(
    "netmgr_rules_drift_repaired_total",
    Kind.COUNTER,
    "",
    ("reason",),
    DRIFT_REASONS,
    "Things of netmgr's (rules, links and routes of pods, forwarding, static routes, Services' translations, state "
    "files and sockets) that another program changed or removed and that were put right.",
)
ADDRESSES = Metric(
    "netmgr_ipam_addresses",
    Kind.GAUGE,
    "",
    ("family", "state"),
    FAMILIES * 4,
    "Addresses of the node's ranges: allocated, cooldown (released, not yet to be reused) or free; and those that are "
    "of no range any more while a pod still holds them: withdrawn.",
)
RANGES_KNOWN = Metric(
    "netmgr_ranges_known",
    Kind.GAUGE,
    "",
    ("source",),
    1,
    "1 while what the source of the node's ranges says can be used whole; `netmgr node status` says why not.",
)
RESULT_FILES = Metric(
    "netmgr_observer_result_files",
    Kind.GAUGE,
    "",
    ("state",),
    8,
    "With cni: off, files of the runtime's result cache: counted, stale (the kernel has nothing of them), superseded "
    "(their address is another pod's now), or why they cannot be used.",
)
LONGEST_DELAY = Metric(
    "netmgr_observer_longest_delay_seconds",
    Kind.GAUGE,
    "seconds",
    (),
    1,
    "With cni: off, the longest since the agent started from a pod's wiring to the begin of its counter: what a pod "
    "sends before it is not in its totals.",
)
REQUESTS = Metric(
    "netmgr_cni_requests_total",
    Kind.COUNTER,
    "",
    ("command", "code"),
    COMMANDS * CODES,
    "CNI requests answered, by verb and CNI error code; 0 is success.",
)
DURATIONS = Metric(
    "netmgr_cni_request_duration_seconds",
    Kind.HISTOGRAM,
    "seconds",
    ("command",),
    COMMANDS * (len(LATENCY_BUCKETS) + 3),
    "Time the agent took to answer a CNI request, by verb.",
)
REBUILDS = Metric(
    "netmgr_state_rebuilds_total",
    Kind.COUNTER,
    "",
    (),
    1,
    "State files that were found damaged, set aside and rebuilt from the kernel.",
)
STARTED = Metric(
    "netmgr_agent_start_time_seconds",
    Kind.GAUGE,
    "seconds",
    (),
    1,
    "When the agent started, since the epoch: counters of requests, repairs and rebuilds begin at zero then.",
)
READY = Metric(
    "netmgr_agent_ready",
    Kind.GAUGE,
    "",
    (),
    1,
    "1 while the agent can do what it is for: serve an ADD, find pods (cni: off), or forward between sites; else 0.",
)
BUILD = Metric(
    "netmgr_build_info",
    Kind.GAUGE,
    "",
    ("version", "backend", "node", "role"),
    1,
    "Always 1; the labels tell the agent's version, rule backend and role. While it is away: the exporter's version "
    "alone.",
)
DROPPED = Metric(
    "netmgr_exporter_dropped_series",
    Kind.GAUGE,
    "",
    ("pods",),
    2,
    "Series left out of this scrape because of --max-series, by their pods: lingering ones go first, then live "
    "ones with the least traffic. Namespaces' and the node's totals are always whole.",
)
UP = Metric("netmgr_up", Kind.GAUGE, "", (), 1, "1 if the agent answered this scrape, else 0.")
SCRAPE = Metric(
    "netmgr_exporter_scrape_duration_seconds",
    Kind.GAUGE,
    "seconds",
    (),
    1,
    "Time this scrape took to get the agent's answer and arrange it.",
)

FROM_AGENT = (
    POD_BYTES,
    POD_PACKETS,
    NAMESPACE_BYTES,
    NAMESPACE_PACKETS,
    NODE_BYTES,
    NODE_PACKETS,
    ORIGIN_BYTES,
    RULE_BYTES,
    RULE_PACKETS,
    RULE_COUNT,
    GAPS,
    GAP_SECONDS,
    UNATTRIBUTED,
    AUDIT_RATIO,
    FORWARDED,
    DURABLE,
    DRIFT,
    *CROSSINGS,
    ADDRESSES,
    RESULT_FILES,
    LONGEST_DELAY,
    REQUESTS,
    DURATIONS,
    REBUILDS,
    STARTED,
    READY,
    RANGES_KNOWN,
    DROPPED,
)
"""Families that are there only while the agent answers."""

ALWAYS = (BUILD, UP, SCRAPE)
"""Families of every scrape."""

CATALOG = (*FROM_AGENT, *ALWAYS)
