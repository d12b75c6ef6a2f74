"""What a pod says of itself, of its neighbours and of the network changes nothing on its node."""

from __future__ import annotations

import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from typing import NamedTuple

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.common import repairs
from tests.kernel.forging import ALL_NODES, ALL_ROUTERS, BROADCAST, Power, link_layer
from tests.kernel.namespaces import host_link, inside
from tests.lab.exchange import datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

STACKS = {"v4-only": (Family.V4,), "v6-only": (Family.V6,), "dual stack": tuple(Family)}
POWERS = pytest.mark.parametrize("power", Power, ids=str)
EVIL = Address.parse("fe80::66")
SETTINGS = {"reconcile_seconds": 0.3, "protect_except": ["trusted"]}
INVENTED = 200
_numbers = count(1)
TAKES_EVERYTHING = ("all", "default")


class Scene(NamedTuple):
    world: World
    node: LabNode
    intruder: Sandbox
    victim: Sandbox

    def run(self, *command: str) -> str:
        return inside(self.node.namespace, *command)

    def ip(self, *command: str) -> list[str]:
        """What it prints of both families."""
        return [line for of in ("-4", "-6") for line in self.run("ip", of, *command).splitlines()]

    def link(self, sandbox: Sandbox) -> str:
        return host_link(self.node, sandbox)

    def state(self) -> list[str]:
        """Routes, addresses and permanent neighbours of the node."""
        lines = self.ip("route") + self.run("ip", "-o", "addr").splitlines()
        return sorted(line.split(" expires ")[0].split(" valid_lft ")[0].strip() for line in lines)

    def neighbours(self) -> list[str]:
        """Entries that are not permanent, of pods' links."""
        return [line for line in self.ip("neigh") if " dev nm" in line and "PERMANENT" not in line]

    def drops(self) -> dict[str, int]:
        return {item["reason"]: item["packets"] for item in self.node.snapshot()["drops"]}

    def protected(self) -> int:
        return sum(
            row["packets"]
            for row in self.node.snapshot()["protected"]
            if row["namespace"] == "research"
        )

    def pods_work(self) -> None:
        for family in {address.family for address in self.victim.addresses}:
            pods = [pod.end(family) for pod in (self.intruder, self.victim)]
            internet = self.world.outside(family)
            for near, far in (*product(pods, [internet]), pods):
                datagrams(near, far, [100], [100])


@pytest.fixture(scope="module", params=STACKS)
def stack(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def scene(backend: Backend, stack: str) -> Iterator[Scene]:
    """A node whose links would all take advertisements, with a pod that will send them."""
    drawn = cluster(pods=4)
    nodes = tuple(
        replace(node, ranges=tuple(block for block in node.ranges if block.family in STACKS[stack]))
        for node in drawn.nodes
    )
    topology = replace(drawn, nodes=nodes, pods=())
    name = f"intr-{os.getpid()}-{next(_numbers)}"
    with World(topology, backend=backend, name=name, settings=SETTINGS, exporters=False) as world:
        node = world.node("node-1")
        for setting in TAKES_EVERYTHING:
            inside(node.namespace, "sysctl", "-qw", f"net.ipv6.conf.{setting}.accept_ra=2")
        yield Scene(world, node, node.add("intruder"), node.add("victim"))


def everything(scene: Scene, stack: str) -> Iterator[bytes]:
    """Each kind of frame by which a machine is told of addresses, neighbours or routes."""
    mac = forging.mac_of(scene.intruder)
    yield from discovery(EVIL, mac, scene.victim)
    for family in STACKS[stack]:
        pod, victim, node = (
            one.address(family) for one in (scene.intruder, scene.victim, scene.node.node)
        )
        if family is Family.V6:
            yield from discovery(pod, mac, scene.victim)
            yield forging.udp(pod, node, (547, 546), b"\x07" + bytes(40))
        else:
            quoted = struct.pack("!BBHHHBBH", 0x45, 0, 28, 0, 0, 64, 17, 0)
            quoted += node.packed + victim.packed + bytes(8)
            for code in range(4):
                yield forging.icmp4(pod, node, forging.REDIRECT4, code, pod.packed + quoted)
            yield forging.udp(pod, BROADCAST, (67, 68), bytes(240))
            yield forging.udp(pod, node, (67, 68), bytes(240))
    yield forging.udp(EVIL, ALL_NODES, (547, 546), b"\x07" + bytes(40))
    for operation in (forging.ARP_REQUEST, forging.ARP_REPLY):
        for sender in ("10.64.1.1", "10.129.0.5", "169.254.1.1"):
            yield forging.arp(
                operation, Address.parse(sender), scene.node.node.address(Family.V4), mac
            )
            yield forging.arp(operation, Address.parse(sender), Address.parse(sender), mac)


def discovery(source: Address, mac: bytes, victim: Sandbox) -> Iterator[bytes]:
    """Every type of neighbour discovery, from one source."""
    told = [address for address in victim.addresses if address.family is Family.V6]
    targets = [Address.parse("2001:db8:bad::1"), *told]
    yield forging.router_advertisement(source, routes=targets)
    asking = bytes(4) + link_layer(1, mac)
    yield forging.icmp6(source, ALL_ROUTERS, forging.ROUTER_SOLICITATION, asking)
    for target in targets:
        for kind, body in (
            (forging.NEIGHBOUR_SOLICITATION, bytes(4) + target.packed + link_layer(1, mac)),
            (
                forging.NEIGHBOUR_ADVERTISEMENT,
                struct.pack("!I", 0xE << 28) + target.packed + link_layer(2, mac),
            ),
            (forging.REDIRECT, bytes(4) + source.packed + target.packed),
        ):
            yield forging.icmp6(source, ALL_NODES, kind, body)


@POWERS
def test_errors_that_nobody_caused_narrow_no_path_of_a_node_or_pod_or_router(
    scene: Scene, power: Power
) -> None:
    """Each would be believed for ten minutes, by all that share the path."""
    world, before = scene.world, scene.drops()["icmp"]
    others = {
        "node-1": scene.node.node.addresses,
        "node-2": world.node("node-2").node.addresses,
        world.topology.internet: tuple(INTERNET.values()),
    }
    places = [scene.victim.netns, *map(world.namespace, (*others, "fabric"))]
    frames = []
    for pod, victim in zip(scene.intruder.addresses, scene.victim.addresses, strict=True):
        family = pod.family
        ends = [victim, *(one for of in others.values() for one in of if one.family is family)]
        for to, kind in product(ends, forging.ERRORS[family]):
            frames += [forging.too_big(pod, to, far, kind) for far in ends if far != to]
    forging.send(scene.intruder, frames, power)
    eventually(lambda: scene.drops()["icmp"] == before + len(frames))
    for place, of in product(places, ("-4", "-6")):
        assert not inside(place, "ip", of, "route", "show", "cache")
    scene.pods_work()


METADATA = {Family.V4: Address.parse("169.254.169.254"), Family.V6: Address.parse("fd00:ec2::254")}


def to_metadata(pod: Sandbox) -> list[bytes]:
    return [forging.udp(own, METADATA[own.family], (4000, 80), b"GET") for own in pod.addresses]


@pytest.mark.slow
@POWERS
def test_what_a_pod_advertises_changes_nothing_on_its_node(
    scene: Scene, stack: str, power: Power
) -> None:
    before, dropped = scene.state(), scene.drops()
    forging.send(scene.intruder, everything(scene, stack), power)
    time.sleep(0.3)
    assert scene.state() == before
    assert not scene.neighbours()
    reasons = ("router", "link-local", "redirect", "dhcp")
    eventually(lambda: all(scene.drops()[reason] > dropped.get(reason, 0) for reason in reasons))
    scene.pods_work()


@pytest.mark.slow
def test_the_links_themselves_take_no_advertisement_when_there_are_no_rules(
    scene: Scene, stack: str, backend: Backend
) -> None:
    before = scene.state()
    scene.node.stop_agent()
    try:
        if backend is Backend.NFTABLES:
            scene.run("nft", "delete", "table", "inet", "netmgr")
        else:
            for family, table in product(("", "6"), ("raw", "mangle")):
                scene.run(f"ip{family}tables-legacy", "-t", table, "-F")
        forging.send(scene.intruder, everything(scene, stack), Power.NET_RAW)
        time.sleep(0.3)
        assert scene.state() == before
    finally:
        scene.node.start_until_ready()


@POWERS
def test_invented_neighbours_cost_the_node_no_entries(scene: Scene, power: Power) -> None:
    node, mac = scene.node.node, forging.mac_of(scene.intruder)
    asked = [node.address(Family.V4), Address.parse("169.254.1.1")]
    frames = []
    for number in range(INVENTED):
        local = Address(Family.V6, EVIL.value + 1 + number)
        asking = bytes(4) + link_layer(1, mac)
        frames += [
            forging.icmp6(local, ALL_ROUTERS, forging.ROUTER_SOLICITATION, asking),
            forging.icmp6(local, ALL_NODES, forging.ECHO_REQUEST6, bytes(8)),
            forging.udp(local, node.address(Family.V6), (4000, 4001), b"?"),
        ]
        invented = Address(Family.V4, Address.parse("10.200.0.1").value + number)
        frames += [forging.arp(forging.ARP_REQUEST, invented, address, mac) for address in asked]
    forging.send(scene.intruder, frames, power)
    time.sleep(0.3)
    assert not scene.neighbours()


@POWERS
def test_the_metadata_service_is_kept_from_pods_and_counted_for_their_namespace(
    scene: Scene, power: Power
) -> None:
    pod, before = scene.intruder, scene.protected()
    frames = to_metadata(pod)
    forging.send(pod, frames, power)
    eventually(lambda: scene.protected() == before + len(frames))
    # Drops are a reading of their own, at most `min_reading_seconds` old.
    eventually(lambda: scene.drops()["protected"] == before + len(frames))
    assert not [row for row in scene.node.snapshot()["pods"] if row["traffic"] == "protected-out"]


@pytest.mark.slow
def test_pods_of_an_excepted_namespace_reach_what_is_protected_also_after_a_restart(
    scene: Scene,
) -> None:
    pod, before = scene.node.add("trusted-pod", "trusted"), scene.drops()["protected"]
    try:
        forging.send(pod, to_metadata(pod), Power.NET_RAW)
        scene.node.stop_agent()
        scene.node.start_until_ready()
        forging.send(pod, to_metadata(pod), Power.NET_RAW)
        time.sleep(0.2)
        assert scene.drops()["protected"] == before
        assert not repairs(scene.node, "wiring")
    finally:
        scene.node.runtime.delete(pod)


def test_what_stands_where_only_netmgrs_routes_may_is_removed_reported_and_counted(
    scene: Scene,
) -> None:
    before = scene.state()
    intruder, repaired = scene.link(scene.intruder), repairs(scene.node, "wiring")
    harm = [
        f"ip -6 route add default dev {intruder} metric 7",
        f"ip -6 addr add 2001:db8:bad::5/64 dev {intruder} nodad",
        f"ip -4 route add 198.51.100.0/24 dev {intruder}",
    ]
    for address in scene.victim.addresses:
        # Another link, with whatever metric the kernel lets in beside ours.
        metric = "metric 5" if address.family is Family.V4 else "metric 256"
        harm.append(f"ip -{address.family.value} route add {address} dev {intruder} {metric}")
        harm.append(f"ip -{address.family.value} route add {address} dev eth0 metric 2000 proto ra")
    for command in harm:
        scene.run(*command.split())
    eventually(lambda: scene.state() == before)
    # What is repaired is counted at the end of the pass.
    eventually(lambda: repairs(scene.node, "wiring") >= repaired + len(harm))
    assert "198.51.100.0/24" in (scene.node.directory / "agent.log").read_text()
    scene.pods_work()


@pytest.mark.parametrize(
    "setting",
    [
        *("ipv6.accept_ra=2", "ipv6.autoconf=1", "ipv6.accept_redirects=1"),
        *("ipv4.accept_redirects=1", "arp on"),
    ],
)
def test_a_links_settings_are_kept(scene: Scene, setting: str) -> None:
    link, repaired = scene.link(scene.intruder), repairs(scene.node, "wiring")
    if setting == "arp on":
        scene.run("ip", "link", "set", link, "arp", "on")
    else:
        family, key, value = re.split("[.=]", setting)
        name = f"net.{family}.conf.{link}.{key}"
        scene.run("sysctl", "-qw", f"{name}={value}")
    eventually(lambda: repairs(scene.node, "wiring") > repaired)
    if setting == "arp on":
        assert "NOARP" in scene.run("ip", "-o", "link", "show", link)
    else:
        assert scene.run("sysctl", "-n", name).strip() == "0"
    scene.node.runtime.check(scene.intruder)
    scene.pods_work()


def test_routes_to_pods_have_a_metric_that_nobody_undercuts(scene: Scene) -> None:
    for address in scene.victim.addresses:
        (route,) = scene.run(
            "ip", f"-{address.family.value}", "-o", "route", "show", str(address)
        ).splitlines()
        assert ("metric 1 " in route) == (address.family is Family.V6)
        assert "metric" in route or address.family is Family.V4


_TO_A_GROUP = """
import socket, struct, sys
address, group, index = sys.argv[1], sys.argv[2], socket.if_nametoindex("eth0")
family = socket.AF_INET6 if ":" in group else socket.AF_INET
listener, sender = (socket.socket(family, socket.SOCK_DGRAM) for _ in range(2))
listener.settimeout(1)
listener.bind(("", 4003))
if family == socket.AF_INET6:
    member = socket.inet_pton(family, group) + struct.pack("@I", index)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, member)
    sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
else:
    member = socket.inet_aton(group) + socket.inet_aton(address)
    listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
sender.bind((address, 0))
sender.sendto(b"anybody?", (group, 4003))
print(listener.recv(100).decode())
"""


def test_programs_of_the_node_hear_each_others_multicast(scene: Scene) -> None:
    groups = {Family.V4: "224.0.0.251", Family.V6: "ff02::fb"}
    for address in scene.node.node.addresses:
        said = scene.run(sys.executable, "-c", _TO_A_GROUP, str(address), groups[address.family])
        assert said == "anybody?\n"


@POWERS
def test_a_dhcp_answer_is_dropped_from_whatever_port_it_comes(scene: Scene, power: Power) -> None:
    before = scene.drops()["dhcp"]
    ports = {Family.V4: 68, Family.V6: 546}
    frames = [
        forging.udp(pod, scene.node.node.address(pod.family), (4000, ports[pod.family]), bytes(240))
        for pod in scene.intruder.addresses
    ]
    forging.send(scene.intruder, frames, power)
    eventually(lambda: scene.drops()["dhcp"] == before + len(frames))
