"""Bytes and packets as netmgr counts them for pods, against a capture at the internet host."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import partial

from netmgr.model import Traffic
from tests.e2e import netmgr, network
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.load import Conversation
from tests.e2e.pods import BACK, FORTH, Pod
from tests.lab import comparison, exchange
from tests.lab.capture import Capture, Tally
from tests.lab.comparison import Counts
from tests.lab.exchange import End
from tests.lab.traffic import Column

WAYS = (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)
SECONDS_TO_COUNT = 20
"""Counters are read every five seconds."""


READING_SECONDS = 1


def check(cluster: Cluster, running: Mapping[str, Pod], internet: End) -> None:
    """Every pod talks to the internet and to another pod: the former is counted, the latter not."""
    before = counts(cluster)
    talk, family = Conversation(running, internet), internet.address.family
    with Capture(internet.namespace, "eth0") as capture:
        for name, pod in running.items():
            talk.step(name)
            other = next(each for each in running.values() if each.node != pod.node)
            exchange.stream(pod.end(family), other.end(family), FORTH, BACK)
        seen = talk.seen(capture)
    assert set(seen) == {Column("default", name, way) for name in running for way in WAYS}
    assert gained(cluster, before, seen) == seen


def counts(cluster: Cluster) -> Counts:
    """Every pod's totals, from all exporters."""
    totals: Counts = {}
    for node in network.NODES:
        for column, tally in comparison.parse(netmgr.page(cluster, node)).items():
            totals[column] = totals[column] + tally if column in totals else tally
    return totals


def gained(cluster: Cluster, before: Counts, expected: Counts) -> Counts:
    """What each pod has more than before: once it is as `expected`, or when it never is."""
    return comparison.wait_for(
        partial(difference, cluster, before), expected, patience=SECONDS_TO_COUNT
    )


def settled(cluster: Cluster) -> Counts:
    """Every pod's totals, once the exporters have everything that was sent so far."""
    known = counts(cluster)

    def same() -> bool:
        nonlocal known
        # An agent reads the kernel twice a second at most; until then its answer is the same.
        time.sleep(READING_SECONDS)
        former, known = known, counts(cluster)
        return former == known

    wait_for(same, "totals that stay", 60)
    return known


def origins(cluster: Cluster, node: str) -> dict[tuple[str, str], int]:
    """What a node's exporter says its total consists of: bytes by origin and traffic."""
    text = netmgr.page(cluster, node)
    found = re.findall(
        r'^netmgr_node_traffic_origin_bytes_total\{origin="(.+?)",traffic="(.+?)"\} (\S+)$',
        text,
        re.MULTILINE,
    )
    return {(origin, traffic): int(float(size)) for origin, traffic, size in found}


def difference(cluster: Cluster, before: Counts) -> Counts:
    """What each pod has more than before, as the exporters have it now."""
    after = counts(cluster)
    more = {column: tally - before.get(column, Tally()) for column, tally in after.items()}
    return {column: tally for column, tally in more.items() if tally != Tally()}
