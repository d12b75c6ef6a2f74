"""What a pod with NET_ADMIN and without a user namespace does to its node's links is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.agent.health import diagnosis
from netmgr.agent.queries import LOOK_ROUNDS
from netmgr.dataplane.taps import read_taps
from netmgr.documents.node import Backend
from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.prefixes import Family
from tests.kernel.namespaces import host_link, inside
from tests.lab import wiring
from tests.lab.exchange import datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Pod, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

ON_TOP = """
import sys
from pyroute2 import IPRoute

with IPRoute() as route:
    (own,) = route.get_links(ifname="eth0")
    node = own.get_attr("IFLA_LINK_NETNSID")
    kind, below, mode = sys.argv[1:]
    about = {"vlan_id": 5} if kind == "vlan" else {"macvlan_mode": mode}
    route.link("add", ifname="top", kind=kind, link=int(below), link_netnsid=node, **about)
    route.link("set", index=route.link_lookup(ifname="top")[0], state="up")
"""
SENDS = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
for _ in range(int(sys.argv[2])):
    link.send(bytes([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]) + bytes(1000))
"""
RECONCILE_SECONDS = 0.05
SETTINGS = {"reconcile_seconds": RECONCILE_SECONDS}


def a_world(name: str) -> World:
    room, named = replace(cluster(nodes=1), pods=()), f"{name}-{os.getpid()}"
    return World(room, backend=Backend.NFTABLES, name=named, settings=SETTINGS)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with a_world("taps") as made:
        yield made


@pytest.fixture(scope="module")
def node(world: World) -> LabNode:
    return world.nodes[0]


def tapped(node: LabNode) -> str:
    return node.problems().get("LinkTapped", "")


def ip(node: LabNode, command: str) -> None:
    inside(node.namespace, "ip", *command.split())


def index_of(node: LabNode, name: str) -> str:
    (link,) = json.loads(inside(node.namespace, "ip", "-j", "link", "show", name))
    return str(link["ifindex"])


def put_on_top(pod: Path, kind: str, below: str, mode: str = "") -> None:
    inside(pod, sys.executable, "-c", ON_TOP, kind, below, mode)


@pytest.mark.parametrize(("kind", "mode"), [("macvlan", "bridge"), ("macvlan", "passthru")])
def test_a_pods_link_on_top_of_the_uplink_is_reported_with_its_pod(
    node: LabNode, kind: str, mode: str
) -> None:
    pod = node.add("intruder")
    try:
        eventually(lambda: not tapped(node))
        put_on_top(pod.netns, kind, index_of(node, "eth0"), mode)
        eventually(lambda: f"{kind} in pod research/{pod.pod.name} is on eth0" in tapped(node))
        eventually(lambda: "eth0 is promiscuous" in tapped(node))  # once the link is up
        assert 'netmgr_node_problem{reason="LinkTapped"} 1.0' in node.scrape()
    finally:
        node.runtime.delete(pod)
    eventually(lambda: not tapped(node))


def test_a_link_of_hundreds_of_names_hides_none_behind_it(node: LabNode) -> None:
    pod = node.add("intruder")
    try:
        put_on_top(pod.netns, "macvlan", index_of(node, "eth0"), "bridge")
        names = [str(number).ljust(127, "x") for number in range(300)]
        with wiring.inside(pod.netns), Netlink() as channel:
            channel.transact([links.add_alternative_names("lo", names)])
        with wiring.inside(node.namespace):
            assert f"macvlan in pod research/{pod.pod.name} is on eth0" in read_taps({"eth0"})
    finally:
        node.runtime.delete(pod)
    eventually(lambda: not tapped(node))


def share(node: LabNode) -> float:
    """Of what the uplink sent, that was counted as the internet's."""
    shares = {(one["against"], one["traffic"]): one["ratio"] for one in node.ask("audit")["ratios"]}
    return float(shares["uplinks", "internet-out"])


def test_what_passes_beside_the_rules_lowers_the_uplinks_share(world: World, node: LabNode) -> None:
    pod = node.add("intruder")
    try:
        here, there = pod.end(Family.V4), world.outside(Family.V4)
        datagrams(here, there, [1000] * 300, [100] * 300)
        before = share(node)
        assert before > 0.8
        put_on_top(pod.netns, "macvlan", index_of(node, "eth0"), "bridge")
        inside(pod.netns, sys.executable, "-c", SENDS, "top", "1000")
        assert share(node) < before / 2
    finally:
        node.runtime.delete(pod)


def test_a_pods_link_on_top_of_another_pods_is_reported(node: LabNode) -> None:
    pod, victim = node.add("intruder"), node.add("victim")
    try:
        link = host_link(node, victim)
        put_on_top(pod.netns, "macvlan", index_of(node, link), "passthru")
        eventually(lambda: f"macvlan in pod research/{pod.pod.name} is on {link}" in tapped(node))
    finally:
        node.runtime.delete(pod)
        node.runtime.delete(victim)
    eventually(lambda: not tapped(node))


def test_a_pod_with_a_user_namespace_cannot(node: LabNode) -> None:
    # At the root of its mounts: the kernel refuses user namespaces to whoever is in a chroot.
    command = "nsenter --mount=/proc/self/ns/mnt unshare --user --net --map-root-user cat"
    with subprocess.Popen(command.split(), stdin=subprocess.PIPE) as pod:
        process = Path(f"/proc/{pod.pid}")
        # Then its namespaces are made and its users are mapped.
        eventually(lambda: (process / "comm").read_text() == "cat\n")
        network = process / "ns" / "net"
        sandbox = Sandbox(Pod("mapped", "node-1", "research"), "c" * 64, "u1", network)
        node.runtime.execute("ADD", sandbox)
        try:
            into = ["nsenter", f"--target={pod.pid}", "--user", "--net"]
            on_top = [sys.executable, "-c", ON_TOP, "macvlan", index_of(node, "eth0"), "bridge"]
            refused = programs.run([*into, *on_top])
            assert "Operation not permitted" in refused.stderr.decode()
        finally:
            node.runtime.execute("DEL", sandbox)
            pod.stdin.close()


def test_a_link_of_the_nodes_own_on_top_of_the_uplink_is_reported(node: LabNode) -> None:
    ip(node, "link add top link eth0 type macvlan mode private")
    eventually(lambda: "macvlan top is on eth0" in tapped(node))
    ip(node, "link delete top")
    eventually(lambda: not tapped(node))


def test_an_uplink_that_vanishes_is_reported() -> None:
    with a_world("uplink") as world:
        (node,) = world.nodes
        assert not node.problems().get("UplinkMissing", "")
        ip(node, "link delete eth0")
        eventually(lambda: "uplink eth0 is or was gone" in node.problems().get("UplinkMissing", ""))
        # Also when nobody remembers its default route any more.
        time.sleep(2 * diagnosis.WINDOW * LOOK_ROUNDS * RECONCILE_SECONDS)
        assert node.problems().get("UplinkMissing", "")
