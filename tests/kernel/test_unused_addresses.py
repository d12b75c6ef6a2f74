"""Packets to an address of the ranges that no pod has end at the node: they go in no circle and are
not counted.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.kernel.namespaces import inside
from tests.lab.exchange import datagrams, open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

FABRIC = {
    Family.V4: ("10.128.0.0/9", "203.0.113.254"),
    Family.V6: ("fd00:128::/32", "2001:db8:ffff::fe"),
}
IP = {Family.V4: ["ip"], Family.V6: ["ip", "-6"]}


@pytest.fixture(scope="module", params=EVERY_WAY_OF_COUNTING, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    """A node whose pods' addresses the internet knows the way to."""
    settings = {"accounting": {"min_reading_seconds": 0}, "reconcile_seconds": 0.3}
    name = f"unused-{os.getpid()}"
    one = cluster(nodes=1, pods=1)
    with World(one, backend=backend, name=name, settings=settings, exporters=False) as made:
        for family, (block, fabric) in FABRIC.items():
            inside(made.internet, *IP[family], "route", "add", block, "via", fabric)
        yield made


def probe(world: World, address: Address) -> None:
    """Send ten datagrams from the internet."""
    with open_socket(world.internet, address.family, socket.SOCK_DGRAM) as sender:
        for _ in range(10):
            sender.sendto(bytes(972), (str(address), 9))
    time.sleep(0.3)


def received(node: LabNode) -> tuple[int, int]:
    """What the node forwarded from the internet, and what of it was no pod's, in bytes."""
    node.snapshot()
    told = next(one for one in node.snapshot()["unattributed"] if one["traffic"] == "internet-in")
    return told["forwarded"], told["bytes"]


def blackholes(node: LabNode) -> int:
    return sum(
        inside(node.namespace, *IP[family], "route", "show", "type", "blackhole").count("proto 110")
        for family in Family
    )


@pytest.mark.parametrize("family", Family, ids=lambda family: f"v{family.value}")
def test_a_scan_of_addresses_that_no_pod_has_counts_nothing(
    world: World, node: LabNode, family: Family
) -> None:
    block = next(block for block in node.node.ranges if block.family is family)
    before = received(node)
    probe(world, Address(family, block.last - 1))
    assert received(node) == before


@pytest.mark.parametrize("family", Family, ids=lambda family: f"v{family.value}")
def test_what_still_comes_for_a_pod_that_has_ended_counts_nothing(
    world: World, node: LabNode, family: Family
) -> None:
    pod = node.add(f"short-{family.value}")
    address = pod.address(family)
    datagrams(pod.end(family), world.outside(family), [100], [900])
    node.runtime.delete(pod)
    before = received(node)
    probe(world, address)
    assert received(node) == before


@pytest.fixture(scope="module")
def slow_node() -> Iterator[LabNode]:
    """A node that looks at everything once an hour."""
    settings = {"reconcile_seconds": 3600}
    room, name = cluster(nodes=1, pods=0), f"unlooked-{os.getpid()}"
    with World(room, name=name, settings=settings, exporters=False) as world:
        yield world.nodes[0]


def lose_blackholes(node: LabNode, *families: Family) -> None:
    for family in families:
        inside(node.namespace, *IP[family], "route", "flush", "type", "blackhole")


def test_blackholes_come_back_at_once(slow_node: LabNode) -> None:
    made = blackholes(slow_node)
    for _ in range(3):
        for family in Family:
            lose_blackholes(slow_node, family)
            eventually(lambda: blackholes(slow_node) == made > 0)


@pytest.mark.parametrize("end", [LabNode.stop_agent, LabNode.kill_agent])
def test_blackholes_that_went_while_no_agent_was_there_are_back_once_it_is_ready(
    slow_node: LabNode, end: Callable[[LabNode], None]
) -> None:
    made = blackholes(slow_node)
    end(slow_node)
    lose_blackholes(slow_node, *Family)
    assert blackholes(slow_node) == 0
    slow_node.start_until_ready()
    assert blackholes(slow_node) == made > 0


def test_blackholes_that_somebody_removes_come_back_and_withdrawn_ranges_lose_theirs(
    node: LabNode,
) -> None:
    made = len(node.node.ranges)
    assert blackholes(node) == made
    lose_blackholes(node, *Family)
    eventually(lambda: blackholes(node) == made)
    document = node.document.read_text()
    gone = str(node.node.ranges[1])
    node.document.write_text(document.replace(f"- {gone}\n", ""))
    eventually(lambda: blackholes(node) == made - 1)
    node.document.write_text(document)
    eventually(lambda: blackholes(node) == made)
