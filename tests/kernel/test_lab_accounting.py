"""Byte-exact: what pods exchange with the internet is counted, all of it and nothing else, whatever
happens.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from netmgr.model import Traffic
from netmgr.prefixes import Address, Family
from tests.lab.capture import Tally
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagram_bytes, datagrams, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]
OUT, IN = Traffic.INTERNET_OUT, Traffic.INTERNET_IN
NOTHING = {OUT: Tally(), IN: Tally()}
SIZES = [0, 1, 7, 512, 1200, 1452]
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])


def end_of(pod: Sandbox, family: Family) -> End:
    return End(pod.netns, pod.address(family))


def internet(world: World, family: Family) -> End:
    return End(world.internet, INTERNET[family])


def counted(node: LabNode, pod: Sandbox) -> dict[Traffic, Tally]:
    """What the agent's ledger tells of one pod."""
    return NOTHING | {
        Traffic(entry["traffic"]): Tally(entry["bytes"], entry["packets"])
        for entry in node.snapshot()["pods"]
        if entry["pod"] == pod.pod.name
    }


def node_total(node: LabNode) -> dict[Traffic, Tally]:
    return {
        Traffic(entry["traffic"]): Tally(entry["bytes"], entry["packets"])
        for entry in node.snapshot()["node_totals"]
    }


def settled(
    look: Callable[[], dict[Traffic, Tally]], expected: dict[Traffic, Tally]
) -> dict[Traffic, Tally]:
    """Look until it is as expected, for at most 3 s: readings are a moment apart."""
    deadline = time.monotonic() + 3
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def still(look: Callable[[], dict[Traffic, Tally]]) -> dict[Traffic, Tally]:
    """Look after two readings have surely passed: for what must not change."""
    time.sleep(0.3)
    return look()


def converse(world: World, pod: Sandbox, family: Family, rounds: int = 1) -> dict[Traffic, Tally]:
    """Datagrams of every size to the internet and back, sizes differing by direction; returns what
    was sent.
    """
    heard = datagrams(
        end_of(pod, family),
        internet(world, family),
        SIZES * rounds,
        (SIZES[1:] + SIZES[-1:]) * rounds,
    )
    return {OUT: heard.forth, IN: heard.back}


def total(*sent: dict[Traffic, Tally]) -> dict[Traffic, Tally]:
    return {traffic: sum((each[traffic] for each in sent), Tally()) for traffic in Traffic}


@FAMILIES
def test_udp_is_counted_to_the_byte_for_each_pod_and_direction(
    world: World, new_pod: NewPod, family: Family
) -> None:
    pods = [new_pod("node-1"), new_pod("node-1"), new_pod("node-2")]
    sent = [converse(world, pod, family, rounds) for rounds, pod in enumerate(pods, start=1)]
    assert (
        sent[0][OUT].bytes
        == sum(datagram_bytes(family, size) for size in SIZES)
        != sent[0][IN].bytes
    )
    for pod, expected in zip(pods, sent, strict=True):
        node = world.node(pod.pod.node)
        assert settled(lambda: counted(node, pod), expected) == expected  # noqa: B023 (called at once)


@FAMILIES
def test_what_comes_from_the_internet_unasked_for_is_counted(
    world: World, new_pod: NewPod, family: Family
) -> None:
    """A datagram more than the pod answered: incoming traffic is not derived from outgoing."""
    pod, node = new_pod(), world.node("node-1")
    with (
        open_socket(world.internet, family, socket.SOCK_DGRAM) as far,
        open_socket(pod.netns, family, socket.SOCK_DGRAM) as near,
    ):
        far.bind((str(INTERNET[family]), 0))
        near.connect((str(INTERNET[family]), far.getsockname()[1]))
        near.send(b"hello")
        _, peer = far.recvfrom(100)
        for _ in range(3):
            far.sendto(b"x" * 1000, peer)
            near.recv(2000)
    expected = {
        OUT: Tally(datagram_bytes(family, 5), 1),
        IN: Tally(3 * datagram_bytes(family, 1000), 3),
    }
    assert settled(lambda: counted(node, pod), expected) == expected


@FAMILIES
@pytest.mark.parametrize("peer", ["same node", "other node", "own node", "other node itself"])
def test_internal_traffic_counts_zero(
    world: World, new_pod: NewPod, family: Family, peer: str
) -> None:
    pod, node = new_pod("node-1"), world.node("node-1")
    if peer in {"same node", "other node"}:
        far = end_of(new_pod("node-1" if peer == "same node" else "node-2"), family)
    else:
        other = world.node("node-1" if peer == "own node" else "node-2")
        far = End(other.namespace, other.node.address(family))
    before = node_total(node)
    datagrams(end_of(pod, family), far, SIZES, SIZES)
    stream(end_of(pod, family), far, 10_000, 20_000)
    assert still(lambda: counted(node, pod)) == NOTHING
    assert node_total(node) == before


@FAMILIES
@pytest.mark.parametrize("where", ["pod", "pod's own address", "node"])
def test_loopback_counts_zero(world: World, new_pod: NewPod, family: Family, where: str) -> None:
    pod, node = new_pod(), world.node("node-1")
    loopback = Address.parse("127.0.0.1" if family is Family.V4 else "::1")
    namespace = node.namespace if where == "node" else pod.netns
    end = End(namespace, pod.address(family) if where == "pod's own address" else loopback)
    before = node_total(node)
    datagrams(end, end, SIZES, SIZES)
    assert still(lambda: counted(node, pod)) == NOTHING
    assert node_total(node) == before


@FAMILIES
def test_the_nodes_own_internet_traffic_counts_for_the_node_and_no_pod(
    world: World, new_pod: NewPod, family: Family
) -> None:
    pod, node = new_pod(), world.node("node-1")
    before = still(lambda: node_total(node))
    heard = datagrams(
        End(node.namespace, node.node.address(family)), internet(world, family), SIZES, SIZES[::-1]
    )
    expected = total(before, {OUT: heard.forth, IN: heard.back})
    assert settled(lambda: node_total(node), expected) == expected
    assert counted(node, pod) == NOTHING


@FAMILIES
def test_a_pod_deleted_right_after_sending_loses_nothing(
    world: World, new_pod: NewPod, family: Family
) -> None:
    node = world.node("node-1")
    for _ in range(3):
        pod = new_pod()
        expected = converse(world, pod, family)
        node.runtime.delete(pod)
        assert settled(lambda: counted(node, pod), expected) == expected  # noqa: B023 (called at once)


def test_a_namespaces_total_keeps_what_its_deleted_pods_sent(world: World) -> None:
    node = world.node("node-2")
    namespace = f"team-{time.monotonic_ns()}"

    def namespace_total() -> dict[Traffic, Tally]:
        return {
            Traffic(entry["traffic"]): Tally(entry["bytes"], entry["packets"])
            for entry in node.snapshot()["namespaces"]
            if entry["namespace"] == namespace
        }

    sent = []
    for number in range(2):
        pod = node.add(f"{namespace}-{number}", namespace)
        sent.append(converse(world, pod, Family.V4))
        node.runtime.delete(pod)
    expected = total(*sent)
    assert settled(namespace_total, expected) == expected


@pytest.mark.parametrize("restart_at", ["in the middle", "at the end"])
def test_an_agent_killed_in_mid_traffic_loses_nothing(
    world: World, new_pod: NewPod, restart_at: str
) -> None:
    pod, node = new_pod(), world.node("node-1")
    before_node = still(lambda: node_total(node))
    sent: list[dict[Traffic, Tally]] = []
    failures: list[LabError] = []
    ending = threading.Event()

    def talk() -> None:
        try:
            while not ending.is_set():
                sent.extend(converse(world, pod, family) for family in Family)
        except LabError as error:
            failures.append(error)

    talker = threading.Thread(target=talk)
    talker.start()
    try:
        time.sleep(0.3)
        node.kill_agent()
        at_kill = len(sent)
        time.sleep(0.3)
        if restart_at == "in the middle":
            restart(node)
        time.sleep(0.3)
    finally:
        ending.set()
        talker.join()
    assert not failures
    assert 0 < at_kill < len(sent)
    if restart_at == "at the end":
        restart(node)
    expected = total(*sent)
    assert settled(lambda: counted(node, pod), expected) == expected
    assert node_total(node) == total(before_node, expected)
    assert sum(gap["count"] for gap in node.snapshot()["gaps"]) == 0


def restart(node: LabNode) -> None:
    node.start_agent()
    node.wait_until_ready()
