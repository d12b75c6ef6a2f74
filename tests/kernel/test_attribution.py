"""Whose a packet is, whatever translates it or keeps its connection from being tracked."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netmgr.prefixes import Address, Family
from tests.kernel import connection_table, forging
from tests.kernel.common import talk, totals
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.namespaces import inside
from tests.kernel.spending import IN, OUT
from tests.kernel.translating import PUBLIC, SERVICE, ask_translated, table
from tests.lab.exchange import End, datagrams, open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import BESIDE_INTERNET, INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

LIMITED = "limited"
SETTINGS = {
    "accounting": {"min_reading_seconds": 0, "reading_seconds": 60},
    "limits": [{"pods": f"{LIMITED}/*", IN: "1G", OUT: "1G"}],
    "reconcile_seconds": 0.5,
}
WORLD = {"nodes": 1, "settings": SETTINGS, "exporters": False}
_numbers = itertools.count(1)


backend = one_of(EVERY_WAY_OF_COUNTING)


@pytest.fixture(params=["research", LIMITED])
def served(node: LabNode, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A pod, and one whose packets of the internet wait in IFBs."""
    made = node.add(f"served-{next(_numbers)}", request.param)
    yield made
    node.runtime.delete(made)


def test_what_a_node_says_from_a_public_address_is_no_pods_internet(
    node: LabNode, served: Sandbox
) -> None:
    # First: the node has had no limited pod yet.
    public = "198.51.100.10"
    inside(node.namespace, "ip", "address", "add", f"{public}/32", "dev", "lo")
    try:
        datagrams(End(node.namespace, Address.parse(public)), served.end(Family.V4), [100], [100])
    finally:
        inside(node.namespace, "ip", "address", "del", f"{public}/32", "dev", "lo")
    assert totals(node, served) == {IN: 0, OUT: 0}


def test_a_service_with_an_endpoint_in_the_internet_is_counted_as_the_internet(
    world: World, node: LabNode, served: Sandbox
) -> None:
    ask_translated(node, served.end(Family.V4), world.outside(Family.V4), SERVICE)
    assert totals(node, served) == {IN: 1000, OUT: 500}


def test_what_the_internet_asks_through_a_translated_source_is_the_internets(
    world: World, node: LabNode, served: Sandbox
) -> None:
    """As what enters by a NodePort, which the pod has from its node's address."""
    own = node.node.address(Family.V4)
    ask_translated(node, world.outside(Family.V4), served.end(Family.V4), own, source=own)
    assert totals(node, served) == {IN: 500, OUT: 1000}


def test_what_a_pod_asks_a_neighbour_through_a_public_address_is_nobodys_internet(
    node: LabNode, pod: Sandbox, served: Sandbox
) -> None:
    """As by a NodePort of a node whose address is public; what the pod forges changes nothing."""
    forging.claim_internet(pod)
    ask_translated(node, pod.end(Family.V4), served.end(Family.V4), PUBLIC, source=PUBLIC)
    for one in (pod, served):
        assert set(totals(node, one).values()) == {0}


def test_an_error_from_the_internet_is_counted_as_any_packet(
    node: LabNode, served: Sandbox
) -> None:
    with open_socket(served.netns, Family.V4, socket.SOCK_DGRAM) as near:
        near.connect((str(INTERNET[Family.V4]), 9))
        near.send(bytes(100))
        with pytest.raises(ConnectionRefusedError):
            near.recv(1)
    # The error has the whole datagram, behind headers of its own.
    assert totals(node, served) == {IN: 28 + 128, OUT: 128}


@contextmanager
def routed(world: World, pod: Sandbox) -> Iterator[None]:
    """The internet reaches the pod by its own address."""
    way = (str(pod.address(Family.V4)), "via", str(BESIDE_INTERNET[Family.V4]))
    inside(world.internet, "ip", "route", "add", *way)
    try:
        yield
    finally:
        inside(world.internet, "ip", "route", "del", *way)


def test_what_no_connection_is_tracked_for_is_counted(
    world: World, node: LabNode, served: Sandbox
) -> None:
    untracked = "chain early { type filter hook prerouting priority raw; notrack; }"
    with routed(world, served), table(node, untracked):
        sent = talk(world, served, [1, 100, 1400], [Family.V4])
    assert totals(node, served) == {IN: sent, OUT: sent}


def test_connections_that_are_forgotten_cost_no_byte(
    world: World, node: LabNode, served: Sandbox
) -> None:
    pod, internet = served.address(Family.V4), INTERNET[Family.V4]
    with (
        open_socket(served.netns, Family.V4, socket.SOCK_DGRAM) as near,
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
    ):
        near.bind((str(pod), 0))
        far.bind((str(internet), 4249))
        for _ in range(5):
            near.sendto(bytes(472), far.getsockname())
            _, peer = far.recvfrom(2000)
            far.sendto(bytes(972), peer)
            assert near.recvfrom(2000)[1] == far.getsockname()
            inside(node.namespace, "conntrack", "-F")
    assert totals(node, served) == {IN: 5 * 1000, OUT: 5 * 500}


@pytest.mark.parametrize("served", [LIMITED], indirect=True)
def test_whoever_speaks_first_once_a_connection_was_forgotten_is_counted(
    world: World, node: LabNode, served: Sandbox
) -> None:
    with (
        routed(world, served),
        open_socket(served.netns, Family.V4, socket.SOCK_DGRAM) as near,
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
    ):
        near.bind((str(served.address(Family.V4)), 4250))
        far.bind((str(INTERNET[Family.V4]), 4250))

        def ask() -> None:
            far.sendto(bytes(972), near.getsockname())
            assert len(near.recv(2000)) == 972

        def answer() -> None:
            near.sendto(bytes(472), far.getsockname())
            assert len(far.recv(2000)) == 472

        ask()
        answer()
        node.kill_agent()
        for speak in (ask, answer, ask):
            inside(node.namespace, "conntrack", "-F")
            speak()
        node.start_until_ready()
    assert totals(node, served) == {IN: 3 * 1000, OUT: 2 * 500}


@pytest.mark.slow
def test_a_full_connection_table_refuses_the_new_and_what_is_known_counts_on(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    with (
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near,
        open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as refused,
        open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far,
    ):
        far.bind((str(INTERNET[Family.V4]), 0))
        near.connect(far.getsockname())

        def converse() -> None:
            near.send(bytes(472))
            request, peer = far.recvfrom(2000)
            far.sendto(bytes(972), peer)
            assert (len(request), len(near.recv(2000))) == (472, 972)

        converse()
        inside(
            node.namespace,
            *["conntrack", "-U", "-p", "udp", "-u", "ASSURED", "-s"],
            str(pod.address(Family.V4)),
        )
        connection_table.fill(node.namespace, connection_table.LASTING)
        try:
            refused.sendto(bytes(100), far.getsockname())
            converse()
            assert totals(node, pod) == {IN: 2 * 1000, OUT: 2 * 500}
        finally:
            inside(node.namespace, "conntrack", "-F")


def test_a_pod_that_asks_itself_through_a_public_address_has_no_internet(
    node: LabNode, served: Sandbox
) -> None:
    """A hairpin: both of its packets are translated, on either side."""
    own = served.end(Family.V4)
    ask_translated(node, own, own, PUBLIC, source=PUBLIC)
    assert set(totals(node, served).values()) == {0}
