"""Counting at links: what is promised, and what other programs, pods and crashes do to it."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netmgr.documents.node import Backend
from netmgr.kernel.links import read_carried
from netmgr.prefixes import Family
from tests.kernel import forging, test_attribution
from tests.kernel.common import NewPod, agent_standing_still, talk, totals
from tests.kernel.conftest import one_of
from tests.kernel.forging import Power
from tests.kernel.namespaces import host_link, inside
from tests.kernel.spending import IN, OUT, gaps
from tests.kernel.test_attribution import LIMITED
from tests.kernel.translating import SERVICE, ask_translated, table
from tests.lab import wiring
from tests.lab.exchange import datagrams, open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

_numbers = itertools.count(1)
WORLD = test_attribution.WORLD
SERVICES = {"name": "services", "prefixes": ["10.96.0.0/12"]}


backend = one_of([Backend.LINKS])


def of_node(node: LabNode, row: str) -> dict[str, int]:
    return {one["traffic"]: one[row] for one in node.ask("audit")["forward"]}


def tc(node: LabNode, *words: str) -> str:
    return inside(node.namespace, "tc", *words)


def removals(node: LabNode) -> int:
    """How many gaps of the kind there were."""
    return gaps(node)["removed"][0]


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


def test_fragments_are_counted_as_they_are_on_the_wire(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    ends = pod.end(Family.V4), world.outside(Family.V4)
    datagrams(*ends, [4000] * 5, [4000] * 5)
    # Each of three has a header of its own.
    assert totals(node, pod) == {IN: 5 * (4008 + 60), OUT: 5 * (4008 + 60)}


def exchange(pod: Sandbox, neighbour: Sandbox, number: int) -> None:
    ends = (one.end(Family.V4) for one in (pod, neighbour))
    datagrams(*ends, [100] * number, [100] * number)


@pytest.fixture
def limited(node: LabNode) -> Iterator[Sandbox]:
    made = node.add(f"limited-{next(_numbers)}", LIMITED)
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
    forging.claim_internet(pod)
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
    forging.claim_internet(pod)
    exchange(pod, limited, 100)
    assert totals(node, limited) == {IN: sent, OUT: sent}


def test_a_limited_pod_pays_what_it_sends_whatever_it_forges(
    world: World, node: LabNode, limited: Sandbox, neighbour: Sandbox
) -> None:
    forging.claim_internet(limited)
    sent = talk(world, limited, [500] * 20)
    assert totals(node, limited) == {IN: sent, OUT: sent}
    exchange(limited, neighbour, 100)
    assert set(totals(node, neighbour).values()) == {0}


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
def uplink_to(node: LabNode, prefix: str) -> Iterator[str]:
    """One more uplink of the node's, with its route."""
    link, far = "further", "further-far"
    inside(node.namespace, "ip", "link", "add", link, "up", "type", "veth", "peer", far)
    inside(node.namespace, "ip", "link", "set", far, "up")
    inside(node.namespace, "ip", "route", "add", prefix, "dev", link)
    try:
        yield link
    finally:
        inside(node.namespace, "ip", "link", "del", link)


def counts_at(node: LabNode, link: str) -> bool:
    return "netmgr leaving" in tc(node, "filter", "show", "dev", link, "egress")


def test_an_uplink_that_comes_later_is_told_as_a_gap_until_it_counts(node: LabNode) -> None:
    before = removals(node)
    with ExitStack() as stack:
        with agent_standing_still(node):
            link = stack.enter_context(uplink_to(node, "198.51.100.0/24"))
        eventually(lambda: removals(node) == before + 1 and counts_at(node, link))


def test_an_agent_starts_beside_a_link_that_is_refused_and_counts_at_the_others(
    world: World, node: LabNode, pod: Sandbox, new_pod: NewPod
) -> None:
    """Another program's `ingress` is where the programs of a further uplink have to be."""
    counted = totals(node, pod)
    node.kill_agent()
    with uplink_to(node, "198.51.100.0/24") as link:
        tc(node, "qdisc", "add", "dev", link, "ingress")
        node.start_agent()
        eventually(lambda: "clsact: File exists" in node.status())
        sent, later = talk(world, pod, [700]), new_pod()
        assert totals(node, pod) == {traffic: size + sent for traffic, size in counted.items()}
        sent = talk(world, later, [900])
        assert totals(node, later) == {IN: sent, OUT: sent}
        tc(node, "qdisc", "del", "dev", link, "ingress")
        eventually(lambda: counts_at(node, link))
        node.wait_until_ready()
