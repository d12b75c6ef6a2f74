"""What a metric of any of our pages is: name, type, meaning, unit, labels and number of series.

Names follow prometheus.io/docs/practices/naming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UNITS = ("bytes", "packets", "seconds", "ratio")


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family, as it is exposed: a histogram's series add their suffixes to `name`.

    Kind and unit follow from the name, which ends as prometheus.io/docs/practices/naming says.
    """

    name: str
    labels: tuple[str, ...]
    series: int
    help: str
    is_histogram: bool = False

    @property
    def kind(self) -> Kind:
        if self.is_histogram:
            return Kind.HISTOGRAM
        # OpenMetrics demands this suffix of counters.
        return Kind.COUNTER if self.name.endswith("_total") else Kind.GAUGE

    @property
    def unit(self) -> str:
        """The base unit; empty for numbers of something."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""


def metrics_of(module: Mapping[str, object]) -> tuple[Metric, ...]:
    """Every metric that a module defines, so that none is forgotten in a list."""
    return tuple(value for value in module.values() if isinstance(value, Metric))
