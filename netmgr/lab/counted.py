"""What the exporters of a lab's nodes say each pod sent and received."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from netmgr.lab.capture import Tally
from netmgr.lab.traffic import Column
from netmgr.lab.world import World
from netmgr.model import Traffic

POD_BYTES = "netmgr_pod_traffic_bytes_total"
POD_PACKETS = "netmgr_pod_traffic_packets_total"

Counts = dict[Column, Tally]
Looked = TypeVar("Looked")


def read(world: World) -> Counts:
    """Every pod's totals, scraped from every node's exporter.

    Raises:
        LabError: an exporter does not answer.
    """
    totals: defaultdict[Column, Tally] = defaultdict(Tally)
    for node in world.nodes:
        for column, tally in parse(node.scrape()).items():
            totals[column] += tally
    return dict(totals)


def parse(page: str) -> Counts:
    """The pods' totals on one exporter's page."""
    totals: defaultdict[Column, Tally] = defaultdict(Tally)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in {POD_BYTES, POD_PACKETS}:
                labels = sample.labels
                column = Column(labels["namespace"], labels["pod"], Traffic(labels["traffic"]))
                number = int(sample.value)
                totals[column] += Tally(number, 0) if sample.name == POD_BYTES else Tally(0, number)
    return dict(totals)


def since(world: World, before: Counts, expected: Counts, patience: float = 5) -> Counts:
    """What has been counted since `before`: as soon as it is `expected`, else after `patience` seconds.

    Waiting is fair: a counter that runs behind catches up, one that is wrong stays wrong.

    Raises:
        LabError: an exporter does not answer.
    """
    return wait_for(lambda: _difference(read(world), before, expected), expected, patience)


def wait_for(look: Callable[[], Looked], expected: Looked, patience: float) -> Looked:
    """Look again and again until it is as `expected`; returns the last look."""
    deadline = time.monotonic() + patience
    while (counts := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return counts


def _difference(after: Counts, before: Counts, expected: Counts) -> Counts:
    """What each pod has more than before; a lingering pod that had nothing to do is left out."""
    more = {column: tally - before.get(column, Tally()) for column, tally in after.items()}
    return {column: tally for column, tally in more.items() if column in expected or tally != Tally()}
