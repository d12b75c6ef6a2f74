"""What a metric of our pages is; names follow prometheus.io/docs/practices/naming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UNITS = ("bytes", "packets", "seconds", "ratio")


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family, as it is exposed: a histogram's series add their suffixes to `name`.

    MetricKind and unit follow from how the name ends.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    series: int = 1
    is_histogram: bool = False

    @property
    def kind(self) -> MetricKind:
        if self.is_histogram:
            return MetricKind.HISTOGRAM
        # OpenMetrics demands this suffix of counters.
        return MetricKind.COUNTER if self.name.endswith("_total") else MetricKind.GAUGE

    @property
    def unit(self) -> str:
        """The base unit; empty for numbers of something."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


def totals(stem: str, labels: tuple[str, ...], series: int, **helps: str) -> tuple[Metric, ...]:
    """Metrics that count the same in several units, in this order."""
    return tuple(
        Metric(f"{stem}_{unit}_total", text, labels, series) for unit, text in helps.items()
    )


def metrics_of(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Every metric that a module defines, so that none is forgotten in a list."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
