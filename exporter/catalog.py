"""Every metric, in one place: name, type, meaning, unit, labels and how many series it gives.

`series` is what a node with 250 pods in 20 namespaces exposes, with addresses of both
families, the four node rules in each of them, and a histogram of the usual buckets. A metric
whose number depends on what happens (CNI codes) has its upper bound there.

Names follow prometheus.io/docs/practices/naming. The two `iptables_…` families are those of
PyPI's iptables-exporter 0.9.3, so that dashboards made for it go on working.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from netmgr.snapshot import LATENCY_BUCKETS

PODS = 250
NAMESPACES = 20
TRAFFICS = 2
FAMILIES = 2
COMMANDS = 7
"""Six verbs, and "invalid" for whatever is none of them."""
CODES = 18
"""0, and every code of netmgr/errors.py."""
DRIFT_REASONS = 2


class Kind(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `name` is the exposed one: a counter's ends in _total, a histogram's takes its suffixes."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    series: int
    help: str


POD_BYTES = Metric(
    "netmgr_pod_traffic_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("namespace", "pod", "traffic"),
    PODS * TRAFFICS,
    "Bytes (IP headers included) between a pod and the internet. Lingers after the pod's end, then goes.",
)
POD_PACKETS = Metric(
    "netmgr_pod_traffic_packets_total",
    Kind.COUNTER,
    "packets",
    ("namespace", "pod", "traffic"),
    PODS * TRAFFICS,
    "Packets between a pod and the internet. Lingers after the pod's end, then goes.",
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
RULE_BYTES = Metric(
    "iptables_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("ip_version", "table", "chain", "rule"),
    4 * FAMILIES,
    "Number of matched bytes, as iptables-exporter gives them: the rule's own counter, from either backend.",
)
RULE_PACKETS = Metric(
    "iptables_packets_total",
    Kind.COUNTER,
    "packets",
    ("ip_version", "table", "chain", "rule"),
    4 * FAMILIES,
    "Number of matched packets, as iptables-exporter gives them: the rule's own counter, from either backend.",
)
GAPS = Metric(
    "netmgr_accounting_gaps_total",
    Kind.COUNTER,
    "",
    ("reason",),
    5,
    "Times that traffic may be missing from the totals: counters removed or reset by others, reboots, "
    "an unwritable state file, pods of other plugins that were noticed late.",
)
DRIFT = Metric(
    "netmgr_rules_drift_repaired_total",
    Kind.COUNTER,
    "",
    ("reason",),
    DRIFT_REASONS,
    "Rules, sets or elements that another program changed or removed and that were put right.",
)
ADDRESSES = Metric(
    "netmgr_ipam_addresses",
    Kind.GAUGE,
    "",
    ("family", "state"),
    FAMILIES * 3,
    "Addresses of the node's ranges: allocated, cooldown (released, not yet to be reused) or free.",
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
READY = Metric(
    "netmgr_agent_ready",
    Kind.GAUGE,
    "",
    (),
    1,
    "1 while the agent can serve an ADD or, with cni: off, find pods; else 0.",
)
BUILD = Metric(
    "netmgr_build_info",
    Kind.GAUGE,
    "",
    ("version", "backend", "node"),
    1,
    "Always 1; the labels tell the agent's version and rule backend. While it is away: the exporter's version alone.",
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
    RULE_BYTES,
    RULE_PACKETS,
    GAPS,
    DRIFT,
    ADDRESSES,
    RESULT_FILES,
    LONGEST_DELAY,
    REQUESTS,
    DURATIONS,
    REBUILDS,
    READY,
    DROPPED,
)
"""Families that are there only while the agent answers."""

ALWAYS = (BUILD, UP, SCRAPE)
"""Families of every scrape."""

CATALOG = (*FROM_AGENT, *ALWAYS)
