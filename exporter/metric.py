"""What the catalogue is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `name` is the exposed one: a counter's ends in _total, a histogram's takes its suffixes."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    series: int
    help: str
