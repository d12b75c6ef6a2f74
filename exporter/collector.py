"""The agent's snapshot as metric families, in one pass, made anew for every scrape."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from exporter import bounds, catalog, limits_catalog
from exporter.metric import Kind, Metric
from netmgr import __version__
from netmgr.api.snapshot import (
    ConnectionLimitState,
    DroppedTotals,
    Fault,
    LimitState,
    NatState,
    QuotaState,
    RefusedTotals,
    RuleReading,
    Snapshot,
    TrafficTotals,
    TranslatedRange,
)
from netmgr.errors import NetmgrError

log = logging.getLogger(__name__)

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What an answer that is not a snapshot may raise."""

OWN_SERIES = catalog.DROPPED.series + catalog.UP.series + catalog.SCRAPE.series
"""Series that a page has beside those of the agent's answer."""

Labels = tuple[str, ...]
"""Label values, in the order of the catalogue's names."""

Amounts = TrafficTotals | RuleReading | DroppedTotals | RefusedTotals | TranslatedRange | LimitState
"""What has bytes and packets."""


class Collector:
    """A prometheus_client collector over `read`, which fetches one snapshot or raises NetmgrError.

    `max_series` bounds a page, 0 does not: `exporter/bounds.py` says which pods are left out.
    """

    def __init__(self, read: Callable[[], Snapshot], max_series: int = 0) -> None:
        self._read = read
        self._max_series = max_series
        self._last_fault = ""

    def describe(self) -> Iterable[Family]:
        """Every family without samples: what the registry checks names with."""
        return map(_empty, catalog.CATALOG)

    def collect(self) -> Iterable[Family]:
        """The current families; without a valid answer of the agent only `ALWAYS`."""
        began = time.perf_counter()
        families = self._families()
        up = _family(catalog.UP, [((), bool(families))])
        # Prometheus' guide to exporters asks for an `…_up` of 0 rather than a failed scrape: then
        # an alert distinguishes a stopped agent from a stopped exporter.
        known = families or [_family(catalog.BUILD, [((__version__, "", "", ""), 1)])]
        return [*known, up, _family(catalog.SCRAPE, [((), time.perf_counter() - began)])]

    def _families(self) -> list[Family]:
        """The families of the agent's answer; none unless all of it makes sense."""
        try:
            families = self._of(self._read())
        except NetmgrError as error:
            self._report(error.message)
        except NONSENSE as error:
            self._report(f"the agent's answer makes no sense: {error!r}")
        else:
            self._report("")
            return families
        return []

    def _of(self, snapshot: Snapshot) -> list[Family]:
        # Metrics made for this scrape alone, not kept ones: a pod's series must end with the pod.
        rest = [*_traffic(snapshot), *_accounting(snapshot), *_inter_site(snapshot)]
        rest += [*_of_tracking(snapshot), _of_problems(snapshot), *_of_agent(snapshot)]
        selection = bounds.Selection(snapshot["pods"])
        room = catalog.REMOTE_POD_BYTES.series
        limits = bounds.by_size(snapshot.get("limits", ()))
        connections = sorted(snapshot.get("connection_limits", ()), key=lambda one: -one["dropped"])
        quotas = bounds.by_use(snapshot.get("quotas", ()))
        if self._max_series:
            # Pods get the room that everything else leaves, limits and then quotas what these
            # leave, and other nodes' pods what is left then.
            left = self._max_series - sum(len(one.samples) for one in rest) - OWN_SERIES
            selection = bounds.select(snapshot["pods"], left)
            left -= len(selection.shown) * bounds.SERIES_PER_TOTAL
            limits = limits[: max(0, left) // bounds.SERIES_PER_LIMIT]
            left -= len(limits) * bounds.SERIES_PER_LIMIT
            quotas = quotas[: max(0, left) // bounds.SERIES_PER_QUOTA]
            left -= len(quotas) * bounds.SERIES_PER_QUOTA
            connections = connections[: max(0, left)]
            room = min(room, max(0, left - len(connections)))
        pods = [((pod["namespace"], pod["pod"], pod["traffic"]), pod) for pod in selection.shown]
        dropped = [
            (("lingering",), selection.dropped_lingering),
            (("live",), selection.dropped_live),
        ]
        return [
            *_amounts(catalog.POD_BYTES, catalog.POD_PACKETS, pods),
            *rest,
            *_of_limits(limits),
            _of_connections(connections),
            *_of_quotas(quotas),
            _remote(snapshot, room),
            _family(catalog.DROPPED, dropped),
        ]

    def _report(self, fault: str) -> None:
        """Log a fault once, not at every scrape, and its end."""
        if fault and fault != self._last_fault:
            log.warning("agent-unread error=%s", fault)
        elif self._last_fault and not fault:
            log.info("agent-read-again")
        self._last_fault = fault


def _empty(metric: Metric) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        return _empty_histogram(metric)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return make(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def _empty_histogram(metric: Metric) -> HistogramMetricFamily:
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def _family(metric: Metric, values: Iterable[tuple[Labels, float]]) -> Family:
    """A family with these samples.

    Raises:
        TypeError, ValueError, AttributeError: a label is not text, or a value not a number.
    """
    return _of_samples(metric, ((_named(metric, labels), value) for labels, value in values))


def _named(metric: Metric, labels: Labels) -> dict[str, str]:
    """A sample's labels by name."""
    # `bounded` also refuses a label that is not text: prometheus_client would fail only while it
    # writes the page, and lose every other series with it.
    return dict(zip(metric.labels, map(bounds.bounded, labels), strict=True))


def _of_samples(metric: Metric, samples: Iterable[tuple[dict[str, str], float]]) -> Family:
    made = _empty(metric)
    for labels, value in samples:
        made.add_sample(metric.name, labels, float(value))
    return made


def _amounts(
    size: Metric, packets: Metric, entries: Sequence[tuple[Labels, Amounts]]
) -> Iterator[Family]:
    """A family of bytes and one of packets, which have the same labels."""
    # One mapping for both samples: most series are pods', and a mapping is most of a sample's size.
    named = [(_named(size, labels), entry) for labels, entry in entries]
    yield _of_samples(size, ((labels, entry["bytes"]) for labels, entry in named))
    yield _of_samples(packets, ((labels, entry["packets"]) for labels, entry in named))


def _traffic(snapshot: Snapshot) -> Iterator[Family]:
    """Totals of namespaces, the node and the article's rules."""
    namespaces = [((one["namespace"], one["traffic"]), one) for one in snapshot["namespaces"]]
    yield from _amounts(catalog.NAMESPACE_BYTES, catalog.NAMESPACE_PACKETS, namespaces)
    node = [((total["traffic"],), total) for total in snapshot["node_totals"]]
    yield from _amounts(catalog.NODE_BYTES, catalog.NODE_PACKETS, node)
    origins = [((part["origin"], part["traffic"]), part["bytes"]) for part in snapshot["origins"]]
    yield _family(catalog.ORIGIN_BYTES, origins)
    rules = [
        ((rule["ip_version"], rule["table"], rule["chain"], rule["rule"]), rule)
        for rule in snapshot["rules"]
    ]
    yield from _amounts(catalog.RULE_BYTES, catalog.RULE_PACKETS, rules)
    sizes = [
        ((one["ip_version"], one["table"], one["chain"]), one["rules"])
        for one in snapshot.get("chain_sizes", ())
    ]
    yield _family(catalog.RULE_COUNT, sizes)


def _remote(snapshot: Snapshot, room: int) -> Family:
    """The busiest of other nodes' pods. Totals only grow, so the order is stable."""
    found = sorted(snapshot.get("remote_pods", ()), key=lambda one: (-one["bytes"], one["address"]))
    shown = [((one["address"], one["traffic"]), one["bytes"]) for one in found[:room]]
    return _family(catalog.REMOTE_POD_BYTES, shown)


def _accounting(snapshot: Snapshot) -> Iterator[Family]:
    """How complete the totals are, and what was repaired."""
    gaps = snapshot["gaps"]
    yield _family(catalog.GAPS, [((gap["reason"],), gap["count"]) for gap in gaps])
    yield _family(catalog.GAP_SECONDS, [((gap["reason"],), gap["seconds"]) for gap in gaps])
    forwarded = snapshot["unattributed"]
    missing = [((one["traffic"],), one["bytes"]) for one in forwarded]
    yield _family(catalog.UNATTRIBUTED, missing)
    ratios = [((one["against"], one["traffic"]), one["ratio"]) for one in snapshot["audit"]]
    yield _family(catalog.AUDIT_RATIO, ratios)
    yield _family(catalog.FORWARDED, [((one["traffic"],), one["forwarded"]) for one in forwarded])
    yield _family(catalog.DURABLE, [((), bool(snapshot.get("durable", True)))])
    repaired = [((drift["reason"],), drift["count"]) for drift in snapshot["drift_repaired"]]
    yield _family(catalog.DRIFT, repaired)


def _inter_site(snapshot: Snapshot) -> Iterator[Family]:
    """What the rules drop between sites and elsewhere, and what a NAT host translates."""
    dropped = [
        ((item["origin"], item["destination"]), item) for item in snapshot.get("isolation", [])
    ]
    yield from _amounts(catalog.ISOLATION_BYTES, catalog.ISOLATION_PACKETS, dropped)
    refused = [((item["reason"],), item) for item in snapshot.get("drops", [])]
    yield from _amounts(catalog.DROPPED_BYTES, catalog.DROPPED_PACKETS, refused)
    if "undelivered" in snapshot:
        yield _family(catalog.UNDELIVERED, [((), snapshot["undelivered"]["bytes"])])
    protected = [((item["namespace"],), item) for item in snapshot.get("protected", [])]
    yield from _amounts(catalog.PROTECTED_BYTES, catalog.PROTECTED_PACKETS, protected)
    if "nat" in snapshot:
        yield from _nat(snapshot["nat"])
    else:
        # The families are on every page, also of a machine that translates nothing.
        yield from (_empty(one) for one in catalog.CATALOG if one.name.startswith("netmgr_nat_"))


def _nat(nat: NatState) -> Iterator[Family]:
    ranges = [((item["vip_range"], item["service_cidr"]), item) for item in nat["ranges"]]
    yield from _amounts(catalog.NAT_BYTES, catalog.NAT_PACKETS, ranges)
    ports = [((item["family"], item["protocol"]), item) for item in nat["ports"]]
    yield _family(catalog.NAT_BUDGET, [(labels, item["budget"]) for labels, item in ports])
    yield _family(catalog.NAT_USED, [(labels, item["used"]) for labels, item in ports])
    # A host without ports of a protocol would divide by zero.
    shares = [(labels, item["used"] / item["budget"]) for labels, item in ports if item["budget"]]
    yield _family(catalog.NAT_SHARE, shares)


def _of_flowtables(snapshot: Snapshot) -> Iterator[Family]:
    present = [snapshot["flowtable"]] if "flowtable" in snapshot else []
    yield _family(catalog.FLOWTABLE_LINKS, [((), one["links"]) for one in present])
    yield _family(catalog.FOREIGN_FLOWTABLES, [((), len(one["others"])) for one in present])


def _of_limits(limits: Iterable[LimitState]) -> Iterator[Family]:
    found = [((one["namespace"], one["pod"], one["traffic"]), one) for one in limits]
    yield _family(limits_catalog.LIMIT_RATE, [(labels, one["rate"] / 8) for labels, one in found])
    yield from _amounts(limits_catalog.LIMIT_BYTES, limits_catalog.LIMIT_PACKETS, found)
    yield _family(limits_catalog.LIMIT_DELAYS, [(labels, one["delays"]) for labels, one in found])
    dropped = [(labels, one["dropped_packets"]) for labels, one in found]
    yield _family(limits_catalog.LIMIT_DROPPED, dropped)
    yield _family(limits_catalog.LIMIT_BACKLOG, [(labels, one["backlog"]) for labels, one in found])


def _of_quotas(quotas: Iterable[QuotaState]) -> Iterator[Family]:
    found = [((one["namespace"], one["pod"], one["traffic"], one["period"]), one) for one in quotas]
    yield _family(limits_catalog.QUOTA, [(labels, one["budget"]) for labels, one in found])
    yield _family(limits_catalog.QUOTA_USED, [(labels, one["used"]) for labels, one in found])
    yield _family(
        limits_catalog.QUOTA_FORECAST, [(labels, one["forecast"]) for labels, one in found]
    )


def _of_connections(limits: Iterable[ConnectionLimitState]) -> Family:
    found = [((one["namespace"], one["pod"]), one["dropped"]) for one in limits]
    return _family(limits_catalog.LIMIT_CONNECTIONS, found)


def _of_tracking(snapshot: Snapshot) -> Iterator[Family]:
    present = [snapshot["tracking"]] if "tracking" in snapshot else []
    yield _family(limits_catalog.TRACKED, [((), one["connections"]) for one in present])
    yield _family(limits_catalog.TRACKED_MOST, [((), one["most"]) for one in present])
    pods = [pod for one in present for pod in one["pods"]]
    found = [((pod["namespace"], pod["pod"]), pod["connections"]) for pod in pods]
    yield _family(limits_catalog.POD_CONNECTIONS, found)


def _of_problems(snapshot: Snapshot) -> Family:
    present = {one["reason"] for one in snapshot.get("problems", ())}
    found = [((reason,), reason in present) for reason in Fault] if "problems" in snapshot else []
    return _family(catalog.PROBLEMS, found)


def _of_agent(snapshot: Snapshot) -> Iterator[Family]:
    """The agent itself: its pool, ranges, CNI requests and state."""
    addresses: list[tuple[Labels, float]] = []
    for pool in snapshot["pool"]:
        named = [
            ((pool["family"], state), pool[state]) for state in ("allocated", "cooldown", "free")
        ]
        addresses += [*named, ((pool["family"], "withdrawn"), pool.get("withdrawn", 0))]
    yield _family(catalog.ADDRESSES, addresses)
    ranges = [snapshot["ranges"]] if "ranges" in snapshot else []
    known = [((item["source"],), not item["failing"]) for item in ranges]
    yield _family(catalog.RANGES_KNOWN, known)
    yield _family(catalog.ROUTE_FAULTS, [((), len(snapshot.get("route_faults", ())))])
    yield from _of_flowtables(snapshot)
    files = [((item["state"],), item["count"]) for item in snapshot["result_files"]]
    yield _family(catalog.RESULT_FILES, files)
    yield _family(catalog.LONGEST_DELAY, [((), snapshot["longest_delay"])])
    requests = [((one["command"], one["code"]), one["count"]) for one in snapshot["cni_requests"]]
    yield _family(catalog.REQUESTS, requests)
    durations = _empty_histogram(catalog.DURATIONS)
    for latency in snapshot["cni_latency"]:
        buckets = [(bounds.bounded(bound), float(count)) for bound, count in latency["buckets"]]
        durations.add_metric([bounds.bounded(latency["command"])], buckets, float(latency["sum"]))
    yield durations
    yield _family(catalog.REBUILDS, [((), snapshot["state_rebuilds"])])
    yield _family(catalog.STARTED, [((), snapshot["started_at"])])
    yield _family(catalog.READY, [((), bool(snapshot["ready"]))])
    role = snapshot.get("role", "")
    build = (snapshot["netmgr_version"], snapshot["backend"], snapshot["node"], role)
    yield _family(catalog.BUILD, [(build, 1)])
