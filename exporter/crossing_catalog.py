"""The metrics about what the rules drop and what NAT hosts translate; part of the catalogue, and counted as it is."""

from __future__ import annotations

from exporter.metric import Kind, Metric

SPOKES = 20
SPOKE_PAIRS = 2 * (SPOKES - 1)
"""A node drops between its own spoke and each other one, both ways; a hub router between all: 380."""
DROP_REASONS = 7
"""Of a node: spoofed, forged, link-local, router, redirect, dhcp, protected."""
NAMESPACES = 20
_FAMILIES = 2
NAT_RANGES = _FAMILIES
PORT_BUDGETS = _FAMILIES * 3
"""TCP, UDP and SCTP of each family."""


ISOLATION_PACKETS = Metric(
    "netmgr_isolation_dropped_packets_total",
    Kind.COUNTER,
    "packets",
    ("from", "to"),
    SPOKE_PAIRS,
    "Packets from one spoke to another that were dropped on this machine. Every pair it can drop is there.",
)
ISOLATION_BYTES = Metric(
    "netmgr_isolation_dropped_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("from", "to"),
    SPOKE_PAIRS,
    "Bytes (IP headers included) from one spoke to another that were dropped on this machine.",
)
_DROPS = (
    "Packets dropped here: spoofed, link-local, router, redirect, dhcp (what a pod may not send), forged (this "
    "machine's or its pods' addresses from elsewhere; on a router a site's), stranded (a NAT host's), protected."
)
DROPPED_PACKETS = Metric("netmgr_dropped_packets_total", Kind.COUNTER, "packets", ("reason",), DROP_REASONS, _DROPS)
DROPPED_BYTES = Metric(
    "netmgr_dropped_bytes_total", Kind.COUNTER, "bytes", ("reason",), DROP_REASONS, "IP bytes dropped here, by reason."
)
PROTECTED_PACKETS = Metric(
    "netmgr_namespace_protected_packets_total",
    Kind.COUNTER,
    "packets",
    ("namespace",),
    NAMESPACES,
    "Packets from a namespace's pods to addresses that `protect` keeps from them, dropped. Namespaces without any "
    "have no series.",
)
PROTECTED_BYTES = Metric(
    "netmgr_namespace_protected_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("namespace",),
    NAMESPACES,
    "Bytes (IP headers included) from a namespace's pods to addresses that `protect` keeps from them, dropped.",
)
NAT_PACKETS = Metric(
    "netmgr_nat_translated_packets_total",
    Kind.COUNTER,
    "packets",
    ("seen", "real"),
    NAT_RANGES,
    "On a NAT host, packets of connections to a Service range: as the hub sees it, and as it is in the spoke.",
)
NAT_BYTES = Metric(
    "netmgr_nat_translated_bytes_total",
    Kind.COUNTER,
    "bytes",
    ("seen", "real"),
    NAT_RANGES,
    "On a NAT host, bytes (IP headers included) of connections to a Service range.",
)
NAT_BUDGET = Metric(
    "netmgr_nat_port_budget",
    Kind.GAUGE,
    "",
    ("family", "protocol"),
    PORT_BUDGETS,
    "On a NAT host that gives clients its own addresses, the connections it can have toward one endpoint: 64,512 "
    "an address.",
)
NAT_USED = Metric(
    "netmgr_nat_ports_used",
    Kind.GAUGE,
    "",
    ("family", "protocol"),
    PORT_BUDGETS,
    "Connections toward the endpoint (address, port and protocol) that has most, by the kernel's connection table.",
)
NAT_SHARE = Metric(
    "netmgr_nat_ports_used_ratio",
    Kind.GAUGE,
    "ratio",
    ("family", "protocol"),
    PORT_BUDGETS,
    "The share of the port budget that is in use; at 1, new connections toward that endpoint fail.",
)
NAT_SERVICES = Metric(
    "netmgr_nat_services", Kind.GAUGE, "", (), 1, "On a NAT host with translation: endpoints, the Services it opens."
)
NAT_ENDPOINTS = Metric(
    "netmgr_nat_endpoints", Kind.GAUGE, "", (), 1, "Ready endpoints of the Services that a NAT host opens."
)
NAT_REFUSED = Metric(
    "netmgr_nat_documents_refused",
    Kind.GAUGE,
    "",
    (),
    1,
    "Services and EndpointSlices that a NAT host cannot use; its log and `netmgr nat status` say why.",
)

CROSSINGS = (
    ISOLATION_PACKETS,
    ISOLATION_BYTES,
    DROPPED_PACKETS,
    DROPPED_BYTES,
    PROTECTED_PACKETS,
    PROTECTED_BYTES,
    NAT_PACKETS,
    NAT_BYTES,
    NAT_BUDGET,
    NAT_USED,
    NAT_SHARE,
    NAT_SERVICES,
    NAT_ENDPOINTS,
    NAT_REFUSED,
)
