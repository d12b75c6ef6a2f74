"""The agent's snapshot as metric families, in one pass, made anew for every scrape."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import Metric as Family

from exporter import bounds, catalog, crossings
from exporter.families import amounts, empty, empty_histogram, family
from exporter.metric import Kind
from netmgr import __version__
from netmgr.errors import NetmgrError
from netmgr.snapshot import Snapshot

log = logging.getLogger(__name__)

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What arranging an answer that is no snapshot may raise."""

OWN_SERIES = catalog.DROPPED.series + catalog.UP.series + catalog.SCRAPE.series
"""Series that a page has beside those of the agent's answer."""


class Collector:
    """A prometheus_client collector over `read`, which fetches one snapshot or raises NetmgrError.

    `max_series` bounds a page, 0 does not: `exporter/bounds.py` says which pods are left out, and in what order.
    """

    def __init__(self, read: Callable[[], Snapshot], max_series: int = 0) -> None:
        self._read = read
        self._max_series = max_series
        self._last_fault = ""

    def describe(self) -> Iterable[Family]:
        """Every family without samples: what the registry checks names with."""
        for metric in catalog.CATALOG:
            yield empty_histogram(metric) if metric.kind is Kind.HISTOGRAM else empty(metric)

    def collect(self) -> Iterable[Family]:
        """Families of this moment; while the agent is away or makes no sense, only that it is so."""
        began = time.perf_counter()
        families = self._asked()
        up = family(catalog.UP, [((), bool(families))])
        known = families or [family(catalog.BUILD, [((__version__, "", "", ""), 1)])]
        return [*known, up, family(catalog.SCRAPE, [((), time.perf_counter() - began)])]

    def _asked(self) -> list[Family]:
        """What the agent tells, nothing if that is not all of it."""
        try:
            families = self._arranged(self._read())
        except NetmgrError as error:
            self._tell(error.message)
        except NONSENSE as error:
            self._tell(f"the agent's answer makes no sense: {error!r}")
        else:
            self._tell("")
            return families
        return []

    def _arranged(self, snapshot: Snapshot) -> list[Family]:
        """Everything that is no pod's, and as many pods as there is room for beside it."""
        rest = list(_without_pods(snapshot))
        selection = bounds.Selection(snapshot["pods"])
        if self._max_series:
            taken = sum(len(one.samples) for one in rest) + OWN_SERIES
            selection = bounds.select(snapshot["pods"], self._max_series - taken)
        pods = [((pod["namespace"], pod["pod"], pod["traffic"]), pod) for pod in selection.shown]
        dropped = [(("lingering",), selection.dropped_lingering), (("live",), selection.dropped_live)]
        return [*amounts(catalog.POD_BYTES, catalog.POD_PACKETS, pods), *rest, family(catalog.DROPPED, dropped)]

    def _tell(self, fault: str) -> None:
        """Log a fault once, not at every scrape, and its end."""
        if fault and fault != self._last_fault:
            log.warning("agent-unread error=%s", fault)
        elif self._last_fault and not fault:
            log.info("agent-read-again")
        self._last_fault = fault


def _without_pods(snapshot: Snapshot) -> Iterable[Family]:
    namespaces = [((total["namespace"], total["traffic"]), total) for total in snapshot["namespaces"]]
    node = [((total["traffic"],), total) for total in snapshot["node_totals"]]
    rules = [((rule["ip_version"], rule["table"], rule["chain"], rule["rule"]), rule) for rule in snapshot["rules"]]
    yield from amounts(catalog.NAMESPACE_BYTES, catalog.NAMESPACE_PACKETS, namespaces)
    yield from amounts(catalog.NODE_BYTES, catalog.NODE_PACKETS, node)
    origins = [((part["origin"], part["traffic"]), part["bytes"]) for part in snapshot["origins"]]
    yield family(catalog.ORIGIN_BYTES, origins)
    yield from amounts(catalog.RULE_BYTES, catalog.RULE_PACKETS, rules)
    sizes = [((one["ip_version"], one["table"], one["chain"]), one["rules"]) for one in snapshot.get("chain_sizes", ())]
    yield family(catalog.RULE_COUNT, sizes)
    yield family(catalog.GAPS, [((gap["reason"],), gap["count"]) for gap in snapshot["gaps"]])
    yield family(catalog.GAP_SECONDS, [((gap["reason"],), gap["seconds"]) for gap in snapshot["gaps"]])
    yield family(catalog.UNATTRIBUTED, [((one["traffic"],), one["bytes"]) for one in snapshot["unattributed"]])
    ratios = [((one["against"], one["traffic"]), one["ratio"]) for one in snapshot["audit"]]
    yield family(catalog.AUDIT_RATIO, ratios)
    yield family(catalog.FORWARDED, [((one["traffic"],), one["forwarded"]) for one in snapshot["unattributed"]])
    yield family(catalog.DURABLE, [((), bool(snapshot.get("durable", True)))])
    yield family(catalog.DRIFT, [((drift["reason"],), drift["count"]) for drift in snapshot["drift_repaired"]])
    yield from crossings.families(snapshot)
    yield _addresses(snapshot)
    ranges = [snapshot["ranges"]] if "ranges" in snapshot else []
    yield family(catalog.RANGES_KNOWN, [((item["source"],), not item["failing"]) for item in ranges])
    yield family(catalog.RESULT_FILES, [((item["state"],), item["count"]) for item in snapshot["result_files"]])
    yield family(catalog.LONGEST_DELAY, [((), snapshot["longest_delay"])])
    requests = [((request["command"], request["code"]), request["count"]) for request in snapshot["cni_requests"]]
    yield family(catalog.REQUESTS, requests)
    yield _durations(snapshot)
    yield family(catalog.REBUILDS, [((), snapshot["state_rebuilds"])])
    yield family(catalog.STARTED, [((), snapshot["started_at"])])
    yield family(catalog.READY, [((), bool(snapshot["ready"]))])
    build = (snapshot["netmgr_version"], snapshot["backend"], snapshot["node"], snapshot.get("role", ""))
    yield family(catalog.BUILD, [(build, 1)])


def _addresses(snapshot: Snapshot) -> Family:
    values = []
    for pool in snapshot["pool"]:
        version = pool["family"]
        values += [((version, "allocated"), pool["allocated"]), ((version, "cooldown"), pool["cooldown"])]
        values += [((version, "free"), pool["free"]), ((version, "withdrawn"), pool.get("withdrawn", 0))]
    return family(catalog.ADDRESSES, values)


def _durations(snapshot: Snapshot) -> Family:
    histogram = empty_histogram(catalog.DURATIONS)
    for latency in snapshot["cni_latency"]:
        buckets = [(bound, float(count)) for bound, count in latency["buckets"]]
        histogram.add_metric([bounds.bounded(latency["command"])], buckets, float(latency["sum"]))
    return histogram
