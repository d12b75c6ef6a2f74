"""On a flat network agents keep routes to each other's pods, from the file that the kubelet renews;
and a route that leads packets for unused addresses out again is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from netmgr.documents.node_list import ListedNode, write
from netmgr.kube.controller.node_listing import MOST_NODES
from netmgr.prefixes import Address, Family, Prefix
from tests.kernel.namespaces import inside
from tests.lab.errors import LabError
from tests.lab.exchange import End, datagrams, stream
from tests.lab.nodes import LabNode
from tests.lab.topology import Topology, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

LAN = {Family.V4: "192.168.77.{}", Family.V6: "fd00:77::{}"}
LENGTH = {Family.V4: 24, Family.V6: 64}
SETTINGS = {"reconcile_seconds": 0.3, "accounting": {"min_reading_seconds": 0}}


def flat() -> Topology:
    """Two nodes whose fabric knows no pods."""
    made = cluster(nodes=2, pods=1)
    hosts = tuple(
        replace(host, routes=()) if host.name == "fabric" else host for host in made.hosts
    )
    return replace(made, hosts=hosts)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The nodes also have a link to each other: the flat network."""
    name = f"routes-{os.getpid()}"
    with World(flat(), name=name, settings=SETTINGS, exporters=False) as made:
        one, two = (node.namespace for node in made.nodes)
        # Both ends are made in the first namespace, and one moves.
        inside(one, *f"ip link add lan0 type veth peer name lan1 netns {two}".split())
        for number, (namespace, link) in enumerate(((one, "lan0"), (two, "lan1")), start=1):
            for family in Family:
                address = f"{LAN[family].format(number)}/{LENGTH[family]}"
                extra = ("nodad",) if family is Family.V6 else ()
                inside(namespace, "ip", "address", "add", address, "dev", link, *extra)
            inside(namespace, "ip", "link", "set", link, "up")
        yield made


def entry(world: World, number: int) -> ListedNode:
    node = world.nodes[number - 1]
    addresses = tuple(Address.parse(LAN[family].format(number)) for family in Family)
    return ListedNode(node.name, addresses, node.node.ranges)


def publish(node: LabNode, text: str) -> None:
    """Replace the file as the kubelet does: a link to a new folder."""
    file = node.directory / "nodes.json"
    new = node.directory / f"nodes-{time.monotonic_ns()}"
    new.write_text(text)
    beside = node.directory / "nodes.new"
    beside.symlink_to(new)
    beside.replace(file)


@pytest.fixture
def nodes(world: World) -> list[LabNode]:
    """Both nodes, with agents that read a list of nodes."""
    for node in world.nodes:
        (node.directory / "nodes.json").unlink(missing_ok=True)
        node.write_document()  # without the keys that another test has added
        restart(node, nodes_file=str(node.directory / "nodes.json"))
    return world.nodes


def restart(node: LabNode, **keys: object) -> None:
    """Start the agent again with other keys in its document."""
    node.stop_agent()
    document = yaml.safe_load(node.document.read_text())
    node.document.write_text(yaml.safe_dump(document | keys))
    node.start_until_ready()


def routes_to_nodes(node: LabNode) -> set[str]:
    lines = [
        line
        for family in ("-4", "-6")
        for line in inside(
            node.namespace, "ip", family, "route", "show", "proto", "111"
        ).splitlines()
    ]
    return {line.split()[0] for line in lines}


def wanted(node: LabNode) -> set[str]:
    return {str(block) for block in node.node.ranges}


def faults(node: LabNode) -> str:
    """What is wrong with its routes, in words; empty if nothing is."""
    return node.problems().get("RoutesWrong", "")


def publish_nobody(node: LabNode) -> None:
    publish(node, write([]))
    eventually(lambda: not routes_to_nodes(node))


def test_pods_of_two_nodes_reach_each_other_while_both_are_listed(
    world: World, nodes: list[LabNode]
) -> None:
    one, two = nodes
    eventually(lambda: "is not there: the kubelet brings it" in faults(one))
    text = write([entry(world, 1), entry(world, 2)])
    for node in nodes:
        publish(node, text)
    eventually(lambda: routes_to_nodes(one) == wanted(two) and routes_to_nodes(two) == wanted(one))
    eventually(lambda: not faults(one))
    here, there = world.pod("pod-1"), world.pod("pod-2")
    for family in Family:
        heard = datagrams(here.end(family), there.end(family), [100], [900])
        assert heard.peer == here.address(family), "not masqueraded, since it is internal"

    # Another program's flush is repaired, a file that cannot be read changes nothing.
    inside(one.namespace, "ip", "route", "flush", "proto", "111")
    eventually(lambda: routes_to_nodes(one) == wanted(two))
    publish(one, "half a li")
    eventually(lambda: "nodes.json: " in faults(one))
    assert routes_to_nodes(one) == wanted(two)
    (one.directory / "nodes.json").unlink()
    one.stop_agent()
    one.start_until_ready()
    assert routes_to_nodes(one) == wanted(two), "a restart without the file changes nothing"

    publish(one, write([entry(world, 1)]))
    eventually(lambda: not routes_to_nodes(one))
    eventually(lambda: not faults(one))


def test_only_nodes_and_their_pods_see_pods_own_addresses_where_no_other_machine_has_routes(
    world: World, nodes: list[LabNode]
) -> None:
    """As in the overlay `flat`. The fabric is a machine of the network that knows no pods."""
    one, two = nodes
    text = write([entry(world, 1), entry(world, 2)])
    for node in nodes:
        restart(node, native=[])
        publish(node, text)
        eventually(lambda node=node: not faults(node))
    here, there = world.pod("pod-1"), world.pod("pod-2")

    def heard(family: Family, far: End) -> Address:
        near = here.end(family)
        stream(near, far, 300_000, 300_000)
        return datagrams(near, far, [100], [900]).peer

    def fabric(family: Family) -> End:
        link = next(end for end in world.topology.interfaces() if end.name == one.name)
        address = next(each.address for each in link.addresses if each.address.family is family)
        return End(world.namespace("fabric"), address)

    def path_to(address: Address) -> str:
        return str(one.ask("explain", address=str(address))["path"])

    for family in Family:
        own, of_two = here.address(family), Address.parse(LAN[family].format(2))
        assert heard(family, fabric(family)) == one.node.address(family)
        assert path_to(fabric(family).address) == "masqueraded"
        for far in (there.end(family), End(two.namespace, of_two)):
            eventually(lambda family=family, far=far, own=own: heard(family, far) == own)
            assert path_to(far.address) == "native"
    assert not any(each["bytes"] for each in one.snapshot()["pods"]), "all of them are internal"

    log = one.directory / "agent.log"
    begun = log.read_text().count("rules-begin")
    restart(one)
    assert log.read_text().count("rules-begin") == begun, "the rules name the nodes from the start"
    assert path_to(Address.parse(LAN[Family.V4].format(2))) == "native"
    publish(one, write([entry(world, 1)]))
    eventually(lambda: path_to(Address.parse(LAN[Family.V4].format(2))) == "masqueraded")

    restart(one, native=[str(fabric(Family.V4).address)])
    with pytest.raises(LabError, match="did not arrive"):
        heard(Family.V4, fabric(Family.V4))
    assert heard(Family.V6, fabric(Family.V6)) == one.node.address(Family.V6)


@pytest.mark.slow
def test_a_nodes_routes_go_with_the_key(world: World, nodes: list[LabNode]) -> None:
    one, two = nodes
    publish(one, write([entry(world, 1), entry(world, 2)]))
    eventually(lambda: routes_to_nodes(one) == wanted(two))
    one.stop_agent()
    one.write_document()
    one.start_until_ready()
    assert not routes_to_nodes(one)


@pytest.mark.slow
def test_a_node_that_claims_what_is_not_its_own_gets_no_route_and_costs_no_other_its_own(
    world: World, nodes: list[LabNode]
) -> None:
    one, two = nodes
    odd = replace(entry(world, 2), name="odd", ranges=(one.node.ranges[0],))
    publish(one, write([odd, entry(world, 1), entry(world, 2)]))
    eventually(lambda: routes_to_nodes(one) == wanted(two))
    eventually(lambda: "of Node odd: it overlaps this node's own range" in faults(one))


@pytest.mark.slow
def test_an_administrators_route_stays_and_is_reported_if_it_leads_elsewhere(
    world: World, nodes: list[LabNode]
) -> None:
    one, two = nodes
    same, other = two.node.ranges[:2]
    publish_nobody(one)
    inside(one.namespace, "ip", "route", "add", str(same), "via", LAN[same.family].format(2))
    inside(one.namespace, "ip", "route", "add", str(other), "via", LAN[other.family].format(3))
    publish(one, write([entry(world, 1), entry(world, 2)]))
    eventually(lambda: routes_to_nodes(one) == wanted(two) - {str(same), str(other)})
    eventually(lambda: "another program's route" in faults(one))
    remedy = faults(one).partition("(ip ")[2].rstrip(")")
    assert str(other) in remedy
    inside(one.namespace, "ip", *remedy.split())
    eventually(lambda: not faults(one))
    inside(one.namespace, "ip", "route", "delete", str(same))
    eventually(lambda: routes_to_nodes(one) == wanted(two))


def test_a_route_to_a_part_of_another_nodes_pods_is_a_problem_until_it_is_removed(
    world: World, nodes: list[LabNode]
) -> None:
    one, two = nodes
    publish(one, write([entry(world, 1), entry(world, 2)]))
    eventually(lambda: routes_to_nodes(one) == wanted(two))

    eventually(lambda: not faults(one))
    for restart in (lambda: None, one.restart_after_kill):
        for block in two.node.ranges:
            part = f"{block.network}/{block.length + 1}"
            inside(one.namespace, "ip", "route", "add", part, "via", LAN[block.family].format(3))
            restart()
            eventually(lambda part=part: f"another program's route to {part} leads" in faults(one))
            remedy = faults(one).partition("(ip ")[2].rstrip(")")
            inside(one.namespace, "ip", *remedy.split())
            eventually(lambda: not faults(one))


@pytest.mark.slow
def test_another_programs_route_with_several_next_hops_costs_no_node_its_route(
    world: World, nodes: list[LabNode]
) -> None:
    one, two = nodes
    hops = [f"nexthop via {LAN[Family.V4].format(number)}".split() for number in (2, 3)]
    inside(one.namespace, "ip", "route", "add", "10.0.0.0/8", *hops[0], *hops[1])
    try:
        publish_nobody(one)
        publish(one, write([entry(world, 2)]))
        eventually(lambda: routes_to_nodes(one) == wanted(two))
    finally:
        inside(one.namespace, "ip", "route", "delete", "10.0.0.0/8")


@pytest.mark.slow
def test_one_pass_changes_the_routes_of_as_many_nodes_as_a_list_may_have(
    nodes: list[LabNode],
) -> None:
    """More answers of the kernel than the receive buffer of a socket holds."""
    one, _ = nodes
    log = one.directory / "agent.log"
    of_others = len(log.read_text())
    hops = tuple(Address.parse(LAN[family].format(2)) for family in Family)
    many = []
    for number in range(MOST_NODES):
        blocks = f"10.{96 + number // 256}.{number % 256}.0/24", f"fd00:64:{number:x}::/64"
        many.append(ListedNode(f"listed-{number}", hops, tuple(map(Prefix.parse, blocks))))
    publish(one, write(many))
    eventually(lambda: len(routes_to_nodes(one)) == 2 * MOST_NODES)
    publish_nobody(one)
    assert "attempt-failed name=node-routes" not in log.read_text()[of_others:]


@pytest.mark.slow
def test_a_route_of_the_own_range_that_outranks_its_blackhole_is_reported_until_it_is_removed(
    nodes: list[LabNode],
) -> None:
    """`ip route replace RANGE via OWN-ADDRESS` succeeds: the kernel takes a local gateway."""
    one, _ = nodes
    own = one.node.ranges[0]
    publish(one, write([]))
    eventually(lambda: not faults(one))
    inside(one.namespace, "ip", "route", "replace", str(own), "via", LAN[own.family].format(1))
    unused = str(Address(own.family, own.last))
    way = inside(one.namespace, "ip", "route", "get", unused)
    assert "dev lan0" in way, "it leaves the node again"
    eventually(lambda: faults(one))
    fault = faults(one)
    assert f"the route to {own} via {LAN[own.family].format(1)} is not netmgr's" in fault, fault
    inside(one.namespace, "ip", *fault.partition("(ip ")[2].rstrip(")").split())
    eventually(lambda: not faults(one))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("addition", "reason"),
    [
        # As google-guest-agent's addLocalRoute does for an alias range.
        (
            "route add to local {} scope host dev lan0 proto 66",
            "a local route of protocol 66 (66 is google-guest-agent's, for alias ranges)",
        ),
        # As amazon-ec2-net-utils does for each address and prefix of an interface.
        (
            "rule add from {} lookup 10001 priority 10001",
            "the policy rule `from {} lookup 10001 priority 10001` is not netmgr's",
        ),
    ],
    ids=["google", "amazon"],
)
def test_what_a_cloud_s_own_program_does_with_the_node_s_range_is_reported_until_it_is_undone(
    nodes: list[LabNode], addition: str, reason: str
) -> None:
    one, _ = nodes
    own = one.node.ranges[0]
    publish(one, write([]))
    eventually(lambda: not faults(one))
    inside(one.namespace, "ip", *addition.format(own).split())
    eventually(lambda: faults(one))
    fault = faults(one)
    assert reason.format(own) in fault, fault
    inside(one.namespace, "ip", *fault.rpartition("(ip ")[2].rstrip(")").split())
    eventually(lambda: not faults(one))
