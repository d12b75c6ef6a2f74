"""The agent's snapshot as metric families, in one pass, made anew for every scrape."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from exporter import bounds, catalog
from exporter.catalog import Metric, MetricKind
from netmgr import __version__
from netmgr.api.snapshot import Fault, Snapshot
from netmgr.errors import NetmgrError

log = logging.getLogger(__name__)

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What an answer that is not a snapshot may raise."""

OWN_SERIES = catalog.DROPPED.series + catalog.UP.series + catalog.SCRAPE.series
"""Series that a page has beside those of the agent's answer."""

Entry = Mapping[str, Any]
"""What one series of each family is made of: its labels, and numbers."""

Path = str | Callable[[Entry], Iterable[Entry]]
"""Where entries are: `a` is the list, or the only entry, at that key of the snapshot, `a.b` what is
within it, and the empty path is the snapshot itself."""

Value = str | Callable[[Entry], float]
"""The key of an entry's number, or what makes it of the entry."""

Row = tuple[Path, Metric, Value]


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
        up = families != []
        # Prometheus' guide to exporters asks for an `…_up` of 0 rather than a failed scrape: then
        # an alert distinguishes a stopped agent from a stopped exporter.
        known = families or _build(_ALWAYS, _AWAY)
        seconds = time.perf_counter() - began
        return [*known, *_build(_SCRAPE, {"is_up": up, "seconds": seconds})]

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
        rest = [*_build(_TABLE, snapshot)]
        # Pods get the room that everything else leaves; limits, quotas, limits of connections and
        # other nodes' pods, in this order, what is left then.
        left = (self._max_series or sys.maxsize) - OWN_SERIES
        left -= sum(len(family.samples) for family in rest)
        selection = bounds.select(snapshot["pods"], left)
        left = max(0, left - sum(map(bounds.series_of, selection.shown)))
        limits = bounds.by_size(snapshot.get("limits", ()))[: left // bounds.SERIES_PER_LIMIT]
        left -= len(limits) * bounds.SERIES_PER_LIMIT
        quotas = bounds.by_use(snapshot.get("quotas", ()))[: left // bounds.SERIES_PER_QUOTA]
        left -= len(quotas) * bounds.SERIES_PER_QUOTA
        connections = snapshot.get("connection_limits", ())
        connections = sorted(connections, key=lambda limit: -limit["dropped"])[:left]
        throttled = sorted(
            snapshot["budgets"]["throttled"] if "budgets" in snapshot else (),
            key=lambda entry: -entry["seconds"],
        )[: left - len(connections)]
        # The busiest of other nodes' pods. Totals only grow, so the order is stable.
        remote = snapshot.get("remote_pods", ())
        remote = sorted(remote, key=lambda pod: (-pod["bytes"], pod["address"]))
        room = min(catalog.REMOTE_POD_BYTES.series, left - len(connections) - len(throttled))
        selected = {
            "limits": limits,
            "connection_limits": connections,
            "quotas": quotas,
            "throttled": throttled,
            "remote_pods": remote[:room],
            "left_out": [
                {"pods": "lingering", "series": selection.dropped_lingering},
                {"pods": "live", "series": selection.dropped_live},
            ],
        }
        pods = _build(_PODS, {"pods": selection.shown})
        return [*pods, *rest, *_build(_SELECTED, selected)]

    def _report(self, fault: str) -> None:
        """Log a fault once, not at every scrape, and its end."""
        if fault and fault != self._last_fault:
            log.warning("agent-unread error=%s", fault)
        elif self._last_fault and not fault:
            log.info("agent-read-again")
        self._last_fault = fault


def _build(rows: Iterable[Row], snapshot: Entry) -> Iterator[Family]:
    """The families of these rows; `NONSENSE` for what is missing, or no text, or no number."""
    for (where, names), same in groupby(rows, key=lambda row: (row[0], row[1].labels)):
        keys = [itemgetter(_KEYS.get(name, name)) for name in names]
        # `bounded` also refuses a label that is not text: prometheus_client would fail only while
        # it writes the page, and lose every other series with it. One mapping for the samples of
        # all families: most series are pods', and a mapping is most of a sample's size.
        labelled = [
            (dict(zip(names, [bounds.bounded(key(entry)) for key in keys], strict=True)), entry)
            for entry in _entries(where, snapshot)
        ]
        for _, metric, value in same:
            yield _family(metric, value, labelled)


def _family(
    metric: Metric, value: Value, labelled: Iterable[tuple[dict[str, str], Entry]]
) -> Family:
    family = _empty(metric)
    number = itemgetter(value) if isinstance(value, str) else value
    for labels, entry in labelled:
        if isinstance(family, HistogramMetricFamily):
            buckets = [(bounds.bounded(bound), float(count)) for bound, count in entry["buckets"]]
            family.add_metric([*labels.values()], buckets, float(number(entry)))
        else:
            family.add_sample(metric.name, labels, float(number(entry)))
    return family


def _entries(path: Path, snapshot: Entry) -> Iterable[Entry]:
    if callable(path):
        return path(snapshot)
    if not path:
        # A netmgr from before there were roles has none.
        return [{"role": "", **snapshot}]
    key, _, part = path.partition(".")
    if key in _MAY_LACK and key not in snapshot:
        return ()
    entries = snapshot[key][part] if part else snapshot[key]
    return [entries] if isinstance(entries, dict) else entries


def _empty(metric: Metric) -> Family:
    make = _FAMILIES[metric.kind]
    return make(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def _on_wires(snapshot: Entry) -> Iterator[Entry]:
    return (pod for pod in snapshot["pods"] if "wire" in pod)


def _ports_in_use(snapshot: Entry) -> Iterator[Entry]:
    # A host without ports of a protocol would divide by zero.
    return (ports for ports in _entries("nat.ports", snapshot) if ports["budget"])


def _day_budgets(snapshot: Entry) -> Iterator[Entry]:
    return (budget for budget in _entries("budgets.uses", snapshot) if budget["is_quota"])


def _addresses(snapshot: Entry) -> Iterator[Entry]:
    for pool in snapshot["pool"]:
        for state in ("allocated", "cooldown", "free"):
            yield {"family": pool["family"], "state": state, "number": pool[state]}
        withdrawn = pool.get("withdrawn", 0)
        yield {"family": pool["family"], "state": "withdrawn", "number": withdrawn}


def _problems(snapshot: Entry) -> Iterator[Entry]:
    present = {problem["reason"] for problem in _entries("problems", snapshot)}
    if "problems" in snapshot:
        yield from ({"reason": reason, "is_present": reason in present} for reason in Fault)


_FAMILIES: dict[MetricKind, Callable[..., Family]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}

_AWAY = {"netmgr_version": __version__, "backend": "", "node": ""}

# What only some machines' snapshots have, or those of newer agents.
_MAY_LACK = {"budgets", "chain_sizes", "drops", "flowtable", "isolation", "nat", "problems"}
_MAY_LACK |= {"protected", "ranges", "tracking"}

# Keys of label values that are not the labels' names.
_KEYS = {"from": "origin", "to": "destination", "version": "netmgr_version"}

_ALWAYS: tuple[Row, ...] = (("", catalog.BUILD, lambda _: 1),)
_SCRAPE: tuple[Row, ...] = (("", catalog.UP, "is_up"), ("", catalog.SCRAPE, "seconds"))
_PODS: tuple[Row, ...] = (
    ("pods", catalog.POD_BYTES, "bytes"),
    ("pods", catalog.POD_PACKETS, "packets"),
    (_on_wires, catalog.POD_WIRE_BYTES, "wire"),
    (_on_wires, catalog.POD_WIRE_UNKNOWN, "wire_unknown"),
)
_SELECTED: tuple[Row, ...] = (
    # The snapshot has it in bits.
    ("limits", catalog.LIMIT_RATE, lambda limit: limit["rate"] / 8),
    ("limits", catalog.LIMIT_BYTES, "bytes"),
    ("limits", catalog.LIMIT_PACKETS, "packets"),
    ("limits", catalog.LIMIT_DELAYS, "delays"),
    ("limits", catalog.LIMIT_DROPPED, "dropped_packets"),
    ("limits", catalog.LIMIT_BACKLOG, "backlog"),
    ("connection_limits", catalog.LIMIT_CONNECTIONS, "dropped"),
    ("quotas", catalog.QUOTA, "budget"),
    ("quotas", catalog.QUOTA_USED, "used"),
    ("quotas", catalog.QUOTA_FORECAST, "forecast"),
    ("throttled", catalog.BUDGET_THROTTLED, "seconds"),
    ("remote_pods", catalog.REMOTE_POD_BYTES, "bytes"),
    ("left_out", catalog.DROPPED, "series"),
)
_TABLE: tuple[Row, ...] = (
    ("namespaces", catalog.NAMESPACE_BYTES, "bytes"),
    ("namespaces", catalog.NAMESPACE_PACKETS, "packets"),
    ("node_totals", catalog.NODE_BYTES, "bytes"),
    ("node_totals", catalog.NODE_PACKETS, "packets"),
    ("origins", catalog.ORIGIN_BYTES, "bytes"),
    ("rules", catalog.RULE_BYTES, "bytes"),
    ("rules", catalog.RULE_PACKETS, "packets"),
    ("chain_sizes", catalog.RULE_COUNT, "rules"),
    ("gaps", catalog.GAPS, "count"),
    ("gaps", catalog.GAP_SECONDS, "seconds"),
    ("unattributed", catalog.UNATTRIBUTED, "bytes"),
    ("audit", catalog.AUDIT_RATIO, "ratio"),
    ("unattributed", catalog.FORWARDED, "forwarded"),
    ("", catalog.DURABLE, lambda snapshot: bool(snapshot.get("durable", True))),
    ("drift_repaired", catalog.DRIFT, "count"),
    ("isolation", catalog.ISOLATION_BYTES, "bytes"),
    ("isolation", catalog.ISOLATION_PACKETS, "packets"),
    ("drops", catalog.DROPPED_BYTES, "bytes"),
    ("drops", catalog.DROPPED_PACKETS, "packets"),
    ("protected", catalog.PROTECTED_BYTES, "bytes"),
    ("protected", catalog.PROTECTED_PACKETS, "packets"),
    ("nat.ranges", catalog.NAT_BYTES, "bytes"),
    ("nat.ranges", catalog.NAT_PACKETS, "packets"),
    ("nat.ports", catalog.NAT_BUDGET, "budget"),
    ("nat.ports", catalog.NAT_USED, "used"),
    (_ports_in_use, catalog.NAT_SHARE, lambda ports: ports["used"] / ports["budget"]),
    ("budgets.uses", catalog.BUDGET_RATE, lambda budget: budget["use"]["held"] / 8),
    ("budgets.uses", catalog.BUDGET_SENT, "sent"),
    ("budgets.uses", catalog.BUDGET_WAITING, lambda budget: budget["use"]["waiting"]),
    (_day_budgets, catalog.BUDGET_ALLOWANCE, lambda budget: budget["use"]["allowance"]),
    (_day_budgets, catalog.BUDGET_USED, lambda budget: budget["use"]["bytes"]),
    ("budgets", catalog.BUDGET_AGE, "age"),
    ("budgets", catalog.BUDGET_EPOCH, "epoch"),
    ("budgets", catalog.BUDGET_ENFORCED, "enforced"),
    ("tracking", catalog.TRACKED, "connections"),
    ("tracking", catalog.TRACKED_MOST, "most"),
    ("tracking.pods", catalog.POD_CONNECTIONS, "connections"),
    (_problems, catalog.PROBLEMS, "is_present"),
    (_addresses, catalog.ADDRESSES, "number"),
    ("flowtable", catalog.FLOWTABLE_LINKS, "links"),
    ("result_files", catalog.RESULT_FILES, "count"),
    ("", catalog.LONGEST_DELAY, "longest_delay"),
    ("cni_requests", catalog.REQUESTS, "count"),
    ("cni_latency", catalog.DURATIONS, "sum"),
    ("", catalog.REBUILDS, "state_rebuilds"),
    ("", catalog.STARTED, "started_at"),
    ("", catalog.READY, lambda snapshot: bool(snapshot["ready"])),
    *_ALWAYS,
)
"""All that a page has beside pods, limits and quotas, in its order."""
