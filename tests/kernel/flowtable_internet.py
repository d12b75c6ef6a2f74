"""What a connection with the internet carries is counted to the byte, whatever happens meanwhile.

Where links count, such a connection is in the flowtable. `test_flowtable.py` runs this, if need be
in a virtual machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import yaml

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.common import agent_standing_still
from tests.kernel.conftest import one_of
from tests.kernel.flowtable_promises import (
    MANY,
    WATCH,
    Connection,
    connected,
    dropped,
    is_offloaded,
    met_the_rules,
    nft,
    restart,
    wait_for_links,
)
from tests.kernel.namespaces import host_link, inside
from tests.kernel.spending import gaps
from tests.lab.exchange import datagram_bytes
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

SETTINGS = {"accounting": {"min_reading_seconds": 0}, "reconcile_seconds": 1}
WORLD = {"nodes": 1, "settings": SETTINGS, "exporters": False}
CLASS = {"name": "far", "prefixes": [str(address.prefix) for address in INTERNET.values()]}
DATAGRAM = datagram_bytes(Family.V4, 100)

backend = one_of([Backend.LINKS])


@pytest.fixture
def node(world: World) -> Iterator[LabNode]:
    (node,) = world.nodes
    nft(node, WATCH)
    yield node
    nft(node, "delete table inet watch")


@dataclass
class Live:
    """A pod's connection with the internet, and what its node counted of it."""

    node: LabNode
    pod: Sandbox
    between: Connection
    lost: tuple[int, int] = (0, 0)
    """Bytes to the pod and from it that a gap stands for."""

    def missing(self) -> tuple[int, int]:
        """Bytes to the pod and from it that were exchanged and are counted in no class."""
        carried = self.between.exchanged * DATAGRAM
        rows = [row for row in self.node.snapshot()["pods"] if row["pod"] == self.pod.pod.name]
        to_pod, from_pod = (
            carried - sum(row["bytes"] for row in rows if row["traffic"].endswith(way))
            for way in ("-in", "-out")
        )
        return to_pod, from_pod

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Have packets pass in either direction until the block ends."""
        over = threading.Event()

        def exchange() -> None:
            while not over.is_set():
                self.between.exchange(1)

        with ThreadPoolExecutor(1) as pool:
            exchanging = pool.submit(exchange)
            try:
                yield
            finally:
                over.set()
            exchanging.result()

    def restart(self, **keys: object) -> None:
        with self.busy():
            restart(self.node, **keys)


def accounting(node: LabNode, **keys: object) -> dict[str, object]:
    """What node.yaml says of it, with other keys; None takes one out."""
    merged = yaml.safe_load(node.document.read_text())["accounting"] | keys
    return {key: value for key, value in merged.items() if value is not None}


@contextmanager
def counted_by_rules(live: Live) -> Iterator[None]:
    """Nothing passes while one way of counting follows the other: it might be in a gap."""
    restart(live.node, accounting=accounting(live.node, at=None))
    try:
        before = met_the_rules(live.node)
        live.between.exchange()
        assert met_the_rules(live.node) - before == 2 * MANY
        yield
    finally:
        restart(live.node, accounting=accounting(live.node, at="links"))


@contextmanager
def in_a_class(live: Live) -> Iterator[None]:
    live.restart(accounting=accounting(live.node, classes=[CLASS]))
    try:
        yield
    finally:
        live.restart(accounting=accounting(live.node, classes=None))


@contextmanager
def in_a_class_by_rules(live: Live) -> Iterator[None]:
    with counted_by_rules(live), in_a_class(live):
        yield


@contextmanager
def with_another_range(live: Live) -> Iterator[None]:
    ranges = yaml.safe_load(live.node.document.read_text())["ranges"]
    live.restart(ranges=[*ranges, "192.0.2.0/28"])
    try:
        yield
    finally:
        live.restart(ranges=ranges)


@contextmanager
def with_the_agent_killed(live: Live) -> Iterator[None]:
    before = met_the_rules(live.node)
    with live.busy():
        live.node.restart_after_kill()
    assert met_the_rules(live.node) == before
    yield


@contextmanager
def with_tracking_flushed(live: Live) -> Iterator[None]:
    inside(live.node.namespace, "conntrack", "-F")
    yield


@contextmanager
def with_programs_removed(live: Live, link: Callable[[LabNode, Sandbox], str]) -> Iterator[None]:
    removals, name = gaps(live.node)["removed"][0], link(live.node, live.pod)
    with agent_standing_still(live.node):
        inside(live.node.namespace, "tc", "qdisc", "del", "dev", name, "clsact")
        live.between.exchange()
    eventually(lambda: gaps(live.node)["removed"][0] == removals + 1, "no gap is told")
    eventually(lambda: not live.node.problems(), "not repaired")
    live.lost = live.missing()
    assert all(0 <= lost <= MANY * DATAGRAM for lost in live.lost)
    assert any(live.lost)
    yield


@contextmanager
def with_a_forger(live: Live) -> Iterator[None]:
    """Another pod sends what the pod would, and what the internet would answer."""
    ends = live.between.near.getsockname(), live.between.far.getsockname()
    forger, before = live.node.add("forger"), dropped(live.node, "spoofed")
    copies = [
        forging.udp(Address.parse(source[0]), Address.parse(to[0]), (source[1], to[1]), b"forged")
        for source, to in (ends, ends[::-1])
    ]
    forging.send(forger, copies * MANY, forging.Power.ALL)
    eventually(lambda: dropped(live.node, "spoofed") - before == 2 * MANY)
    # Whatever had arrived would be received before what is exchanged from now on.
    yield
    bytes_of_forger = [
        row["bytes"] for row in live.node.snapshot()["pods"] if row["pod"] == forger.pod.name
    ]
    assert sum(bytes_of_forger) == 0
    live.node.runtime.delete(forger)


CHANGES: dict[str, Callable[[Live], AbstractContextManager[None]]] = {
    "rules count, and links again": counted_by_rules,
    "a class, where rules count": in_a_class_by_rules,
    "a class, where links count": in_a_class,
    "a range": with_another_range,
    "the agent is killed": with_the_agent_killed,
    "connections are forgotten": with_tracking_flushed,
    "the uplink's programs go": partial(
        with_programs_removed, link=lambda node, _: node.node.uplink
    ),
    "the pod's link's programs go": partial(with_programs_removed, link=host_link),
    "another pod forges": with_a_forger,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_connection_with_the_internet_carries_is_counted_through(
    world: World, node: LabNode, pod: Sandbox, change: str
) -> None:
    wait_for_links(node)
    with connected(pod, world.outside(Family.V4)) as between:
        live, known = Live(node, pod, between), gaps(node)
        between.exchange()
        assert is_offloaded(node, between)
        with CHANGES[change](live):
            between.exchange()
            assert live.missing() == live.lost
        wait_for_links(node)
        eventually(lambda: is_offloaded(node, between), "it was not handed over again")
        between.exchange()
        assert live.missing() == live.lost
    assert any(live.lost) or gaps(node) == known
