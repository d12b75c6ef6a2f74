"""What pods do on the network: whom others see, whom they cannot pretend to be, and what of it is
counted, to the byte, whatever happens.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.model import Traffic
from netmgr.prefixes import Address, Family
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.lab import wiring
from tests.lab.capture import Tally
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagram_bytes, datagrams, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.parametrize("backend", EVERY_WAY_OF_COUNTING, indirect=True, ids=str),
]

NewPod = Callable[..., Sandbox]
Amounts = dict[Traffic, Tally]
OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
NOTHING = {OUT: Tally(), IN: Tally()}
SIZES = [0, 1, 7, 512, 1200, 1452]
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
SOON = 0.3
"""Seconds in which a packet would long have arrived, and two readings have surely passed."""


@pytest.fixture(params=["pod on the same node", "pod on another node", "its node", "another node"])
def peer(request: pytest.FixtureRequest, world: World, new_pod: NewPod) -> Callable[[Family], End]:
    """An end inside the cluster, as seen from a pod of the first node."""
    name = "node-2" if "another" in request.param else "node-1"
    if request.param.startswith("pod"):
        return new_pod(name).end
    return world.node(name).end


def tallies(node: LabNode, rows: str, **labels: str) -> Amounts:
    """Rows of a node's snapshot, by traffic."""
    found = [row for row in node.ask("snapshot")[rows] if labels.items() <= row.items()]
    return NOTHING | {Traffic(row["traffic"]): Tally(row["bytes"], row["packets"]) for row in found}


def counted(node: LabNode, pod: Sandbox) -> Amounts:
    """What the agent's ledger tells of one pod."""
    return tallies(node, "pods", pod=pod.pod.name)


def node_total(node: LabNode) -> Amounts:
    return tallies(node, "node_totals")


def wait_until_counted(look: Callable[[], Amounts], expected: Amounts) -> None:
    eventually(lambda: look() == expected, lambda: f"{look()}, not {expected}")


def converse(world: World, pod: Sandbox, family: Family, rounds: int = 1) -> Amounts:
    """Datagrams of every size to the internet and back, sizes differing by direction; returns what
    was sent.
    """
    back = (SIZES[1:] + SIZES[-1:]) * rounds
    heard = datagrams(pod.end(family), world.outside(family), SIZES * rounds, back)
    return {OUT: heard.forth, IN: heard.back}


def total(*sent: Amounts) -> Amounts:
    return {traffic: sum((each[traffic] for each in sent), Tally()) for traffic in Traffic}


@FAMILIES
def test_udp_is_counted_to_the_byte_for_each_pod_and_direction(
    world: World, new_pod: NewPod, family: Family
) -> None:
    pods = [new_pod("node-1"), new_pod("node-1"), new_pod("node-2")]
    sent = [converse(world, pod, family, rounds) for rounds, pod in enumerate(pods, start=1)]
    of_one = sum(datagram_bytes(family, size) for size in SIZES)
    assert sent[0][OUT].bytes == of_one != sent[0][IN].bytes
    for pod, expected in zip(pods, sent, strict=True):
        node = world.node(pod.pod.node)
        wait_until_counted(partial(counted, node, pod), expected)


@FAMILIES
def test_internal_traffic_counts_zero(
    node: LabNode, new_pod: NewPod, peer: Callable[[Family], End], family: Family
) -> None:
    pod, before = new_pod("node-1"), node_total(node)
    datagrams(pod.end(family), peer(family), SIZES, SIZES)
    stream(pod.end(family), peer(family), 10_000, 20_000)
    time.sleep(SOON)
    assert counted(node, pod) == NOTHING
    assert node_total(node) == before


@FAMILIES
def test_the_nodes_own_internet_traffic_counts_for_the_node_and_no_pod(
    world: World, node: LabNode, new_pod: NewPod, family: Family
) -> None:
    pod = new_pod()
    time.sleep(SOON)
    before = node_total(node)
    heard = datagrams(node.end(family), world.outside(family), SIZES, SIZES[::-1])
    expected = total(before, {OUT: heard.forth, IN: heard.back})
    wait_until_counted(lambda: node_total(node), expected)
    assert counted(node, pod) == NOTHING


@FAMILIES
def test_a_pod_deleted_right_after_sending_loses_nothing(
    world: World, node: LabNode, new_pod: NewPod, family: Family
) -> None:
    for _ in range(3):
        pod = new_pod()
        expected = converse(world, pod, family)
        node.runtime.delete(pod)
        wait_until_counted(partial(counted, node, pod), expected)


def test_a_namespaces_total_keeps_what_its_deleted_pods_sent(world: World) -> None:
    node = world.node("node-2")
    namespace = f"team-{time.monotonic_ns()}"
    sent = []
    for number in range(2):
        pod = node.add(f"{namespace}-{number}", namespace)
        sent.append(converse(world, pod, Family.V4))
        node.runtime.delete(pod)
    wait_until_counted(lambda: tallies(node, "namespaces", namespace=namespace), total(*sent))


@pytest.mark.parametrize("restart_at", ["in the middle", "at the end"])
def test_an_agent_killed_in_mid_traffic_loses_nothing(
    world: World, node: LabNode, new_pod: NewPod, restart_at: str
) -> None:
    pod = new_pod()
    time.sleep(SOON)
    before_node = node_total(node)
    sent: list[Amounts] = []
    failures: list[LabError] = []
    ending = threading.Event()

    def talk() -> None:
        try:
            while not ending.is_set():
                sent.extend(converse(world, pod, family) for family in Family)
        except LabError as error:
            failures.append(error)

    def wait_for_more() -> int:
        many = len(sent)
        eventually(lambda: len(sent) > many + 4 or failures)
        return len(sent)

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        wait_for_more()
        node.kill_agent()
        wait_for_more()
        if restart_at == "in the middle":
            node.start_until_ready()
        wait_for_more()
    finally:
        ending.set()
        talker.join()
    assert not failures
    if restart_at == "at the end":
        node.start_until_ready()
    expected = total(*sent)
    wait_until_counted(lambda: counted(node, pod), expected)
    assert node_total(node) == total(before_node, expected)
    assert sum(gap["count"] for gap in node.snapshot()["gaps"]) == 0


@contextmanager
def listening(end: End) -> Iterator[socket.socket]:
    with open_socket(end.namespace, end.address.family, socket.SOCK_DGRAM) as opened:
        opened.bind((str(end.address), 0))
        yield opened


def send_from(
    pod: Sandbox, source: Address, listener: socket.socket, seconds: float = PATIENCE
) -> Address | None:
    """Send a datagram from `source` to the listener; who it arrived from, or None."""
    listener.settimeout(seconds)
    with open_socket(pod.netns, source.family, socket.SOCK_DGRAM) as sender:
        sender.bind((str(source), 0))
        sender.sendto(b"who am I?", listener.getsockname()[:2])
        try:
            return Address.parse(listener.recvfrom(100)[1][0])
        except TimeoutError:
            return None


def give(pod: Sandbox, address: Address) -> None:
    """Put an address onto the pod's interface, as root inside the pod can."""
    with wiring.inside(pod.netns), Netlink() as channel:
        channel.transact([links.add_address(address, socket.if_nametoindex("eth0"))])


@FAMILIES
def test_the_first_packet_after_an_add_arrives_and_is_answered(
    world: World, new_pod: NewPod, family: Family
) -> None:
    for _ in range(20):
        datagrams(new_pod().end(family), world.outside(family), [100], [100])


@FAMILIES
def test_a_pod_sending_with_anothers_address_gets_nothing_through(
    new_pod: NewPod, peer: Callable[[Family], End], family: Family
) -> None:
    pod, neighbour, stranger = new_pod("node-1"), new_pod("node-1"), new_pod("node-2")
    nobodys = Address.parse("10.200.0.1" if family is Family.V4 else "fd00:200::1")
    with listening(peer(family)) as listener:
        for stolen in (neighbour.address(family), stranger.address(family), nobodys):
            give(pod, stolen)
            assert send_from(pod, pod.address(family), listener) is not None
            assert send_from(pod, stolen, listener, SOON) is None
            assert send_from(pod, pod.address(family), listener) is not None


@FAMILIES
def test_inside_the_cluster_a_pod_is_seen_as_itself(
    new_pod: NewPod, peer: Callable[[Family], End], family: Family
) -> None:
    pod = new_pod("node-1")
    with listening(peer(family)) as listener:
        assert send_from(pod, pod.address(family), listener) == pod.address(family)


@pytest.mark.parametrize("end", [LabNode.kill_agent, LabNode.stop_agent])
def test_pods_keep_working_while_the_agent_is_away_and_after_it_is_back(
    world: World, node: LabNode, new_pod: NewPod, end: Callable[[LabNode], None]
) -> None:
    pod, other = new_pod("node-1"), new_pod("node-2")

    def everyone_is_reached() -> None:
        for family in Family:
            for far in (world.outside(family), other.end(family)):
                datagrams(pod.end(family), far, [100, 1400], [1400, 100])
                stream(pod.end(family), far, 50_000, 50_000)

    end(node)
    try:
        assert node.agent_pid() is None
        everyone_is_reached()
    finally:
        node.start_until_ready()
    everyone_is_reached()
    node.runtime.check(pod)


def test_a_connection_outlives_the_agents_restart(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    pod = new_pod()
    with (
        open_socket(world.internet, Family.V4, socket.SOCK_STREAM) as listener,
        open_socket(pod.netns, Family.V4, socket.SOCK_STREAM) as near,
    ):
        listener.bind((str(INTERNET[Family.V4]), 0))
        listener.listen(1)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        with far:
            node.kill_agent()
            near.sendall(b"during")
            assert far.recv(100) == b"during"
            node.start_until_ready()
            time.sleep(SOON)
            far.sendall(b"after")
            assert near.recv(100) == b"after"


def test_a_pod_deleted_while_the_agent_is_away_is_gone_once_it_is_back(
    node: LabNode, new_pod: NewPod
) -> None:
    pod = new_pod()
    node.kill_agent()
    try:
        node.runtime.delete(pod)
    finally:
        node.start_until_ready()
    assert pod.pod.name not in [entry["pod"] for entry in node.ask("pods")["attachments"]]
