"""The dashboards of netmgr itself: are figures right, nodes sound, and who leads?

They read every node's own series, which are a few tens each, and show sums or the worst.
"""

from __future__ import annotations

from exporter import catalog, controller_catalog, limits_catalog
from exporter.metric import Metric
from exporter.monitoring.dashboard import CLUSTER, Dashboard, Panel, Query
from exporter.monitoring.promql import largest, of_leader, read, total
from exporter.monitoring.recording import FORWARDED, UNATTRIBUTED

SHOWN_NODES = 20


def _grown(metric: Metric, *labels: str) -> str:
    """By how much a counter grew in an hour."""
    return total(f"increase({read(metric, '1h', cluster=CLUSTER)})", *labels)


def _nodes_at(metric: Metric, value: int) -> str:
    # Without `or`, a panel would be empty where it should say zero.
    return f"count({read(metric, cluster=CLUSTER)} == {value}) or vector(0)"


ACCOUNTING = Dashboard(
    "netmgr-accounting",
    "netmgr: is my accounting right?",
    (
        Panel(
            "Gaps within an hour, by reason",
            "short",
            (Query(_grown(catalog.GAPS, "reason"), "{{reason}}"),),
            meaning="Times that bytes may be missing. None: every byte is there.",
        ),
        Panel(
            "Time that the gaps of an hour cover",
            "s",
            (Query(_grown(catalog.GAP_SECONDS, "reason"), "{{reason}}"),),
            meaning="Added up over all nodes.",
        ),
        Panel(
            "Nodes with the longest gaps",
            "s",
            (
                Query(
                    largest(SHOWN_NODES, f"{_grown(catalog.GAP_SECONDS, 'instance')} > 0"),
                    "{{instance}}",
                ),
            ),
            kind="bargauge",
        ),
        Panel(
            "Repairs of what other programs changed, within an hour",
            "short",
            (Query(_grown(catalog.DRIFT, "reason"), "{{reason}}"),),
            meaning="Rules that come back again and again mean another program that owns them too.",
        ),
        Panel(
            "Forwarded for no pod",
            "percentunit",
            (
                Query(
                    f"{total(read(UNATTRIBUTED, cluster=CLUSTER), 'traffic')} / "
                    f"{total(read(FORWARDED, cluster=CLUSTER), 'traffic')}",
                    "{{traffic}}",
                ),
            ),
            meaning="Of what nodes forward to and from the internet. `netmgr node audit` explains "
            "it.",
        ),
        Panel(
            "Lowest audit ratio",
            "percentunit",
            (
                Query(
                    f"min by (against, traffic) ({read(catalog.AUDIT_RATIO, cluster=CLUSTER)})",
                    "{{traffic}} against {{against}}",
                ),
            ),
            meaning="Against the forward rules, 100 % is everything. Against links it is the share "
            "that is internet.",
        ),
        Panel(
            "Arrived for pods and dropped by others' filters",
            "Bps",
            (
                Query(
                    f"sum(rate({read(catalog.UNDELIVERED, '5m', cluster=CLUSTER)}))", "undelivered"
                ),
            ),
        ),
        Panel(
            "Nodes",
            "short",
            (
                Query(_nodes_at(catalog.DURABLE, 0), "whose totals are not on disk"),
                Query(
                    f"count({read(catalog.FOREIGN_FLOWTABLES, cluster=CLUSTER)} > 0) or vector(0)",
                    "with others' flowtables",
                ),
                Query(
                    f"count({read(catalog.DROPPED, cluster=CLUSTER)} > 0) or vector(0)",
                    "that leave pods out of scrapes",
                ),
            ),
            kind="stat",
        ),
    ),
)

HEALTH = Dashboard(
    "netmgr-nodes",
    "netmgr: node health",
    (
        Panel(
            "Nodes",
            "short",
            (
                Query(_nodes_at(catalog.UP, 0), "agent does not answer"),
                Query(_nodes_at(catalog.READY, 0), "not ready"),
                Query(_nodes_at(catalog.RANGES_KNOWN, 0), "cannot follow their ranges"),
            ),
            kind="stat",
        ),
        Panel(
            "Problems that last, by reason",
            "short",
            (Query(total(read(catalog.PROBLEMS, cluster=CLUSTER), "reason"), "{{reason}}"),),
            stacked=True,
            meaning="Nodes that have them. `netmgr node status` there says what to do.",
        ),
        Panel(
            "Nodes with problems",
            "short",
            (
                Query(
                    largest(SHOWN_NODES, f"{read(catalog.PROBLEMS, cluster=CLUSTER)} == 1"),
                    "{{instance}} {{reason}}",
                ),
            ),
            kind="bargauge",
        ),
        Panel(
            "Fullest connection tables",
            "percentunit",
            (
                Query(
                    largest(
                        SHOWN_NODES,
                        f"{read(limits_catalog.TRACKED, cluster=CLUSTER)} / "
                        f"{read(limits_catalog.TRACKED_MOST, cluster=CLUSTER)}",
                    ),
                    "{{instance}}",
                ),
            ),
            meaning="At 100 % nobody on the node can connect.",
        ),
        Panel(
            "Dropped, by reason",
            "pps",
            (
                Query(
                    total(
                        f"rate({read(catalog.DROPPED_PACKETS, '5m', cluster=CLUSTER)})", "reason"
                    ),
                    "{{reason}}",
                ),
            ),
            meaning="What pods may not send, and forged sources. Kernels send some link-local "
            "packets by themselves.",
        ),
        Panel(
            "Missing routes, and others' that outrank ours",
            "short",
            (
                Query(
                    largest(SHOWN_NODES, f"{read(catalog.ROUTE_FAULTS, cluster=CLUSTER)} > 0"),
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Agents that started within an hour",
            "short",
            (
                Query(
                    f"count(time() - {read(catalog.STARTED, cluster=CLUSTER)} < 3600) or vector(0)",
                    "started",
                ),
            ),
            meaning="An upgrade, or agents that crash.",
        ),
        Panel(
            "State files rebuilt within an hour",
            "short",
            (Query(f"sum(increase({read(catalog.REBUILDS, '1h', cluster=CLUSTER)}))", "rebuilt"),),
        ),
    ),
)


def _by_leader(metric: Metric, *labels: str) -> str:
    return total(of_leader(metric, cluster=CLUSTER), *labels)


CONTROLLER = Dashboard(
    "netmgr-controller",
    "netmgr: controller",
    (
        Panel(
            "Controllers that lead",
            "short",
            (
                Query(
                    total(read(controller_catalog.LEADER, cluster=CLUSTER), "cluster"),
                    "{{cluster}}",
                ),
            ),
            meaning="One in each cluster.",
        ),
        Panel(
            "Nodes, by what they were given",
            "short",
            (Query(_by_leader(controller_catalog.NODES, "state"), "{{state}}"),),
            stacked=True,
            meaning="Refused Nodes have an Event that says why.",
        ),
        Panel(
            "Free allocations, by node pool",
            "short",
            (
                Query(
                    total(
                        of_leader(controller_catalog.ALLOCATIONS, cluster=CLUSTER, state="free"),
                        "cluster",
                        "pool",
                    ),
                    "{{cluster}} {{pool}}",
                ),
            ),
            meaning="Where none is free, the next Node is refused.",
        ),
        Panel(
            "Requests to the API server",
            "reqps",
            (
                Query(
                    total(
                        f"rate({read(controller_catalog.API_REQUESTS, '5m', cluster=CLUSTER)})",
                        "verb",
                        "code",
                    ),
                    "{{verb}} {{code}}",
                ),
            ),
            meaning="Code 0: no answer.",
        ),
        Panel(
            "Nodes that were given ranges, and writes that met another's, within an hour",
            "short",
            (
                Query(
                    f"sum(increase({read(controller_catalog.ASSIGNMENTS, '1h', cluster=CLUSTER)}))",
                    "assigned",
                ),
                Query(_grown(controller_catalog.CONFLICTS, "of"), "conflicts of {{of}}"),
            ),
        ),
        Panel(
            "Full lists since the controller leads",
            "short",
            (Query(_by_leader(controller_catalog.LISTS, "of"), "{{of}}"),),
            meaning="One of each; more means watches that the API server ended with 410.",
        ),
        Panel(
            "Plans that are not in force",
            "short",
            (Query(_by_leader(controller_catalog.PLAN_REFUSED, "cluster"), "{{cluster}}"),),
            meaning="The plan on disk would move Nodes, or cannot be read.",
        ),
    ),
)
