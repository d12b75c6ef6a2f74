"""What a simulation shows: figures for programs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal, TypedDict

from netmgr.simulation.cluster import Joining
from netmgr.simulation.controllers import CLIENT
from netmgr.simulation.prometheus import SCRAPE_SECONDS
from netmgr.simulation.scenario import Event, Scenario


class Requests(TypedDict):
    """What one kind of client asked of the API server; `most_per_second` of any one second."""

    client: str
    number: int
    per_second: float
    most_per_second: int
    received: int
    by_verb: dict[str, int]


class Joined(TypedDict):
    """Nodes that registered from an event to the next one, and how long they took, in seconds.

    `ranges` until the Node had podCIDRs, `schedulable` until it took pods; -1 where none did.
    """

    event: str
    at: float
    nodes: int
    ranges_median: float
    ranges_longest: float
    schedulable_longest: float
    without: int


class Spread(TypedDict):
    """The least, the median and the most of something."""

    least: float
    median: float
    most: float


class Missed(TypedDict):
    """What Prometheus missed of pods' series while it was away; their namespaces' have it."""

    at: float
    seconds: float
    pods: int
    bytes: int


class Accounted(TypedDict):
    """Bytes that pods exchanged, as each place has them; `differing` must be empty."""

    kernels: int
    ledgers: int
    pages: int
    gaps: dict[str, int]
    differing: list[str]


class Report(TypedDict):
    """All figures; times in seconds, sizes in bytes."""

    version: Literal[1]
    nodes: int
    hours: float
    seed: int
    sample: int
    requests: list[Requests]
    joined: list[Joined]
    without_leader: float
    leaders: int
    controller_memory: int
    controller_seconds: float
    pods_started: int
    most_pods: int
    adds_refused: int
    waves: list[float]
    page_bytes: Spread
    page_series: Spread
    samples_per_second: float
    series_left_out: int
    quotas: int
    quotas_spent: int
    prometheus: list[Missed]
    accounting: Accounted


def report(found: Scenario) -> Report:
    """The figures of a scenario that has run."""
    comparison, scale = found.comparison, found.scale
    series = [page.series for page in comparison.seen]
    of_controllers = (
        seconds - found.server.spent[owner]
        for owner, seconds in found.time.spent.items()
        if owner.startswith(CLIENT)
    )
    return {
        "version": 1,
        "nodes": scale.nodes,
        "hours": scale.hours,
        "seed": scale.seed,
        "sample": scale.sample,
        "requests": [*_requests(found)],
        "joined": [*_joined(found)],
        "without_leader": _without_leader(found),
        "leaders": len(found.controllers.led),
        "controller_memory": found.memory,
        "controller_seconds": sum(of_controllers),
        "pods_started": found.cluster.pods_started,
        "most_pods": max(moment.pods for moment in found.moments),
        "adds_refused": found.cluster.adds_refused,
        "waves": found.waves,
        "page_bytes": _spread([page.size for page in comparison.seen]),
        "page_series": _spread(series),
        "samples_per_second": sum(series) / SCRAPE_SECONDS,
        "series_left_out": sum(page.left_out for page in comparison.seen),
        "quotas": sum(page.quotas for page in comparison.seen),
        "quotas_spent": sum(page.spent for page in comparison.seen),
        "prometheus": [
            {
                "at": one.began,
                "seconds": one.ended - one.began,
                "pods": one.pods,
                "bytes": one.missed.total(),
            }
            for one in found.prometheus.absences
        ],
        "accounting": {
            "kernels": comparison.kernels,
            "ledgers": comparison.ledgers,
            "pages": comparison.pages,
            "gaps": dict(comparison.gaps),
            "differing": comparison.differing,
        },
    }


def _requests(found: Scenario) -> Iterator[Requests]:
    by_second: defaultdict[str, Counter[int]] = defaultdict(Counter)
    by_verb: defaultdict[str, Counter[str]] = defaultdict(Counter)
    received: Counter[str] = Counter()
    for client, seconds in found.server.by_second.items():
        by_second[_kind(client)].update(seconds)
        received[_kind(client)] += found.server.sent[client]
    for (client, verb, resource), number in found.server.asked.items():
        by_verb[_kind(client)][f"{verb} {resource}"] += number
    for kind, asked in sorted(by_verb.items()):
        yield {
            "client": kind,
            "number": asked.total(),
            "per_second": asked.total() / (found.scale.hours * 3600),
            "most_per_second": max(by_second[kind].values()),
            "received": received[kind],
            "by_verb": dict(sorted(asked.items())),
        }


def _kind(client: str) -> str:
    return "controllers" if client.startswith(CLIENT) else client


def _joined(found: Scenario) -> Iterator[Joined]:
    ends = [event.began for event in found.events[1:]]
    joining = found.cluster.joining.values()
    for event, end in zip(found.events, [*ends, math.inf], strict=True):
        if some := [one for one in joining if event.began <= one.registered < end]:
            yield _joined_by(event, some)


def _joined_by(event: Event, some: Sequence[Joining]) -> Joined:
    ranges = [one.ranges - one.registered for one in some if one.ranges is not None]
    pods = [one.schedulable - one.registered for one in some if one.schedulable is not None]
    return {
        "event": event.what,
        "at": event.began,
        "nodes": len(some),
        "ranges_median": median(ranges) if ranges else -1,
        "ranges_longest": max(ranges, default=-1),
        "schedulable_longest": max(pods, default=-1),
        "without": len(some) - len(ranges),
    }


def _without_leader(found: Scenario) -> float:
    """The longest time without a leader, while the API server could be asked."""
    spans = sorted((began, ended) for _, began, ended in found.controllers.led)
    first, last = found.api_away
    gaps = [(began - ended, ended) for (_, ended), (began, _) in pairwise(spans)]
    return max((gap for gap, ended in gaps if not first <= ended <= last), default=0.0)


def _spread(values: Sequence[float]) -> Spread:
    return {"least": min(values), "median": median(values), "most": max(values)}
