"""The dashboards of traffic, addresses, CNI and sites; nearly all read recorded series."""

from __future__ import annotations

from exporter import catalog, controller_catalog, limits_catalog
from exporter.metric import Metric
from exporter.monitoring.dashboard import CLUSTER, Dashboard, Panel, Query
from exporter.monitoring.operations import ACCOUNTING, CONTROLLER, HEALTH
from exporter.monitoring.promql import largest, of_leader, read, total
from exporter.monitoring.recording import (
    ADDRESSES,
    BUSIEST_PODS,
    CLUSTER_BYTES,
    DURATIONS,
    FORWARDED,
    FULLEST_NODES,
    ISOLATION,
    NAMESPACE_BYTES,
    REQUESTS,
    UNATTRIBUTED,
)

SHOWN_NAMESPACES = 20
STEP_SECONDS = 20
"""Between the samples that a volume is summed from."""


def _by_namespace(traffic: str) -> Query:
    rates = read(NAMESPACE_BYTES, cluster=CLUSTER, traffic=traffic)
    return Query(largest(SHOWN_NAMESPACES, total(rates, "namespace")), "{{namespace}}")


def _by_pod(traffic: str) -> Query:
    return Query(read(BUSIEST_PODS, cluster=CLUSTER, traffic=traffic), "{{namespace}}/{{pod}}")


def _volume(window: str) -> Query:
    # A subquery has samples at a fixed step, whatever interval the rule is evaluated at.
    samples = read(
        NAMESPACE_BYTES, f"{window}:{STEP_SECONDS}s", cluster=CLUSTER, traffic="internet-out"
    )
    volumes = total(f"sum_over_time({samples})", "namespace")
    return Query(largest(SHOWN_NAMESPACES, f"{volumes} * {STEP_SECONDS}"), "{{namespace}}")


def _addresses(family: str) -> Query:
    return Query(total(read(ADDRESSES, cluster=CLUSTER, family=family), "state"), "{{state}}")


def _quantile(share: float) -> Query:
    durations = total(read(DURATIONS, cluster=CLUSTER), "command", "le")
    return Query(f"histogram_quantile({share}, {durations})", "{{command}}")


def _by_controller(metric: Metric, *labels: str) -> str:
    return total(of_leader(metric, cluster=CLUSTER), *labels)


_forwarded = total(read(FORWARDED, cluster=CLUSTER), "traffic")

EGRESS = Dashboard(
    "netmgr-egress",
    "netmgr: egress by namespace",
    (
        Panel(
            "To the internet, by namespace", "Bps", (_by_namespace("internet-out"),), stacked=True
        ),
        Panel(
            "From the internet, by namespace", "Bps", (_by_namespace("internet-in"),), stacked=True
        ),
        Panel(
            "Sent to the internet in the last 24 hours",
            "bytes",
            (_volume("24h"),),
            kind="bargauge",
            meaning=f"From recorded rates, one every {STEP_SECONDS} s; for bills, take the "
            "counters themselves.",
        ),
        Panel(
            "Whole clusters, nodes and host-network pods included",
            "Bps",
            (
                Query(
                    total(read(CLUSTER_BYTES, cluster=CLUSTER), "cluster", "traffic"),
                    "{{cluster}} {{traffic}}",
                ),
            ),
        ),
        Panel(
            "Forwarded, and what of it pods were counted for",
            "Bps",
            (
                Query(_forwarded, "{{traffic}}"),
                Query(
                    f"{_forwarded} - {total(read(UNATTRIBUTED, cluster=CLUSTER), 'traffic')}",
                    "{{traffic}}, pods'",
                ),
            ),
        ),
    ),
)
_LIMIT_SHARE = (
    f"rate({read(limits_catalog.LIMIT_BYTES, '5m', cluster=CLUSTER)})"
    f" / {read(limits_catalog.LIMIT_RATE, cluster=CLUSTER)}"
)

_QUOTA_SHARE = (
    f"{read(limits_catalog.QUOTA_USED, cluster=CLUSTER)}"
    f" / {read(limits_catalog.QUOTA, cluster=CLUSTER)}"
)

TALKERS = Dashboard(
    "netmgr-talkers",
    "netmgr: top talkers",
    (
        Panel("Pods that send most to the internet", "Bps", (_by_pod("internet-out"),)),
        Panel("Pods that receive most from the internet", "Bps", (_by_pod("internet-in"),)),
        Panel("Sending most now", "Bps", (_by_pod("internet-out"),), kind="bargauge"),
        Panel("Receiving most now", "Bps", (_by_pod("internet-in"),), kind="bargauge"),
        Panel(
            "Nearest to their limits",
            "percentunit",
            (Query(largest(SHOWN_NAMESPACES, _LIMIT_SHARE), "{{namespace}}/{{pod}} {{traffic}}"),),
            meaning="What limits let pass, of the limit; without a pod, a namespace's on one node.",
        ),
        Panel(
            "Delayed by limits, times a second",
            "ops",
            (
                Query(
                    largest(
                        SHOWN_NAMESPACES,
                        f"rate({read(limits_catalog.LIMIT_DELAYS, '5m', cluster=CLUSTER)})",
                    ),
                    "{{namespace}}/{{pod}} {{traffic}}",
                ),
            ),
        ),
        Panel(
            "Nearest to their quotas",
            "percentunit",
            (
                Query(
                    largest(SHOWN_NAMESPACES, _QUOTA_SHARE),
                    "{{namespace}}/{{pod}} {{traffic}} a {{period}}",
                ),
            ),
            meaning="What is used of a day's or month's; without a pod, a namespace's on one node.",
        ),
        Panel(
            "Connections that pods began",
            "short",
            (
                Query(
                    largest(
                        SHOWN_NAMESPACES, read(limits_catalog.POD_CONNECTIONS, cluster=CLUSTER)
                    ),
                    "{{namespace}}/{{pod}}",
                ),
            ),
            meaning="In their nodes' connection tables.",
        ),
    ),
)
POOLS = Dashboard(
    "netmgr-pools",
    "netmgr: node pools",
    (
        Panel("IPv4 addresses by state", "short", (_addresses("ipv4"),), stacked=True),
        Panel("IPv6 addresses by state", "short", (_addresses("ipv6"),), stacked=True),
        Panel(
            "Fullest nodes",
            "percentunit",
            (Query(read(FULLEST_NODES, cluster=CLUSTER), "{{instance}} {{family}}"),),
            meaning="Allocated or cooling down, of all the node has.",
        ),
        Panel(
            "Nodes",
            "short",
            (
                Query(f"count({read(catalog.UP, cluster=CLUSTER)})", "scraped"),
                Query(f"sum({read(catalog.UP, cluster=CLUSTER)})", "agent answers"),
                Query(f"sum({read(catalog.READY, cluster=CLUSTER)})", "ready for pods"),
            ),
            kind="stat",
        ),
        Panel(
            "Nodes, by what the range controller gave them",
            "short",
            (Query(_by_controller(controller_catalog.NODES, "state"), "{{state}}"),),
            stacked=True,
            meaning="Refused Nodes have an Event that says why.",
        ),
        Panel(
            "Allocations of the plan, by node pool",
            "short",
            (
                Query(
                    _by_controller(controller_catalog.ALLOCATIONS, "pool", "state"),
                    "{{pool}} {{state}}",
                ),
            ),
            meaning="Where none is free, the next Node is refused.",
        ),
    ),
)
LATENCY = Dashboard(
    "netmgr-cni",
    "netmgr: CNI latency",
    (
        Panel("Half of all requests take at most", "s", (_quantile(0.5),)),
        Panel("99 in 100 requests take at most", "s", (_quantile(0.99),)),
        Panel(
            "Requests",
            "reqps",
            (Query(total(read(REQUESTS, cluster=CLUSTER), "command"), "{{command}}"),),
        ),
        Panel(
            "Refused and failed requests",
            "reqps",
            (
                Query(
                    total(read(REQUESTS, cluster=CLUSTER, code="!=0"), "command", "code"),
                    "{{command}} {{code}}",
                ),
            ),
            meaning="By CNI error code: below 100 the specification's, from 100 netmgr's own.",
        ),
    ),
)

_TRANSLATED = f"rate({read(catalog.NAT_BYTES, '5m', cluster=CLUSTER)})"
SITES = Dashboard(
    "netmgr-sites",
    "netmgr: hub and spokes",
    (
        Panel(
            "Dropped between spokes",
            "pps",
            (Query(total(read(ISOLATION, cluster=CLUSTER), "from", "to"), "{{from}} to {{to}}"),),
            stacked=True,
        ),
        Panel(
            "Through NAT hosts, by VIP range",
            "Bps",
            (Query(total(_TRANSLATED, "instance", "vip_range"), "{{instance}} {{vip_range}}"),),
            stacked=True,
        ),
        Panel(
            "Ports toward the busiest endpoint, of all there are",
            "percentunit",
            (
                Query(
                    read(catalog.NAT_SHARE, cluster=CLUSTER),
                    "{{instance}} {{family}} {{protocol}}",
                ),
            ),
            meaning="At 100 % new connections to that endpoint fail.",
        ),
        Panel(
            "Services",
            "short",
            (
                Query(f"sum({read(catalog.NAT_SERVICES, cluster=CLUSTER)})", "opened"),
                Query(
                    f"sum({read(catalog.NAT_ENDPOINTS, cluster=CLUSTER)})",
                    "ready endpoints",
                ),
                Query(
                    f"sum({read(catalog.NAT_REFUSED, cluster=CLUSTER)})",
                    "documents refused",
                ),
            ),
            kind="stat",
        ),
    ),
)

DASHBOARDS = (EGRESS, TALKERS, ACCOUNTING, POOLS, HEALTH, LATENCY, SITES, CONTROLLER)
"""Every dashboard."""
