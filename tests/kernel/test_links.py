"""Counting at links: what is promised, and what other programs, pods and crashes do to it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from netmgr.documents.node import Backend
from netmgr.kernel import bpf, netlink, traffic_filters
from netmgr.kernel.links import read_carried
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.traffic_filters import FilterPlace
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.common import agent_standing_still, talk
from tests.kernel.forging import Power
from tests.kernel.namespaces import host_link, inside
from tests.kernel.spending import gaps
from tests.lab import wiring
from tests.lab.exchange import End, Frontend, datagrams, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import INTERFACE, Sandbox
from tests.lab.topology import BESIDE_INTERNET, INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

_numbers = itertools.count(1)
IN, OUT = "internet-in", "internet-out"
LIMITED = "limited"
SETTINGS = {
    "accounting": {"min_reading_seconds": 0, "reading_seconds": 60},
    "limits": [{"pods": f"{LIMITED}/*", IN: "1G", OUT: "1G"}],
    "reconcile_seconds": 0.5,
}
SERVICES = {"name": "services", "prefixes": ["10.96.0.0/12"]}
WORLD = {"nodes": 1, "settings": SETTINGS, "exporters": False}


@pytest.fixture(scope="module", params=[Backend.LINKS], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.param


def totals(node: LabNode, pod: Sandbox) -> dict[str, int]:
    rows = node.snapshot()["pods"]
    return {row["traffic"]: row["bytes"] for row in rows if row["pod"] == pod.pod.name}


def of_node(node: LabNode, row: str) -> dict[str, int]:
    return {one["traffic"]: one[row] for one in node.ask("audit")["forward"]}


def tc(node: LabNode, *words: str) -> str:
    return inside(node.namespace, "tc", *words)


def removals(node: LabNode) -> int:
    """How many gaps of the kind there were."""
    return gaps(node)["removed"][0]


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


def test_a_pods_packets_are_counted_to_the_byte_and_by_no_rule(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    before = of_node(node, "forwarded")
    known = gaps(node)
    sent = talk(world, pod, [1, 100, 1400])
    assert totals(node, pod) == {IN: sent, OUT: sent}
    after = of_node(node, "forwarded")
    assert {traffic: after[traffic] - before[traffic] for traffic in (IN, OUT)} == {
        IN: sent,
        OUT: sent,
    }
    ruleset = inside(node.namespace, "nft", "list", "table", "inet", "netmgr")
    for counting in ("pod_out4", "pods_out4", "forward_out4", "unattributed_out4"):
        assert counting not in ruleset
    assert gaps(node) == known


@pytest.mark.parametrize("family", Family)
def test_a_stream_each_way_is_what_the_pods_link_carried(
    world: World, node: LabNode, pod: Sandbox, family: Family
) -> None:
    size = 8_000_000
    stream(pod.end(family), world.outside(family), size, size)
    rows = node.ask("audit")["links"]
    for row in rows:
        if row["pods"] == [f"research/{pod.pod.name}"]:
            assert sum(row["counted"].values()) > size
            # Beside it, ARP and neighbour discovery alone.
            assert 0 <= row["rest"] < 600


@contextmanager
def table(node: LabNode, text: str) -> Iterator[None]:
    """Another program's rules."""
    inside(node.namespace, "nft", f"table ip others {{ {text}\n }}")
    try:
        yield
    finally:
        inside(node.namespace, "nft", "delete table ip others")


def test_what_is_dropped_later_is_not_counted(world: World, node: LabNode, pod: Sandbox) -> None:
    port = 4242
    dropping = f"udp dport {port} drop"
    chain = f"chain last {{ type filter hook postrouting priority 300; {dropping}\n }}"
    with table(node, chain), open_socket(pod.netns, Family.V4, socket.SOCK_DGRAM) as near:
        for _ in range(20):
            # Refused by its own node, as `sendto` may tell it.
            near.sendto(bytes(1000), (str(INTERNET[Family.V4]), port))
        assert sum(totals(node, pod).values()) == 0
    sent = talk(world, pod, [100])
    assert totals(node, pod) == {IN: sent, OUT: sent}


PORT = 4243
SERVICE, PUBLIC = Address.parse("10.96.7.7"), Address.parse("198.51.100.9")


def ask_translated(
    node: LabNode, client: End, server: End, asked: Address, source: Address | None = None
) -> None:
    """A datagram of 500 bytes to the address that is asked, for which the server answers with 1000.

    What comes for that address goes to the server's on the node, and perhaps from a `source`.
    """
    chain = "chain {} {{ type nat hook {} priority {}; {}\n }}\n"
    dnat = f"ip daddr {asked} udp dport {PORT} dnat to {server.address}"
    snat = f"ip daddr {server.address} udp dport {PORT} snat to {source}" if source else ""
    before, after = ("early", "prerouting", "dstnat", dnat), ("late", "postrouting", "90", snat)
    with table(node, chain.format(*before) + chain.format(*after)):
        datagrams(client, server, [472], [972], port=PORT, frontend=Frontend(asked, PORT))


def test_a_service_with_an_endpoint_in_the_internet_is_counted_as_the_internet(
    world: World, node: LabNode, served: Sandbox
) -> None:
    ask_translated(node, served.end(Family.V4), world.outside(Family.V4), SERVICE)
    assert totals(node, served) == {IN: 1000, OUT: 500}


@pytest.fixture
def classed(lab_name: str) -> Iterator[World]:
    """Where packets from Services wait in an IFB, too."""
    settings = {
        "accounting": {"min_reading_seconds": 0, "classes": [SERVICES]},
        "limits": [{"pods": "*/*", "classes": {"services-in": "1G"}}],
    }
    one = cluster(nodes=1, pods=2)
    with World(one, backend=Backend.LINKS, name=lab_name, settings=settings, exporters=False) as it:
        yield it


def test_what_waits_in_the_limit_of_a_class_is_counted_as_what_it_is(classed: World) -> None:
    """Of a Service, the source is the endpoint's class; of a neighbour, the neighbour's."""
    node, (pod, neighbour) = classed.node("node-1"), classed.pods()
    ask_translated(node, pod.end(Family.V4), classed.outside(Family.V4), SERVICE)
    with wiring.inside(node.namespace):
        assert read_carried()["netmgr-in"].sent_packets
    counted = {traffic: size for traffic, size in totals(node, pod).items() if size}
    assert counted == {IN: 1000, OUT: 500}
    exchange(pod, neighbour, 1)
    sent = totals(node, neighbour)
    assert (sent["internal-in"], sent["internal-out"]) == (128, 128)


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
    forge(pod)
    ask_translated(node, pod.end(Family.V4), served.end(Family.V4), PUBLIC, source=PUBLIC)
    for one in (pod, served):
        assert set(totals(node, one).values()) == {0}


def test_fragments_are_counted_as_they_are_on_the_wire(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    ends = pod.end(Family.V4), world.outside(Family.V4)
    datagrams(*ends, [4000] * 5, [4000] * 5)
    # Each of three has a header of its own.
    assert totals(node, pod) == {IN: 5 * (4008 + 60), OUT: 5 * (4008 + 60)}


FORGERY = """
    r2 = 1
    *(u32 *)(r1 + 44) = r2
    r0 = -1
    exit
"""


def forge(sandbox: Sandbox) -> None:
    """Have all that a pod sends say that it came from the internet."""
    program = bpf.load("forgery", FORGERY, ())
    with wiring.inside(sandbox.netns), Netlink() as channel:
        index = netlink.index_of(INTERFACE)
        channel.transact(
            [
                traffic_filters.add_clsact(index),
                traffic_filters.put_filter(
                    FilterPlace.leaving(index), program.descriptor, "forgery"
                ),
            ]
        )


def exchange(pod: Sandbox, neighbour: Sandbox, number: int) -> None:
    ends = (one.end(Family.V4) for one in (pod, neighbour))
    datagrams(*ends, [100] * number, [100] * number)


@pytest.fixture
def limited(node: LabNode) -> Iterator[Sandbox]:
    made = node.add(f"limited-{next(_numbers)}", LIMITED)
    yield made
    node.runtime.delete(made)


@pytest.fixture(params=["research", LIMITED])
def served(node: LabNode, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A pod, and one whose packets of the internet wait in IFBs."""
    made = node.add(f"served-{next(_numbers)}", request.param)
    yield made
    node.runtime.delete(made)


@pytest.fixture
def neighbour(node: LabNode) -> Iterator[Sandbox]:
    made = node.add(f"neighbour-{next(_numbers)}")
    yield made
    node.runtime.delete(made)


def test_a_pod_cannot_have_its_neighbour_billed(
    world: World, node: LabNode, pod: Sandbox, neighbour: Sandbox
) -> None:
    forge(pod)
    exchange(pod, neighbour, 100)
    assert set(totals(node, neighbour).values()) == {0}
    sent = talk(world, neighbour, [100])
    assert totals(node, neighbour) == {IN: sent, OUT: sent}


def test_what_waits_in_an_ifb_is_counted_and_a_forgery_is_not(
    world: World, node: LabNode, pod: Sandbox, limited: Sandbox
) -> None:
    sent = talk(world, limited, [500] * 20)
    with wiring.inside(node.namespace):
        for ifb in ("netmgr-in", "netmgr-out"):
            assert read_carried()[ifb].sent_packets >= 2 * 20
    assert totals(node, limited) == {IN: sent, OUT: sent}
    forge(pod)
    exchange(pod, limited, 100)
    assert totals(node, limited) == {IN: sent, OUT: sent}


def test_a_limited_pod_pays_what_it_sends_whatever_it_forges(
    world: World, node: LabNode, limited: Sandbox, neighbour: Sandbox
) -> None:
    forge(limited)
    sent = talk(world, limited, [500] * 20)
    assert totals(node, limited) == {IN: sent, OUT: sent}
    exchange(limited, neighbour, 100)
    assert set(totals(node, neighbour).values()) == {0}


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


def test_what_no_connection_is_tracked_for_is_counted(
    world: World, node: LabNode, served: Sandbox
) -> None:
    address = str(served.address(Family.V4))
    way = (f"{address}/32", "via", str(BESIDE_INTERNET[Family.V4]))
    untracked = "chain early { type filter hook prerouting priority raw; notrack; }"
    inside(world.internet, "ip", "route", "add", *way)
    try:
        with table(node, untracked):
            sent = talk(world, served, [1, 100, 1400], [Family.V4])
    finally:
        inside(world.internet, "ip", "route", "del", *way)
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


def test_a_pod_that_asks_itself_through_a_public_address_has_no_internet(
    node: LabNode, served: Sandbox
) -> None:
    """A hairpin: both of its packets are translated, on either side."""
    own = served.end(Family.V4)
    ask_translated(node, own, own, PUBLIC, source=PUBLIC)
    assert set(totals(node, served).values()) == {0}


def test_a_tag_that_the_node_takes_off_makes_no_packet_free(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    """A tag of priority alone: its VLAN is none."""
    own, internet = pod.address(Family.V4), INTERNET[Family.V4]
    with open_socket(world.internet, Family.V4, socket.SOCK_DGRAM) as far:
        far.bind((str(internet), 4251))
        frame = forging.udp(own, internet, (4252, 4251), bytes(100))
        tagged = frame[:12] + bytes.fromhex("8100e000") + frame[12:]
        forging.send(pod, [tagged], Power.NET_RAW)
        assert len(far.recv(200)) == 100
    assert totals(node, pod) == {IN: 0, OUT: 128}


def test_a_killed_agent_loses_nothing_and_its_successor_reports_no_gap(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    sent = talk(world, pod, [100, 900])
    known = gaps(node)
    node.kill_agent()
    sent += talk(world, pod, [300])
    filters = tc(node, "filter", "show", "dev", node.node.uplink, "egress")
    node.start_until_ready()
    sent += talk(world, pod, [700])
    assert totals(node, pod) == {IN: sent, OUT: sent}
    assert gaps(node) == known
    assert tc(node, "filter", "show", "dev", node.node.uplink, "egress") == filters, "written again"


HARMS = {
    "a filter of the uplink": lambda uplink, _: ("filter", "del", "dev", uplink, "egress"),
    "a filter of the uplink, the other way": lambda uplink, _: (
        *("filter", "del", "dev", uplink, "ingress"),
    ),
    "all that the uplink has": lambda uplink, _: ("qdisc", "del", "dev", uplink, "clsact"),
    "all that the pod's link has": lambda _, link: ("qdisc", "del", "dev", link, "clsact"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_another_program_removes_comes_back_and_is_told_as_a_gap(
    world: World, node: LabNode, pod: Sandbox, harm: str
) -> None:
    talk(world, pod, [100])
    before = removals(node)
    counted = totals(node, pod)
    tc(node, *HARMS[harm](node.node.uplink, host_link(node, pod)))
    eventually(lambda: removals(node) == before + 1)
    eventually(lambda: not node.problems())
    sent = talk(world, pod, [700])
    assert totals(node, pod) == {traffic: size + sent for traffic, size in counted.items()}
    assert removals(node) == before + 1


@contextmanager
def later_links(node: LabNode, **prefixes: str) -> Iterator[None]:
    """Links that are there, each with a route to its prefix, before the agent sees them."""
    with agent_standing_still(node):
        for link, prefix in prefixes.items():
            far = f"{link}-far"
            inside(node.namespace, "ip", "link", "add", link, "up", "type", "veth", "peer", far)
            inside(node.namespace, "ip", "link", "set", far, "up")
            inside(node.namespace, "ip", "route", "add", prefix, "dev", link)
    try:
        yield
    finally:
        for link in prefixes:
            inside(node.namespace, "ip", "link", "del", link)


def counts_at(node: LabNode, link: str) -> bool:
    return "netmgr leaving" in tc(node, "filter", "show", "dev", link, "egress")


def test_an_uplink_that_comes_later_is_told_as_a_gap_until_it_counts(node: LabNode) -> None:
    before = removals(node)
    with later_links(node, outside="198.51.100.0/24"):
        eventually(lambda: removals(node) == before + 1 and counts_at(node, "outside"))
