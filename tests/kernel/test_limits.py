"""Limits of pods' internet traffic, with TCP and UDP through the kernel's own queues."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress

import pytest

from netmgr.prefixes import Family
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.flows import MEASURED, MEGABIT, Flow, attain, attains, flows, rates
from tests.kernel.limited import NewPod, pods_of, repaired, shown, without_limits
from tests.kernel.spending import Spender
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import eventually

# Limits are nftables' whatever counts.
pytestmark = [pytest.mark.root, pytest.mark.alone, ONLY_NFTABLES]

LIMITS = [
    {"pods": "*/limited-*", "internet-in": "40M", "internet-out": "20M"},
    {"namespaces": "shared", "internet-in": "50M", "internet-out": "50M"},
    {"pods": "*/slow-*", "internet-out": "20M", "classes": {"others-out": "30M"}},
]
OTHERS = {"name": "others", "prefixes": ["10.128.32.0/20", "fd00:128:0:2::/64"]}
"""Pods of node-2."""
WORLD = {
    "settings": {
        "limits": LIMITS,
        "reconcile_seconds": 1,
        "accounting": {"min_reading_seconds": 0, "classes": [OTHERS]},
    }
}


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


def to_internet(
    world: World, pod: Sandbox, many: int = 1, family: Family = Family.V4
) -> AbstractContextManager[list[Flow]]:
    return flows(pod.netns, world.internet, INTERNET[family], many)


@pytest.mark.parametrize(
    ("way", "limit", "family", "many"),
    [
        ("out", 20, Family.V4, 1),
        ("in", 40, Family.V6, 8),
        pytest.param("out", 20, Family.V6, 8, marks=pytest.mark.slow),
        pytest.param("in", 40, Family.V4, 1, marks=pytest.mark.slow),
    ],
)
def test_a_limited_pod_gets_what_its_limit_allows(
    world: World, new_pod: NewPod, family: Family, many: int, way: str, limit: int
) -> None:
    pod = new_pod("limited")
    internet = INTERNET[family]
    with flows(pod.netns, world.internet, internet, many, to_server=way == "out") as found:
        assert attains(found, limit)


@pytest.mark.slow
def test_neither_other_pods_nor_internal_traffic_are_limited(world: World, new_pod: NewPod) -> None:
    limited, other, server = new_pod("limited"), new_pod("free"), new_pod("free")
    with to_internet(world, other) as free, to_internet(world, limited) as slow:
        assert attain(lambda beside, own: beside > 200 and own <= 20 * 1.05, free, slow)
    with flows(limited.netns, server.netns, server.address(Family.V4)) as inside:
        assert attain(lambda unlimited: unlimited > 200, inside)


@pytest.mark.slow
def test_pods_of_a_namespace_share_by_pod_and_not_by_connection(
    world: World, new_pod: NewPod
) -> None:
    one, other = new_pod("a", "shared"), new_pod("b", "shared")
    with to_internet(world, one, 1) as single, to_internet(world, other, 8) as many:
        assert attain(
            lambda *found: sum(found) == pytest.approx(50, rel=0.05) and min(found) >= 21,
            single,
            many,
        )
    # The other one's share is not kept for it.
    with to_internet(world, one, 1) as single:
        assert attains(single, 50)


@pytest.mark.slow
def test_a_flood_of_one_pod_leaves_its_neighbour_its_share(world: World, new_pod: NewPod) -> None:
    one, other = new_pod("a", "shared"), new_pod("b", "shared")
    with (
        to_internet(world, one) as found,
        open_socket(other.netns, Family.V4, socket.SOCK_DGRAM) as near,
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as sink,
    ):
        sink.bind((str(INTERNET[Family.V4]), 0))
        near.connect(sink.getsockname())
        ended = threading.Event()

        def flood() -> None:
            # Three times the limit: 1,400 bytes in 75 microseconds.
            began, sent = time.monotonic(), 0
            while not ended.is_set():
                due = int((time.monotonic() - began) * 150 * MEGABIT / 8 / 1400)
                for _ in range(due - sent):
                    with suppress(OSError):
                        near.send(bytes(1400))
                sent = due
                time.sleep(0.001)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            assert attain(lambda share: share >= 21, found)
        finally:
            ended.set()
            thread.join()


@pytest.mark.slow
def test_limits_stay_while_no_agent_runs_and_a_new_one_takes_them_over(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    pod = new_pod("limited")
    with to_internet(world, pod) as found:
        assert attains(found, 20)
        node.kill_agent()
        assert attains(found, 20)
        sent = bytes_of_classes(node)
        node.start_until_ready()
        # The same classes: one that was made anew would have sent next to nothing.
        assert bytes_of_classes(node) >= sent > MEGABIT
        assert attains(found, 20)
    assert repaired(node) == 0


def bytes_of_classes(node: LabNode) -> int:
    """What all classes have sent since they were made."""
    # Debian 12's tc shows no JSON of HTB.
    listed = shown(node, "tc", "-s", "class", "show", "dev", "netmgr-out")
    return sum(map(int, re.findall(r"Sent (\d+) bytes", listed)))


def test_what_limits_do_is_shown(world: World, node: LabNode, new_pod: NewPod) -> None:
    pod, other = new_pod("limited"), new_pod("a", "shared")
    with to_internet(world, pod) as found, to_internet(world, other) as beside:
        least = [rate * MEGABIT / 8 * MEASURED for rate in rates(found, beside)]
    limits = {
        (limit["namespace"], limit["pod"]): limit
        for limit in node.snapshot()["limits"]
        if limit["traffic"] == "internet-out"
    }
    own = limits["research", pod.pod.name]
    shared, part = (limits["shared", name] for name in ("", other.pod.name))
    assert own["rate"] == 20 * MEGABIT
    assert own["bytes"] >= least[0] > 0
    assert own["delays"] > 0
    assert shared["bytes"] >= part["bytes"] >= least[1] > 0
    labels = f'namespace="research",pod="{pod.pod.name}",traffic="internet-out"'
    assert f"netmgr_limit_bytes_per_second{{{labels}}} 2.5e+06" in node.scrape()
    told = node.ask("explain", address=str(pod.address(Family.V4)))
    assert told["limits"] == [
        "limits[0] of node.yaml: {pods: */limited-*, internet-in: 40M, internet-out: 20M}"
    ]
    assert node.ask("explain", address="10.9.9.9")["limits"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "ip link delete netmgr-out",
        "ip link set netmgr-out down",
        "tc qdisc delete dev netmgr-out root",
        "nft delete table netdev netmgr",
        "nft flush table netdev netmgr",
        "nft add table netdev netmgr { flags dormant; }",
    ],
)
def test_what_another_program_changed_is_put_back_and_told(
    world: World, node: LabNode, new_pod: NewPod, damage: str
) -> None:
    pod = new_pod("limited")
    before = repaired(node)
    shown(node, *damage.split())
    eventually(lambda: repaired(node) > before, "not repaired")
    with to_internet(world, pod) as found:
        assert attains(found, 20)


@pytest.mark.slow
def test_a_pod_of_the_same_name_is_limited_again(world: World, node: LabNode) -> None:
    before = repaired(node)
    for _ in range(3):
        pod = node.add("limited-again")
        try:
            with to_internet(world, pod) as found:
                assert attains(found, 20)
        finally:
            node.runtime.delete(pod)
    eventually(lambda: "limited_again" not in shown(node, "nft", "list", "ruleset"), "left")
    assert repaired(node) == before


def test_pods_of_a_name_may_come_and_go_faster_than_the_agent_looks(node: LabNode) -> None:
    for namespace in ("research", "shared"):
        for _ in range(5):
            node.runtime.delete(node.add("limited-shortly", namespace=namespace))


def test_what_a_limited_pod_sends_is_counted_to_the_byte(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    spender = Spender(world, node, new_pod("limited"))
    sizes = [spender.send(size) for size in (100, 1000, 1500) for _ in range(20)]
    assert spender.counted() == sum(sizes)


@pytest.mark.slow
def test_each_class_has_its_own_limit(world: World, node: LabNode, new_pod: NewPod) -> None:
    with pods_of(world.nodes[1]) as far:
        slow, beside, other = new_pod("slow"), new_pod("free"), far("free")
        for family in Family:
            there, here = other.address(family), beside.address(family)
            with (
                flows(slow.netns, other.netns, there) as to_class,
                to_internet(world, slow, family=family) as outside,
            ):
                assert attains(to_class, 30)
                assert attains(outside, 20)
            # Neither what comes from the class, nor what is in no class.
            with flows(slow.netns, other.netns, there, to_server=False) as from_class:
                assert attain(lambda unlimited: unlimited > 200, from_class)
            with flows(slow.netns, beside.netns, here) as inside:
                assert attain(lambda unlimited: unlimited > 200, inside)
        limits = [limit for limit in node.snapshot()["limits"] if limit["pod"] == slow.pod.name]
        rates_shown = {limit["traffic"]: limit["rate"] for limit in limits}
        assert rates_shown == {"internet-out": 20_000_000, "others-out": 30_000_000}


@pytest.mark.slow
def test_limits_that_the_document_no_longer_has_go_with_the_next_start(world: World) -> None:
    node = world.nodes[1]
    with pods_of(node) as add:
        pod = add("limited")
        assert "netmgr-out" in shown(node, "ip", "-br", "link")
        with without_limits(node):
            assert "netmgr-out" not in shown(node, "ip", "-br", "link")
            assert "netdev netmgr" not in shown(node, "nft", "list", "tables")
            with to_internet(world, pod) as free:
                assert attain(lambda unlimited: unlimited > 200, free)
