"""Metrics of the catalogue as prometheus_client's families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from exporter import bounds
from exporter.metric import Kind, Metric
from netmgr.snapshot import DroppedTotals, RefusedTotals, RuleReading, TrafficTotals, Translation

Labels = tuple[str, ...]
"""Label values, in the order of the catalogue's names."""

Amounts = TrafficTotals | RuleReading | DroppedTotals | RefusedTotals | Translation
"""What has bytes and packets."""


def family(metric: Metric, values: Iterable[tuple[Labels, float]]) -> Family:
    """A family with these samples.

    Raises:
        TypeError, ValueError, AttributeError: a label is no text, or a value no number.
    """
    made = empty(metric)
    for labels, value in values:
        # Also refuses a label that is no text, which would fail later, and take every other series along.
        made.add_metric([bounds.bounded(label) for label in labels], float(value))
    return made


def amounts(size: Metric, packets: Metric, entries: Sequence[tuple[Labels, Amounts]]) -> Iterable[Family]:
    """A family of bytes and one of packets."""
    yield family(size, [(labels, entry["bytes"]) for labels, entry in entries])
    yield family(packets, [(labels, entry["packets"]) for labels, entry in entries])


def empty(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    """A family without samples."""
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return make(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def empty_histogram(metric: Metric) -> HistogramMetricFamily:
    """A histogram without samples."""
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)
