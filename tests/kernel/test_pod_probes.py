"""The pods of `netmgr connectivity-test`, in network namespaces: client against server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from netmgr.api import connectivity
from netmgr.api.connectivity import Probe, ProbeAnswer, ProbeTarget, ProbeTask, Result
from netmgr.kube.diagnose.connectivity import ICMPV6_BYTES, CountedBytes, expected
from netmgr.kube.diagnose.connectivity_run import counted
from netmgr.prefixes import Address, Family
from netmgr.preflight import pod_probes
from netmgr.preflight.pod_server import PORT
from tests.kernel import forging
from tests.kernel.fabric import NODE, PEER, Fabric, changed, filtering
from tests.kernel.greeting import GREETING, greeting
from tests.kernel.namespaces import host_link
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root


@contextmanager
def server(namespace: Path) -> Iterator[None]:
    """The server, in a namespace; clients try until it listens."""
    command = ["nsenter", f"--net={namespace}", sys.executable, "-m", "netmgr.preflight.pod_server"]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def ask(namespace: Path, task: ProbeTask) -> ProbeAnswer:
    with wiring.inside(namespace):
        return pod_probes.run(task)


def probes(*addresses: Address) -> tuple[Probe, ...]:
    return tuple(Probe(by=by, host=str(each)) for each in addresses for by in ("tcp", "udp"))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """One attempt is enough where what is broken stays so."""
    monkeypatch.setattr(connectivity, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(connectivity, "TRY_SECONDS", 1.0)


@pytest.mark.slow
def test_what_a_client_reports_is_what_its_node_counts_to_the_byte(
    world: World, new_pod: Callable[[str], Sandbox]
) -> None:
    client, near, far = new_pod("node-1"), new_pod("node-1"), new_pod("node-2")
    with ExitStack() as running:
        for each in (near, far):
            running.enter_context(server(each.netns))
        ports = [
            running.enter_context(greeting(world.internet, hangs_on=on)) for on in (False, True)
        ]
        targets = [ProbeTarget(str(each), port) for each in INTERNET.values() for port in ports]
        inside = (Probe(by="connect", host=str(far.addresses[0])),)
        probed = probes(*near.addresses, *far.addresses) + inside
        answer = ask(client.netns, ProbeTask(probes=probed, internet=tuple(targets)))
    assert [each.result for each in answer.probes] == [Result.OK] * 9
    own = {str(each) for each in client.addresses}
    assert {address for each in answer.probes[:8] for address in each.seen} == own
    assert [each.result for each in answer.internet] == [Result.OK] * 4
    phase = answer.to_internet
    assert phase.bytes_in > 4 * len(GREETING)
    bounds = expected(answer)
    messages = (phase.icmpv6_out, phase.icmpv6_in)
    assert [most - least for least, most in bounds] == [ICMPV6_BYTES * each for each in messages]

    def by_the_node() -> CountedBytes | None:
        return counted(world.node("node-1").scrape(), client.pod.namespace, client.pod.name)

    def has_counted_it() -> bool:
        found = by_the_node()
        assert found is not None
        return all(low <= each <= high for each, (low, high) in zip(found, bounds, strict=True))

    eventually(has_counted_it, lambda: f"counted {by_the_node()}, not {bounds} as of {phase}")
    for each in (near, far):
        page = world.node(each.pod.node).scrape()
        assert counted(page, each.pod.namespace, each.pod.name) == CountedBytes(0, 0)


def test_what_the_node_sends_to_groups_on_the_pods_link_is_no_traffic_of_the_pod(
    world: World, new_pod: Callable[[str], Sandbox]
) -> None:
    client, over = new_pod("node-1"), threading.Event()
    link, group = host_link(world.node("node-1"), client), Address.parse("ff02::16")
    unspecified, no_next_header = Address.parse("::"), 59
    packet = forging.ip(unspecified, group, no_next_header, bytes(8), hops=1)
    report = b"\x33\x33" + group.packed[-4:] + packet[6:]  # to the group's hardware address
    with wiring.inside(world.namespace("node-1")):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)

    def send() -> None:
        while not over.wait(0.05):
            sender.sendto(report, (link, 0))

    with sender, greeting(world.internet) as port:
        sending = threading.Thread(target=send)
        sending.start()
        try:
            server = ProbeTarget(str(INTERNET[Family.V4]), port)
            answer = ask(client.netns, ProbeTask(probes=(), internet=(server,)))
        finally:
            over.set()
            sending.join()
    _, (least, most) = expected(answer)

    def has_counted_the_greeting_alone() -> bool:
        page = world.node("node-1").scrape()
        by_the_node = counted(page, client.pod.namespace, client.pod.name)
        assert by_the_node is not None
        return least <= by_the_node.bytes_in <= most

    eventually(has_counted_the_greeting_alone)


@pytest.mark.usefixtures("hasty")
def test_packets_that_are_too_large_for_a_path_are_distinguished_from_no_path(
    fabric: Fabric,
) -> None:
    narrow, wide = (f"ip link set {PEER.host} mtu {mtu}" for mtu in (1400, 1500))
    silent = ("icmp type destination-unreachable drop", "icmpv6 type packet-too-big drop")
    client, task = fabric.directory / NODE.host, ProbeTask(probes=probes(*PEER.addresses))

    def all_are(result: Result) -> bool:
        # Asked again: a server on a busy machine may not answer within a second.
        return {each.result for each in ask(client, task).probes} == {result}

    with server(fabric.directory / PEER.host):
        eventually(lambda: all_are(Result.OK))
        with (
            filtering(fabric, "fabric", "output", *silent),
            changed(fabric, "fabric", narrow, wide),
        ):
            eventually(lambda: all_are(Result.STALLED))
        with filtering(fabric, "fabric", "forward", "drop"):
            assert all_are(Result.NO_ANSWER)
    found = ask(client, task)
    assert [each.result for each in found.probes][::2] == [Result.REFUSED] * 2


@pytest.mark.usefixtures("hasty")
def test_a_refusal_is_an_answer_of_what_should_give_none_and_of_a_pod_that_is_reached(
    fabric: Fabric,
) -> None:
    host = str(PEER.address(Family.V4))
    inside = tuple(Probe(by=by, host=host, port=9) for by in ("connect", "reach"))
    task = ProbeTask(probes=inside, unreachable=(ProbeTarget(host, 9),))
    client = fabric.directory / NODE.host
    found = ask(client, task)
    assert [each.result for each in found.unreachable] == [Result.OK]
    assert [each.result for each in found.probes] == [Result.REFUSED, Result.OK]
    with filtering(fabric, "fabric", "forward", "drop"):
        found = ask(client, task)
        ends = [each.result for each in (*found.unreachable, *found.probes)]
        assert ends == [Result.NO_ANSWER] * 3


def test_an_answer_by_udp_is_never_longer_than_its_request(fabric: Fabric) -> None:
    with server(fabric.directory / PEER.host):
        task = ProbeTask(probes=probes(PEER.address(Family.V4)))
        answer = ask(fabric.directory / NODE.host, task)
        assert [each.result for each in answer.probes] == [Result.OK] * 2
        own = open_socket(fabric.directory / NODE.host, Family.V4, socket.SOCK_DGRAM)
        with own:
            own.settimeout(PATIENCE)
            own.connect((str(PEER.address(Family.V4)), PORT))
            for length in (1, 5, 64, 1400):
                own.send(bytes(length))
                assert len(own.recv(1 << 16)) == length
