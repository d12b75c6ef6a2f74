"""Small pieces of PromQL over series that are known to exist, with labels that they have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from exporter.controller_catalog import LEADER
from exporter.metric import Kind, Metric

JOB = "netmgr"
"""What the scrape configuration calls the exporters."""

TARGET_LABELS = ("cluster", "instance", "job")
"""Labels that every scraped series gets from its target (configs/prometheus/scrape.yml)."""

_WITH_OPERATOR = re.compile(r"(=~|!=|!~)(.*)", re.DOTALL)


class Series(Protocol):
    """What can be selected by name: a metric of a catalogue, or a recorded series."""

    @property
    def name(self) -> str:
        """As Prometheus stores it."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of its own labels."""
        ...


@dataclass(frozen=True, slots=True)
class Named:
    """A series that is neither in the catalogue nor recorded."""

    name: str
    labels: tuple[str, ...]


UP = Named("up", TARGET_LABELS)
"""Prometheus' own: 1 while a target answers."""


def stem(metric: Metric) -> str:
    """The name as recorded series carry it: without `_total`, because a rate is no counter."""
    return metric.name.removesuffix("_total")


def buckets(metric: Metric) -> Named:
    """The bucket series of a histogram."""
    return Named(f"{metric.name}_bucket", (*metric.labels, "le"))


def read(series: Series, window: str = "", /, **matchers: str) -> str:
    """A selector, over `window` (as "5m") if given.

    A matcher is the value, or begins with its operator: `code='!=0'`.

    Raises:
        ValueError: the series has no such label, or a bare histogram is asked for.
    """
    if isinstance(series, Metric) and series.kind is Kind.HISTOGRAM:
        raise ValueError(f"{series.name} has no series of that name; take its buckets")
    # A matcher on a label that does not exist selects nothing, or with != everything; Prometheus
    # reports neither.
    if unknown := matchers.keys() - {*series.labels, *TARGET_LABELS}:
        raise ValueError(f"{series.name} has no label {', '.join(sorted(unknown))}")
    inner = ",".join(_matcher(label, value) for label, value in matchers.items())
    return series.name + (f"{{{inner}}}" if inner else "") + (f"[{window}]" if window else "")


def _matcher(label: str, value: str) -> str:
    found = _WITH_OPERATOR.fullmatch(value)
    operator, wanted = found.groups() if found else ("=", value)
    return f'{label}{operator}"{wanted}"'


def of_leader(series: Series, **matchers: str) -> str:
    """What the leading controller says; one that lost the Lease keeps its last values."""
    # `and` matches on equal labels, and the leader's series has no labels of its own.
    own = f" ignoring ({', '.join(series.labels)})" if series.labels else ""
    return f"{read(series, **matchers)} and{own} {read(LEADER)} == 1"


def total(expression: str, *labels: str) -> str:
    """The sum of `expression` for each combination of `labels`."""
    return f"sum by ({', '.join(labels)}) ({expression})"


def largest(number: int, expression: str, *labels: str) -> str:
    """The `number` largest of `expression`, for each combination of `labels` if any are given."""
    level = f" by ({', '.join(labels)}) " if labels else ""
    return f"topk{level}({number}, {expression})"
