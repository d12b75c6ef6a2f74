"""Limits of connections, with TCP and UDP through the kernel's connection tracking."""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address

import pytest

from netmgr.prefixes import Family
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.limited import NewPod, pods_of, repaired, shown, without_limits
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

# Limits are nftables' whatever counts.
pytestmark = [pytest.mark.root, ONLY_NFTABLES]

AT_ONCE, RATE, SHARED = 20, 50, 30
LIMITS = [
    {"pods": "*/held-*", "connections": {"at-once": AT_ONCE, "new-per-second": 1000}},
    {"pods": "*/slow-*", "connections": {"at-once": 10_000, "new-per-second": RATE}},
    {"namespaces": "shared", "connections": {"at-once": SHARED, "new-per-second": 1000}},
]
WORLD = {"settings": {"limits": LIMITS, "reconcile_seconds": 1}}
ARRIVED_SECONDS = 0.9
"""What has not arrived by then was dropped; a second later TCP would repeat it."""
TABLE = "inet netmgr_limits"
KINDS = [socket.SOCK_STREAM, socket.SOCK_DGRAM]


@pytest.fixture
def new_pod(node: LabNode) -> Iterator[NewPod]:
    with pods_of(node) as add:
        yield add


class Client:
    """Connections from a pod to one listener on the internet."""

    def __init__(
        self, world: World, pod: Sandbox, kind: socket.SocketKind, family: Family, stack: ExitStack
    ) -> None:
        self._pod, self._kind, self._family, self._stack = pod, kind, family, stack
        self.far = stack.enter_context(open_socket(world.internet, family, kind))
        self.toward = str(INTERNET[family])
        self.far.bind((self.toward, 0))
        self.far.settimeout(ARRIVED_SECONDS)
        if kind is socket.SOCK_STREAM:
            self.far.listen(10_000)
        self.made: list[socket.socket] = []
        self._answering: list[socket.socket] = []
        """The far end of each."""

    def begin(self, many: int) -> int:
        """Begin so many connections without a repetition; how many of them arrived."""
        before = len(self.made)
        for _ in range(many):
            near = self._stack.enter_context(open_socket(self._pod.netns, self._family, self._kind))
            near.settimeout(0)
            with suppress(BlockingIOError):
                near.connect((self.toward, self.far.getsockname()[1]))
            if self._kind is socket.SOCK_DGRAM:
                near.send(b"?")
            if self._arrives():
                self.made.append(near)
            else:
                near.close()
        return len(self.made) - before

    def begin_at_once(self, many: int) -> tuple[int, float]:
        """Send so many first datagrams in a row; how many arrived, and how long sending took."""
        for _ in range(many):
            near = self._stack.enter_context(open_socket(self._pod.netns, self._family, self._kind))
            near.connect((self.toward, self.far.getsockname()[1]))
            self.made.append(near)
        began = time.monotonic()
        for near in self.made:
            near.send(b"?")
        lasted = time.monotonic() - began
        arrived = 0
        while self._arrives():
            arrived += 1
        return arrived, lasted

    def go_on(self) -> int:
        """Send a byte over each connection and have it answered; how many answers arrive."""
        found = 0
        for near, far in zip(self.made, self._answering, strict=True):
            near.settimeout(PATIENCE)
            near.send(b"!")
            if self._kind is socket.SOCK_STREAM:
                far.send(far.recv(1))
            else:
                far.sendto(*far.recvfrom(1))
            found += near.recv(1) == b"!"
        return found

    def _arrives(self) -> bool:
        try:
            if self._kind is socket.SOCK_STREAM:
                self._answering.append(self._stack.enter_context(self.far.accept()[0]))
            else:
                self.far.recv(1)
                self._answering.append(self.far)
        except TimeoutError:
            return False
        return True


@contextmanager
def client(
    world: World,
    pod: Sandbox,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    family: Family = Family.V4,
) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(world, pod, kind, family, stack)


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_has_as_many_connections_as_its_limit_and_not_one_more(
    world: World, node: LabNode, new_pod: NewPod, kind: socket.SocketKind, family: Family
) -> None:
    pod, other = new_pod("held"), new_pod("free")
    with client(world, pod, kind, family) as held, client(world, other, kind, family) as free:
        assert held.begin(AT_ONCE + 3) == AT_ONCE
        assert free.begin(AT_ONCE + 3) == AT_ONCE + 3
        # Those that are there go on; and what was dropped is in connection tracking nowhere.
        assert held.go_on() == AT_ONCE
        source = f" src={ip_address(str(pod.address(family))).exploded} "
        entries = shown(node, "cat", "/proc/net/nf_conntrack").splitlines()
        assert sum(source in entry for entry in entries) == AT_ONCE


def test_what_was_dropped_is_shown(world: World, node: LabNode, new_pod: NewPod) -> None:
    pod = new_pod("held")
    with client(world, pod, socket.SOCK_DGRAM) as held:
        assert held.begin(AT_ONCE + 3) == AT_ONCE
    shown_limits = node.snapshot()["connection_limits"]
    assert {"namespace": pod.pod.namespace, "pod": pod.pod.name, "dropped": 3} in shown_limits


def test_the_pods_with_the_most_connections_are_shown(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    one, other = new_pod("free"), new_pod("free")
    with client(world, one) as busy, client(world, other, family=Family.V6) as quiet:
        assert busy.begin(12) == 12
        assert quiet.begin(3) == 3

        def shown_of(pod: Sandbox) -> str:
            labels = f'namespace="{pod.pod.namespace}",pod="{pod.pod.name}"'
            lines = node.scrape().splitlines()
            start = f"netmgr_pod_connections{{{labels}}} "
            return next((each for each in lines if each.startswith(start)), "none").split()[-1]

        eventually(lambda: shown_of(one) == "12.0", "the busy pod's connections")
        assert shown_of(other) == "3.0"
        found = node.snapshot()["tracking"]
        assert found["pods"][0]["pod"] == one.pod.name
        assert 15 <= found["connections"] < found["most"]


def test_a_connection_that_ends_makes_room(world: World, new_pod: NewPod) -> None:
    with client(world, new_pod("held")) as held:
        assert held.begin(AT_ONCE + 1) == AT_ONCE
        for one in held.made[:5]:
            # Reset, so that it has ended on both sides.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        assert held.begin(7) == 5


def test_only_so_many_connections_begin_in_a_second(world: World, new_pod: NewPod) -> None:
    with client(world, new_pod("slow"), socket.SOCK_DGRAM) as slow:
        arrived, lasted = slow.begin_at_once(3 * RATE)
        assert RATE - 3 <= arrived <= RATE * (1 + lasted) + 3


def test_unanswered_packets_of_one_connection_are_one(world: World, new_pod: NewPod) -> None:
    with client(world, new_pod("slow"), socket.SOCK_DGRAM) as slow:
        assert slow.begin(1) == 1
        slow.far.settimeout(PATIENCE)
        for _ in range(3 * RATE):
            slow.made[0].send(b"?")
            slow.far.recv(1)


SEEN = "203.0.113.77"
BY_IPTABLES = f"PREROUTING -d {SEEN} -j DNAT --to-destination {INTERNET[Family.V4]}"
TRANSLATING = {
    "nft": (
        "nft add table ip other",
        # Long before its usual priority: once translated, the kernel asks no later chain.
        "nft add chain ip other translating { type nat hook prerouting priority -190; }",
        f"nft add rule ip other translating ip daddr {SEEN} dnat to {INTERNET[Family.V4]}",
        "nft delete table ip other",
    ),
    "iptables-legacy": (
        f"iptables-legacy -t nat -I {BY_IPTABLES}",
        f"iptables-legacy -t nat -D {BY_IPTABLES}",
    ),
}


@pytest.mark.parametrize("program", TRANSLATING)
def test_translation_by_another_program_lets_no_connection_past_a_limit(
    world: World, node: LabNode, new_pod: NewPod, program: str
) -> None:
    *add, remove = TRANSLATING[program]
    for command in add:
        shown(node, *command.split())
    try:
        with client(world, new_pod("held")) as held:
            held.toward = SEEN
            assert held.begin(AT_ONCE + 2) == AT_ONCE
            assert held.go_on() == AT_ONCE
    finally:
        shown(node, *remove.split())


def test_pods_of_a_namespace_share(world: World, new_pod: NewPod) -> None:
    one, other = new_pod("a", "shared"), new_pod("held", "shared")
    with client(world, one) as first, client(world, other) as second:
        assert first.begin(15) == 15
        assert second.begin(SHARED - 15 + 3) == SHARED - 15
        assert first.begin(1) == 0


def test_limits_and_counts_stay_while_no_agent_runs_and_after(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    with client(world, new_pod("held")) as held:
        assert held.begin(AT_ONCE - 1) == AT_ONCE - 1
        node.kill_agent()
        assert held.begin(2) == 1
        node.start_until_ready()
        new_pod("held")
        assert held.begin(1) == 0
        assert held.go_on() == AT_ONCE
    assert repaired(node, "connection-limits") == 0


@pytest.mark.parametrize(
    "harm",
    [
        f"flush table {TABLE}",
        f"delete table {TABLE}",
        f"add table {TABLE} {{ flags dormant; }}",
        f"chain {TABLE} beginning {{ policy drop; }}",
    ],
)
def test_what_another_program_changed_is_put_back_and_told(
    world: World, node: LabNode, new_pod: NewPod, harm: str
) -> None:
    pod = new_pod("held")
    before = repaired(node, "connection-limits")
    shown(node, "nft", harm)
    eventually(lambda: repaired(node, "connection-limits") > before, "not repaired")
    with client(world, pod) as held:
        assert held.begin(AT_ONCE + 1) == AT_ONCE


def test_a_new_pod_of_the_same_name_does_not_inherit_connections(
    world: World, node: LabNode
) -> None:
    for _ in range(2):
        pod = node.add("held-again")
        with client(world, pod, socket.SOCK_DGRAM) as held:
            assert held.begin(AT_ONCE + 1) == AT_ONCE
        node.runtime.delete(pod)


def test_the_table_is_there_only_with_a_limited_pod(node: LabNode, new_pod: NewPod) -> None:
    new_pod("free")
    eventually(lambda: TABLE not in shown(node, "nft", "list", "tables"), "left")
    before = repaired(node, "connection-limits")
    new_pod("held")
    assert TABLE in shown(node, "nft", "list", "tables")
    assert len(re.findall("ct count over", shown(node, "nft", "list", "ruleset"))) == 1
    assert repaired(node, "connection-limits") == before


@pytest.mark.slow
def test_limits_that_the_document_no_longer_has_go_with_the_next_start(world: World) -> None:
    node = world.nodes[1]
    with pods_of(node) as add:
        pod = add("held")
        assert TABLE in shown(node, "nft", "list", "tables")
        with without_limits(node), client(world, pod) as free:
            assert TABLE not in shown(node, "nft", "list", "tables")
            assert free.begin(AT_ONCE + 5) == AT_ONCE + 5
