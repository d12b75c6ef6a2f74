"""What netmgr promises, while established internal connections skip the rules.

`test_flowtable.py` runs these on a kernel that has flowtables, if need be in a virtual machine.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count

import pytest
import yaml

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.spending import IN, OUT, gaps, run
from tests.lab.errors import LabError
from tests.lab.exchange import End, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

NewPod = Callable[[LabNode], Sandbox]
MANY, AT_ONCE = 50, 4
WATCH = """
table inet watch {
    counter met { }
    chain forward {
        type filter hook forward priority 300;
        meta l4proto { tcp, udp } counter name met
    }
}
"""
_numbers = count(1)


@pytest.fixture(scope="module", params=[Backend.NFTABLES, Backend.LINKS], ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    keys = {"settings": {"accounting": {"min_reading_seconds": 0}}, "exporters": False}
    room = replace(cluster(pods=20), pods=())
    name = f"flow-{os.getpid()}-{request.param}"
    with World(room, name=name, backend=request.param, **keys) as made:
        for node in made.nodes:
            nft(node, WATCH)
        yield made


@pytest.fixture
def node(world: World) -> LabNode:
    return world.nodes[0]


@pytest.fixture
def new_pod() -> Iterator[NewPod]:
    """Runs a pod whose link is in the flowtable when it is returned."""
    made: list[tuple[LabNode, Sandbox]] = []

    def add(node: LabNode) -> Sandbox:
        made.append((node, node.add(f"pod-{next(_numbers)}")))
        wait_for_links(node)
        return made[-1][1]

    yield add
    for node, sandbox in made:
        node.runtime.delete(sandbox)


def nft(node: LabNode, text: str) -> None:
    done = run(node, "nft", text)
    assert done.returncode == 0, done.stderr


def devices(node: LabNode) -> set[str]:
    """The flowtable's, as nft lists them."""
    listed = json.loads(run(node, "nft", "-j", "list", "flowtables").stdout)["nftables"]
    names: set[str] = set()
    for item in listed:
        shown = item.get("flowtable", {})
        if shown.get("table") == "netmgr":
            there = shown.get("dev", [])
            names |= {there} if isinstance(there, str) else set(there)
    return names


def wait_for_links(node: LabNode) -> None:
    def exactly_these_are_in() -> bool:
        wanted = {row["host_link"] for row in node.ask("pods")["attachments"]} | {"eth0"}
        return devices(node) == wanted

    eventually(exactly_these_are_in, "the flowtable has other devices than the links there are")


def met_the_rules(node: LabNode) -> int:
    """TCP and UDP packets that passed the forward hook so far."""
    listed = run(node, "nft", "-j", "list", "counter", "inet", "watch", "met").stdout
    return next(
        item["counter"]["packets"] for item in json.loads(listed)["nftables"] if "counter" in item
    )


@dataclass
class Connection:
    """UDP between two sockets, which stay open."""

    near: socket.socket
    far: socket.socket
    exchanged: int = 0

    def exchange(self, many: int = MANY, size: int = 100) -> None:
        """Send so many datagrams there, each answered, in lockstep."""
        for number in range(many):
            there, back = (bytes([number % 256, way]) * (size // 2) for way in range(2))
            self.near.send(there)
            got, peer = self.far.recvfrom(size)
            assert got == there
            self.far.sendto(back, peer)
            assert self.near.recv(size) == back
            self.exchanged += 1


def connection(
    client: Sandbox, server: Sandbox, family: Family = Family.V4, port: int = 0
) -> AbstractContextManager[Connection]:
    return connected(client, server.end(family), port)


@contextmanager
def connected(client: Sandbox, server: End, port: int = 0) -> Iterator[Connection]:
    family = server.address.family
    with (
        open_socket(client.netns, family, socket.SOCK_DGRAM) as near,
        open_socket(server.namespace, family, socket.SOCK_DGRAM) as far,
    ):
        for end in (near, far):
            end.settimeout(PATIENCE)
        far.bind((str(server.address), port))
        near.connect(far.getsockname()[:2])
        yield Connection(near, far)


def is_offloaded(node: LabNode, between: Connection) -> bool:
    """Whether what the two exchange now meets no rule of the node."""
    before = met_the_rules(node)
    between.exchange(5)
    return met_the_rules(node) == before


@pytest.mark.parametrize("family", Family)
def test_what_pods_exchange_meets_no_rule_once_it_was_answered(
    world: World, new_pod: NewPod, family: Family
) -> None:
    first, second = world.nodes
    client, beside, server = new_pod(first), new_pod(first), new_pod(second)
    for peer in (beside, server):
        with connection(client, peer, family) as between:
            before = met_the_rules(first)
            between.exchange()
            # The request, its answer, and at most what follows until both sides know each other.
            assert met_the_rules(first) - before <= 4
    before = met_the_rules(first), met_the_rules(second)
    size = 20_000_000
    stream(
        End(client.netns, client.address(family)),
        End(server.netns, server.address(family)),
        size,
        size,
    )
    # The end of a connection meets the rules again, as its beginning did.
    for node, earlier in zip(world.nodes, before, strict=True):
        assert met_the_rules(node) - earlier < 60


@pytest.mark.parametrize("family", Family)
def test_the_internet_is_counted_to_the_byte(
    world: World, node: LabNode, new_pod: NewPod, family: Family
) -> None:
    pod, neighbour = new_pod(node), new_pod(node)
    many, size = 200, 500
    header = (20 if family is Family.V4 else 40) + 8
    with (
        connection(pod, neighbour, family) as inside,
        connected(pod, world.outside(family)) as between,
    ):
        inside.exchange()
        before = met_the_rules(node)
        between.exchange(many, size)
        met = met_the_rules(node) - before
    at_links = node.snapshot()["backend"] == Backend.LINKS
    assert met <= 4 if at_links else met == 2 * many
    shown = {
        (row["pod"], row["traffic"]): (row["bytes"], row["packets"])
        for row in node.snapshot()["pods"]
    }
    for traffic in (IN, OUT):
        assert shown[pod.pod.name, traffic] == (many * (header + size), many)
        assert shown.get((neighbour.pod.name, traffic), (0, 0)) == (0, 0)


def test_another_pod_cannot_send_in_an_offloaded_connection(node: LabNode, new_pod: NewPod) -> None:
    client, server, forger = new_pod(node), new_pod(node), new_pod(node)
    with connection(client, server) as between:
        between.exchange()
        assert is_offloaded(node, between)
        source, destination = between.near.getsockname(), between.far.getsockname()
        before = dropped(node, "spoofed")
        forged = forging.udp(
            Address.parse(source[0]),
            Address.parse(destination[0]),
            (source[1], destination[1]),
            b"forged",
        )
        forging.send(forger, [forged] * MANY, forging.Power.ALL)
        between.far.settimeout(0.3)
        with pytest.raises(TimeoutError):
            between.far.recv(100)
        # Drops are read the more rarely the longer that takes.
        eventually(lambda: dropped(node, "spoofed") - before == MANY)


def dropped(node: LabNode, reason: str) -> int:
    return sum(row["packets"] for row in node.snapshot()["drops"] if row["reason"] == reason)


def restart(node: LabNode, **keys: object) -> None:
    """Start the agent anew with other keys in node.yaml; None takes one out."""
    node.stop_agent()
    document = yaml.safe_load(node.document.read_text()) | keys
    kept = {key: value for key, value in document.items() if value is not None}
    node.document.write_text(yaml.safe_dump(kept))
    node.start_until_ready()


def test_a_rule_that_comes_later_is_for_connections_that_were_there(
    node: LabNode, new_pod: NewPod, world: World
) -> None:
    client, server = new_pod(node), new_pod(world.nodes[1])
    with connection(client, server) as between:
        between.exchange()
        assert is_offloaded(node, between)
        restart(node, protect=[str(server.address(Family.V4))])
        try:
            between.near.send(b"too late")
            between.far.settimeout(0.5)
            with pytest.raises(TimeoutError):
                between.far.recv(100)
        finally:
            restart(node, protect=None)
        between.far.settimeout(PATIENCE)
        between.exchange()
        wait_for_links(node)
        eventually(lambda: is_offloaded(node, between), "it was not handed over again")


@pytest.mark.parametrize("family", Family)
def test_internal_machines_that_see_the_node_are_reached_past_the_rules_too(
    node: LabNode, new_pod: NewPod, world: World, family: Family
) -> None:
    client, server = new_pod(node), new_pod(world.nodes[1])
    restart(node, native=[])
    try:
        wait_for_links(node)
        near, far = (End(each.netns, each.address(family)) for each in (client, server))
        assert stream(near, far, 3_000_000, 3_000_000).peer == node.node.address(family)
        with connection(client, server, family) as between:
            between.exchange()
            assert is_offloaded(node, between)
    finally:
        restart(node, native=None)


def test_what_is_no_longer_internal_is_counted_in_connections_that_were_there(
    node: LabNode, new_pod: NewPod, world: World
) -> None:
    client, server = new_pod(node), new_pod(world.nodes[1])
    with connection(client, server) as between:
        between.exchange()
        assert is_offloaded(node, between)
        # Without 100.64.0.0/10 and the like; what is left is the pods' own ranges.
        restart(node, internal=["192.168.0.0/16"], masquerade=False)
        try:
            between.exchange(MANY, 100)
            shown = {
                row["traffic"]: row["bytes"]
                for row in node.snapshot()["pods"]
                if row["pod"] == client.pod.name
            }
        finally:
            restart(node, internal=None, masquerade=None)
    assert shown == {OUT: MANY * 128, IN: MANY * 128}


def test_a_pod_that_goes_takes_its_connections_along(
    node: LabNode, new_pod: NewPod, world: World
) -> None:
    client = new_pod(world.nodes[1])
    server = node.add("leaving")
    wait_for_links(node)
    there = devices(node)
    with connection(client, server, port=4000) as between:
        between.exchange()
        assert is_offloaded(node, between)
        node.runtime.delete(server)
        eventually(lambda: devices(node) < there, "the link is still in the flowtable")
        before = met_the_rules(node)
        between.near.send(b"to whom")
        time.sleep(0.2)
        # No entry is left: a packet takes the way that every new one takes.
        assert not offloaded_entries(node, str(server.address(Family.V4)))
        assert met_the_rules(node) >= before
    # Whoever has the address next is reached by the link that it has.
    heir = pod_with_address_of(server, node)
    try:
        wait_for_links(node)
        with connection(client, heir, port=4000) as between:
            between.exchange()
            assert is_offloaded(node, between)
    finally:
        node.runtime.delete(heir)


def pod_with_address_of(former: Sandbox, node: LabNode) -> Sandbox:
    """A pod that asks for the address that another one had, as soon as it is free again."""
    (path,) = node.runtime.conf_dir.glob("*.conflist")
    before = path.read_text()
    network = json.loads(before)
    network["plugins"][0]["args"] = {"cni": {"ips": [str(former.address(Family.V4))]}}
    path.write_text(json.dumps(network))
    deadline = time.monotonic() + 2 * PATIENCE
    try:
        while True:
            try:
                return node.add("heir")
            except LabError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
    finally:
        path.write_text(before)


def offloaded_entries(node: LabNode, address: str) -> list[str]:
    listed = run(node, "cat", "/proc/net/nf_conntrack").stdout.splitlines()
    return [line for line in listed if address in line and "OFFLOAD" in line]


def test_a_service_that_another_program_translates_goes_on(
    node: LabNode, new_pod: NewPod, world: World
) -> None:
    client, server = new_pod(node), new_pod(world.nodes[1])
    with open_socket(server.netns, Family.V4, socket.SOCK_STREAM) as listening:
        listening.bind((str(server.address(Family.V4)), 0))
        listening.listen()
        port = listening.getsockname()[1]
        # As kube-proxy does it, with its drop of what connection tracking finds invalid.
        nft(
            node,
            f"""
            table inet proxy {{
                chain prerouting {{
                    type nat hook prerouting priority -100;
                    ip daddr 10.96.0.10 tcp dport 80 dnat ip to {server.address(Family.V4)}:{port}
                }}
                chain forward {{
                    type filter hook forward priority 0;
                    ct state invalid drop
                }}
            }}
            """,
        )
        try:
            with open_socket(client.netns, Family.V4, socket.SOCK_STREAM) as near:
                near.connect(("10.96.0.10", 80))
                far, _ = listening.accept()
                with far:
                    exchange_stream(near, far, 64)
                    before = met_the_rules(node)
                    exchange_stream(near, far, 2000)
                    assert met_the_rules(node) - before <= 4
        finally:
            nft(node, "delete table inet proxy")


def exchange_stream(near: socket.socket, far: socket.socket, many: int) -> None:
    for end in (near, far):
        end.settimeout(PATIENCE)
    for _ in range(many):
        near.sendall(b"x" * 1000)
        left = 1000
        while left:
            left -= len(far.recv(left))
        far.sendall(b"y")
        assert near.recv(1) == b"y"


def test_an_agent_that_is_killed_leaves_connections_offloaded(
    node: LabNode, new_pod: NewPod
) -> None:
    client, server = new_pod(node), new_pod(node)
    with connection(client, server) as between:
        between.exchange()
        there = devices(node)
        node.kill_agent()
        assert is_offloaded(node, between)
        node.start_until_ready()
        # Nothing changed for the rules, so nothing was made anew.
        assert is_offloaded(node, between)
        assert devices(node) == there


def test_another_program_that_removes_all_of_it_finds_it_repaired(
    node: LabNode, new_pod: NewPod
) -> None:
    client, server = new_pod(node), new_pod(node)
    with connection(client, server) as between:
        between.exchange()
        there = devices(node)
        nft(node, "delete table inet netmgr")
        eventually(lambda: devices(node) == there, "the flowtable was not repaired")
        eventually(lambda: is_offloaded(node, between), "it was not handed over again")
    reasons = gaps(node)
    assert reasons["removed"][0] >= 1


def test_another_programs_flowtable_is_reported(node: LabNode, new_pod: NewPod) -> None:
    new_pod(node)
    assert "ForeignFlowtable" not in node.problems()
    nft(
        node,
        """
        table ip theirs {
            flowtable quick {
                hook ingress priority 10
                devices = { eth0 }
            }
        }
        """,
    )
    try:
        eventually(lambda: "ForeignFlowtable" in node.problems(), "it was not noticed")
        assert "flowtable quick of table ip theirs" in node.problems()["ForeignFlowtable"]
    finally:
        nft(node, "delete table ip theirs")
    eventually(lambda: "ForeignFlowtable" not in node.problems(), "it was not noticed to be gone")


@pytest.fixture(params=[Backend.NFTABLES, Backend.LINKS], ids=str)
def limited(request: pytest.FixtureRequest) -> Iterator[World]:
    limits = [{"pods": "*/*", "connections": {"at-once": AT_ONCE, "new-per-second": 1000}}]
    room, name = replace(cluster(pods=4), pods=()), f"flow-limits-{os.getpid()}"
    keys = {"settings": {"limits": limits}, "exporters": False}
    with World(room, name=name, backend=request.param, **keys) as made:
        yield made


@pytest.mark.parametrize("family", Family)
def test_a_limit_of_connections_holds_and_those_that_are_there_skip_the_rules(
    limited: World, family: Family
) -> None:
    node = limited.nodes[0]
    nft(node, WATCH)
    client, server = node.add("client"), limited.nodes[1].add("server").end(family)
    if node.snapshot()["backend"] == Backend.LINKS:
        server = limited.outside(family)
    wait_for_links(node)
    with ExitStack() as stack:
        held = [stack.enter_context(connected(client, server)) for _ in range(AT_ONCE + 1)]
        *allowed, refused = held
        for between in allowed:
            between.exchange()
        before = met_the_rules(node)
        refused.near.send(b"?")
        refused.far.settimeout(0.5)
        with pytest.raises(TimeoutError):
            refused.far.recv(1)
        for between in allowed:
            between.exchange()
        assert met_the_rules(node) == before
