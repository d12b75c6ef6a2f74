"""What Prometheus has of the nodes' pages, and what it misses while it is away.

A pod's series ends `linger_seconds` after the pod. So a Prometheus that is away for longer misses
what pods exchanged between its last scrape and their end; their namespaces' totals have it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from exporter.catalog import SCRAPE
from exporter.limits_catalog import QUOTA, QUOTA_USED
from netmgr.model import PodRef
from netmgr.simulation.machine import Machine

SCRAPE_SECONDS = 30.0

_LINES = re.compile(
    rb'^netmgr_(pod|namespace)_traffic_bytes_total\{namespace="([^"]+)",(?:pod="([^"]+)",)?'
    rb'traffic="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)

_LEFT_OUT = re.compile(rb"^netmgr_exporter_dropped_series\{[^}]*\} (\S+)$", re.MULTILINE)

_QUOTAS, _USED = (
    re.compile(rb"^%b\{[^}]*\} (\S+)$" % metric.name.encode(), re.MULTILINE)
    for metric in (QUOTA, QUOTA_USED)
)
_DURATION = re.compile(rb"^%b \S+\n" % SCRAPE.name.encode(), re.MULTILINE)

Series = tuple[str, str, str]
"""Machine, namespace and pod, both directions together."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one scrape of a node has: its bytes, its series, and bytes of traffic.

    `namespaces` has these by namespace and direction, `pods` by namespace and pod.
    """

    size: int
    series: int
    left_out: int
    """Series that had no room (`--max-series`)."""
    quotas: int
    spent: int
    """Quotas, and those of which nothing is left."""
    namespaces: Counter[tuple[str, str]]
    pods: Counter[tuple[str, str]]

    @classmethod
    def of(cls, machine: Machine) -> Page:
        """Scrape a node."""
        text = machine.page()
        left_out = sum(int(float(value)) for value in _LEFT_OUT.findall(text))
        # No seed decides how long the scrape itself took, which the page says.
        size = len(_DURATION.sub(b"", text))
        budgets, used = _QUOTAS.findall(text), _USED.findall(text)
        spent = sum(float(now) >= float(most) for most, now in zip(budgets, used, strict=True))
        made = cls(size, _samples(text), left_out, len(budgets), spent, Counter(), Counter())
        for kind, namespace, pod, traffic, value in _LINES.findall(text):
            if kind == b"pod":
                made.pods[namespace.decode(), pod.decode()] += int(float(value))
            else:
                made.namespaces[namespace.decode(), traffic.decode()] += int(float(value))
        return made


def _samples(text: bytes) -> int:
    return sum(not line.startswith(b"#") for line in text.splitlines())


@dataclass(slots=True)
class Absence:
    """A time without scrapes, in seconds since the beginning.

    Attributes:
        pods: how many pods' series were gone afterwards and had grown meanwhile.
        missed: bytes of these since the last scrape, by machine.
    """

    began: float
    ended: float
    pods: int = 0
    missed: Counter[str] = field(default_factory=Counter)


class Prometheus:
    """Scrapes nodes, until it is away.

    Attributes:
        absences: every time that it was away.
        pods: the last value of each pod's series, of the machines that are scraped all the time.
    """

    def __init__(self) -> None:
        self.absences: list[Absence] = []
        self.pods: dict[Series, int] = {}
        self.is_away = False
        self._before: dict[Series, int] = {}
        self._ended: dict[Series, int] = {}

    def scrape(self, machine: Machine) -> Page | None:
        """Keep what a page has, unless it is away."""
        if self.is_away:
            return None
        page = Page.of(machine)
        self.pods |= {(machine.name, *pod): size for pod, size in page.pods.items()}
        return page

    def go_away(self, machines: Iterable[Machine], now: float) -> None:
        """Scrape no more, from just after a scrape of every node on."""
        self._before = dict(_series(machines))
        self._ended.clear()
        self.absences.append(Absence(now, now))
        self.is_away = True

    def note_end(self, machine: Machine, pod: PodRef, size: int) -> None:
        """A pod ended, which had exchanged so many bytes."""
        if self.is_away:
            self._ended[machine.name, pod.namespace, pod.name] = size

    def come_back(self, machines: Iterable[Machine], now: float) -> None:
        """Scrape every node again."""
        self.is_away = False
        absence, present = self.absences[-1], dict(_series(machines))
        absence.ended = now
        for series, size in self._ended.items():
            missed = size - self._before.get(series, 0)
            if series not in present and missed:
                absence.pods += 1
                absence.missed[series[0]] += missed


def _series(machines: Iterable[Machine]) -> Iterator[tuple[Series, int]]:
    """Every pod's series and its value, read from the ledgers: whole pages take too long."""
    for machine in machines:
        found: Counter[Series] = Counter()
        if machine.agent:
            for total in machine.totals().pods:
                found[machine.name, total["namespace"], total["pod"]] += total["bytes"]
        yield from found.items()
