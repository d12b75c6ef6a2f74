"""What pods can and cannot do on the network: who others see them as, whom they cannot pretend to
be.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.prefixes import Address, Family
from tests.lab import wiring
from tests.lab.exchange import End, datagrams, open_socket, stream
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
SOON = 0.3
"""Seconds in which a packet would long have arrived."""


def end_of(pod: Sandbox, family: Family) -> End:
    return End(pod.netns, pod.address(family))


def internet(world: World, family: Family) -> End:
    return End(world.internet, INTERNET[family])


@contextmanager
def listening(end: End) -> Iterator[socket.socket]:
    with open_socket(end.namespace, end.address.family, socket.SOCK_DGRAM) as opened:
        opened.bind((str(end.address), 0))
        opened.settimeout(SOON)
        yield opened


def send_from(pod: Sandbox, source: Address, listener: socket.socket) -> Address | None:
    """Send a datagram from `source` to the listener; who it arrived from, or None."""
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
        datagrams(end_of(new_pod(), family), internet(world, family), [100], [100])


@FAMILIES
@pytest.mark.parametrize(
    "target", ["internet", "pod on the same node", "pod on another node", "its node"]
)
def test_a_pod_sending_with_anothers_address_gets_nothing_through(
    world: World, new_pod: NewPod, family: Family, target: str
) -> None:
    pod, neighbour, stranger = new_pod("node-1"), new_pod("node-1"), new_pod("node-2")
    node = world.node("node-1")
    nobodys = Address.parse("10.200.0.1" if family is Family.V4 else "fd00:200::1")
    far = {
        "internet": internet(world, family),
        "pod on the same node": end_of(new_pod("node-1"), family),
        "pod on another node": end_of(new_pod("node-2"), family),
        "its node": End(node.namespace, node.node.address(family)),
    }[target]
    with listening(far) as listener:
        for stolen in (neighbour.address(family), stranger.address(family), nobodys):
            give(pod, stolen)
            assert send_from(pod, pod.address(family), listener) is not None
            assert send_from(pod, stolen, listener) is None
            assert send_from(pod, pod.address(family), listener) is not None


@FAMILIES
def test_the_internet_sees_the_nodes_address(world: World, new_pod: NewPod, family: Family) -> None:
    for name in ("node-1", "node-2"):
        pod = new_pod(name)
        with listening(internet(world, family)) as listener:
            assert send_from(pod, pod.address(family), listener) == world.node(name).node.address(
                family
            )


@FAMILIES
@pytest.mark.parametrize(
    "target", ["pod on the same node", "pod on another node", "its node", "another node"]
)
def test_inside_the_cluster_a_pod_is_seen_as_itself(
    world: World, new_pod: NewPod, family: Family, target: str
) -> None:
    pod = new_pod("node-1")
    home, away = world.node("node-1"), world.node("node-2")
    far = {
        "pod on the same node": lambda: end_of(new_pod("node-1"), family),
        "pod on another node": lambda: end_of(new_pod("node-2"), family),
        "its node": lambda: End(home.namespace, home.node.address(family)),
        "another node": lambda: End(away.namespace, away.node.address(family)),
    }[target]()
    with listening(far) as listener:
        assert send_from(pod, pod.address(family), listener) == pod.address(family)


@FAMILIES
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_pods_keep_working_while_the_agent_is_away_and_after_it_is_back(
    world: World, new_pod: NewPod, family: Family, how: str
) -> None:
    pods, node = [new_pod("node-1"), new_pod("node-2")], world.node("node-1")

    def everyone_is_reached() -> None:
        for far in (internet(world, family), end_of(pods[1], family)):
            datagrams(end_of(pods[0], family), far, [100, 1400], [1400, 100])
            stream(end_of(pods[0], family), far, 50_000, 50_000)

    everyone_is_reached()
    if how == "killed":
        node.kill_agent()
    else:
        node.stop_agent()
    try:
        assert node.agent_pid() is None
        everyone_is_reached()
    finally:
        node.start_agent()
        node.wait_until_ready()
    everyone_is_reached()
    node.runtime.check(pods[0])


def test_a_connection_outlives_the_agents_restart(world: World, new_pod: NewPod) -> None:
    pod, node = new_pod(), world.node("node-1")
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
            node.start_agent()
            node.wait_until_ready()
            time.sleep(SOON)
            far.sendall(b"after")
            assert near.recv(100) == b"after"


def test_a_pod_deleted_while_the_agent_is_away_is_gone_once_it_is_back(
    world: World, new_pod: NewPod
) -> None:
    pod, node = new_pod(), world.node("node-1")
    node.kill_agent()
    try:
        node.runtime.delete(pod)
    finally:
        node.start_agent()
        node.wait_until_ready()
    assert pod.pod.name not in [entry["pod"] for entry in node.ask("pods")["attachments"]]
