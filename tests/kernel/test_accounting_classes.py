"""Traffic classes from node.yaml to the exporter's page: every byte in one class, and all of them
the pod's whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.lab.capture import Tally
from tests.lab.exchange import End, datagrams, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.wiring import inside
from tests.lab.world import World

pytestmark = pytest.mark.root

NEIGHBOURLY = 4
"""Packets that node and pod may exchange meanwhile to find each other: they pass the link and no
forward hook.
"""

SIZES = [1, 700, 1200]


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    """Two nodes with two pods each; the second node's ranges are a class."""
    topology = cluster(pods=2)
    classes = [{"name": "far", "prefixes": [str(prefix) for prefix in topology.nodes[1].ranges]}]
    accounting = {"reading_seconds": 0.2, "min_reading_seconds": 0.05, "classes": classes}
    name = f"classes-{os.getpid()}-{backend[-6:]}"
    settings = {"accounting": accounting}
    with World(topology, backend=backend, name=name, settings=settings) as made:
        yield made


def of(pods: list[Sandbox], node: str) -> list[Sandbox]:
    return [pod for pod in pods if pod.pod.node == node]


def told(node: LabNode, pod: Sandbox) -> dict[str, Tally]:
    """What the agent tells of a pod, by traffic, where there was any."""
    entries = [
        entry
        for entry in node.snapshot()["pods"]
        if entry["pod"] == pod.pod.name and entry["packets"]
    ]
    return {entry["traffic"]: Tally(entry["bytes"], entry["packets"]) for entry in entries}


def exported(node: LabNode, pod: Sandbox) -> dict[str, int]:
    """What the exporter tells, in bytes."""
    families = text_string_to_metric_families(node.scrape())
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.labels["traffic"]: int(sample.value)
        for sample in samples
        if sample.name == "netmgr_pod_traffic_bytes_total"
        and sample.labels["pod"] == pod.pod.name
        and sample.value
    }


def settled(look, expected):
    deadline = time.monotonic() + 5
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_what_a_pod_exchanges_is_told_class_by_class_and_nothing_twice(world: World) -> None:
    pods = world.pods()
    (pod, near), (far, _) = of(pods, "node-1"), of(pods, "node-2")
    expected: dict[str, Tally] = {}

    def exchange(kind: str, family: Family, peer: End) -> None:
        own = End(pod.netns, pod.address(family))
        heard = datagrams(own, peer, SIZES, SIZES[1:] + SIZES[:1])
        for way, tally in (("out", heard.forth), ("in", heard.back)):
            traffic = f"{kind}-{way}"
            expected[traffic] = expected.get(traffic, Tally()) + tally

    for family in Family:
        exchange("internet", family, End(world.internet, INTERNET[family]))
        exchange("far", family, End(far.netns, far.address(family)))
        exchange("internal", family, End(near.netns, near.address(family)))
    node = world.node("node-1")
    assert settled(lambda: told(node, pod), expected) == expected
    octets = {kind: tally.bytes for kind, tally in expected.items()}
    assert settled(lambda: exported(node, pod), octets) == octets
    mirrored = {"internal-in": expected["internal-out"], "internal-out": expected["internal-in"]}
    assert told(node, near) == mirrored
    # To the other node the first one's pods are no class.
    there = {"internal-in": expected["far-out"], "internal-out": expected["far-in"]}
    assert settled(lambda: told(world.node("node-2"), far), there) == there


@pytest.mark.parametrize("family", Family, ids=lambda family: f"v{family.value}")
def test_the_classes_add_up_to_all_that_passes_the_pods_link(world: World, family: Family) -> None:
    pods = world.pods()
    pod, near = of(pods, "node-1")
    far = of(pods, "node-2")[0]
    node = world.node("node-1")
    own = End(pod.netns, pod.address(family))
    before, carried_before = told(node, pod), carried(node, pod)
    for peer in (
        End(world.internet, INTERNET[family]),
        *(End(one.netns, one.address(family)) for one in (near, far)),
    ):
        stream(own, peer, 200_000, 50_000)
    carried_now = carried(node, pod)

    def missing() -> list[Tally]:
        now = told(node, pod)
        grown = {kind: tally - before.get(kind, Tally()) for kind, tally in now.items()}
        return [
            carried_now[way]
            - carried_before[way]
            - sum((grown[kind] for kind in grown if kind.endswith(way)), Tally())
            for way in ("in", "out")
        ]

    assert (carried_now["out"] - carried_before["out"]).bytes > 600_000
    deadline = time.monotonic() + 5
    while max(rest.packets for rest in missing()) > NEIGHBOURLY and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(
        0 <= rest.packets <= NEIGHBOURLY and 0 <= rest.bytes <= 100 * NEIGHBOURLY
        for rest in missing()
    )


def carried(node: LabNode, pod: Sandbox) -> dict[str, Tally]:
    """What the kernel counts on the node's end of the pod's link, without Ethernet's 14 bytes a
    packet.
    """
    with inside(node.namespace):
        links = json.loads(
            subprocess.run(["ip", "-s", "-j", "link"], check=True, stdout=subprocess.PIPE).stdout
        )
        routes = subprocess.run(
            ["ip", "route"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    name = next(
        line.split()[2]
        for line in routes.splitlines()
        if line.startswith(f"{pod.address(Family.V4)} dev ")
    )
    counts = next(link["stats64"] for link in links if link["ifname"] == name)
    return {
        way: Tally(counts[side]["bytes"] - 14 * counts[side]["packets"], counts[side]["packets"])
        for way, side in (("in", "tx"), ("out", "rx"))
    }
