"""Compares what a lab's pods sent with what its exporters counted, pod by pod."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from netmgr.model import Traffic
from tests.lab.capture import Tally
from tests.lab.traffic import Column, Sent
from tests.lab.world import World
from tests.waiting import PATIENCE

POD_BYTES = "netmgr_pod_traffic_bytes_total"
POD_PACKETS = "netmgr_pod_traffic_packets_total"

Counts = dict[Column, Tally]
Looked = TypeVar("Looked")


def read(world: World) -> Counts:
    """Every pod's totals, scraped from every node's exporter."""
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
                # Bytes and packets are two families on the page, and one figure here.
                totals[column] += Tally(number, 0) if sample.name == POD_BYTES else Tally(0, number)
    return dict(totals)


def since(world: World, before: Counts, expected: Counts, patience: float = PATIENCE) -> Counts:
    """What was counted since `before`: once it is as `expected`, or after `patience` seconds.

    Waiting is fair: a counter that runs behind catches up, one that is wrong stays wrong.
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
    found: Counts = {}
    for column, tally in after.items():
        more = tally - before.get(column, Tally())
        if column in expected or more != Tally():
            found[column] = more
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """One pod and direction."""

    column: Column
    sent: Tally
    counted: Tally

    @property
    def agrees(self) -> bool:
        return self.sent == self.counted


def compare(sent: Sent, counted: Counts) -> list[Row]:
    """One row for each pod and direction that either side knows, in a reader's order."""
    columns = sent.internet.keys() | counted.keys()
    return [
        Row(column, sent.internet.get(column, Tally()), counted.get(column, Tally()))
        for column in sorted(columns, key=_reading_order)
    ]


def _reading_order(column: Column) -> tuple[str, int, str, str]:
    """pod-2 before pod-10; out before in."""
    return (
        column.namespace,
        len(column.pod),
        column.pod,
        "" if column.traffic is Traffic.INTERNET_OUT else "in",
    )


def result(rows: list[Row], sent: Sent) -> tuple[bool, str]:
    """Whether all agree, and a message that says so."""
    wrong = [row for row in rows if not row.agrees]
    if not rows:
        return False, "Nothing was compared: no pod runs in this lab."
    if wrong:
        names = ", ".join(sorted({row.column.pod for row in wrong}))
        return False, f"Sent and counted differ for {names}."
    total = sum(row.sent.bytes for row in rows)
    pods = len({row.column.pod for row in rows})
    inside = sum(sent.internal.values())
    return True, (
        f"{total:,} bytes to and from the internet by {pods} pods: every byte counted.\n"
        f"{inside:,} bytes among pods and nodes: correctly excluded."
    )
