"""Recording rules: what dashboards and alerts read instead of hundreds of thousands of series.

7,500 nodes with 30 pods each have 450,000 series of pod bytes. A rule reads them once a minute,
which took Prometheus 2.42 4 to 5 s, 7 % of one core (stored samples of 30 s, two cores); what it
leaves are a few hundred series a cluster, however many pods there are. Names follow
prometheus.io/docs/practices/rules: level:metric:operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter import catalog
from exporter.monitoring.promql import buckets, largest, read, stem, total

INTERVAL_SECONDS = 60
BASELINE_SECONDS = 240
"""Reading an hour of every pod is costly; Prometheus forgets a series after 5 minutes."""

TOP_PODS = 20
BASELINE_PODS = 200
TOP_NODES = 20


@dataclass(frozen=True, slots=True)
class Recorded:
    """One rule. `labels` are those its series have."""

    name: str
    labels: tuple[str, ...]
    expression: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, every `seconds`."""

    name: str
    seconds: int
    rules: tuple[Recorded, ...]


def _sum(level: tuple[str, ...], of: str, operation: str, expression: str) -> Recorded:
    return Recorded(f"{'_'.join(level)}:{of}:{operation}", level, total(expression, *level))


CLUSTER_BYTES = _sum(
    ("cluster", "traffic"),
    stem(catalog.NODE_BYTES),
    "rate5m",
    f"rate({read(catalog.NODE_BYTES, '5m')})",
)
NAMESPACE_BYTES = _sum(
    ("cluster", "namespace", "traffic"),
    stem(catalog.NAMESPACE_BYTES),
    "rate5m",
    f"rate({read(catalog.NAMESPACE_BYTES, '5m')})",
)
ADDRESSES = _sum(
    ("cluster", "family", "state"), catalog.ADDRESSES.name, "sum", read(catalog.ADDRESSES)
)
REQUESTS = _sum(
    ("cluster", "command", "code"),
    stem(catalog.REQUESTS),
    "rate5m",
    f"rate({read(catalog.REQUESTS, '5m')})",
)
DURATIONS = _sum(
    ("cluster", "command", "le"),
    buckets(catalog.DURATIONS).name,
    "rate5m",
    f"rate({read(buckets(catalog.DURATIONS), '5m')})",
)


ISOLATION = _sum(
    ("cluster", "from", "to"),
    stem(catalog.ISOLATION_PACKETS),
    "rate5m",
    f"rate({read(catalog.ISOLATION_PACKETS, '5m')})",
)
UNATTRIBUTED = _sum(
    ("cluster", "traffic"),
    stem(catalog.UNATTRIBUTED),
    "rate5m",
    f"rate({read(catalog.UNATTRIBUTED, '5m')})",
)
FORWARDED = _sum(
    ("cluster", "traffic"),
    stem(catalog.FORWARDED),
    "rate5m",
    f"rate({read(catalog.FORWARDED, '5m')})",
)


def _pods(number: int, window: str, *, known_for: str = "") -> Recorded:
    """The busiest pods of each cluster. Summed first: a pod that moved has series on two nodes.

    With `known_for`, only pods that old: a rate over an hour means nothing for a younger pod.
    """
    labels = ("cluster", "namespace", "pod", "traffic")
    rates = total(f"rate({read(catalog.POD_BYTES, window)})", *labels)
    # Idle pods are left out before `topk`, which would fill up with zeros in a quiet cluster.
    active = f"{rates} > 0"
    if known_for:
        # A sample an hour ago shows that the pod is that old.
        active += f" and {total(f'{read(catalog.POD_BYTES)} offset {known_for}', *labels)}"
    name = f"cluster_namespace_pod_traffic:{stem(catalog.POD_BYTES)}:rate{window}_topk{number}"
    return Recorded(name, labels, largest(number, active, "cluster", "traffic"))


def _fullest_nodes() -> Recorded:
    # Cooling and withdrawn addresses are taken: no pod can get them.
    taken = total(read(catalog.ADDRESSES, state="!=free"), "cluster", "instance", "family")
    every = total(read(catalog.ADDRESSES), "cluster", "instance", "family")
    name = f"cluster_instance_family:{catalog.ADDRESSES.name}:used_ratio_topk{TOP_NODES}"
    return Recorded(
        name,
        ("cluster", "instance", "family"),
        largest(TOP_NODES, f"{taken} / {every}", "cluster", "family"),
    )


BUSIEST_PODS = _pods(TOP_PODS, "5m")
PODS_OF_THE_HOUR = _pods(BASELINE_PODS, "1h", known_for="1h")
FULLEST_NODES = _fullest_nodes()

GROUPS = (
    Group(
        "netmgr-totals",
        INTERVAL_SECONDS,
        (
            CLUSTER_BYTES,
            NAMESPACE_BYTES,
            ADDRESSES,
            FULLEST_NODES,
            REQUESTS,
            DURATIONS,
            ISOLATION,
            UNATTRIBUTED,
            FORWARDED,
        ),
    ),
    Group("netmgr-pods", INTERVAL_SECONDS, (BUSIEST_PODS,)),
    Group("netmgr-baseline", BASELINE_SECONDS, (PODS_OF_THE_HOUR,)),
)
"""Every recording rule."""
