"""A pod that holds NET_ADMIN and NET_RAW tries all that it may, and the node is as before.

`make test` gives it three seconds, `make intrusions` three minutes.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, permutations, product
from typing import NamedTuple

import pytest

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel import forging
from tests.kernel.forging import ALL_NODES, ALL_ROUTERS, Power, link_layer
from tests.kernel.namespaces import inside
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

SECONDS = float(os.environ.get("NETMGR_INTRUSION_SECONDS", "3"))
EVIL = Address.parse("fe80::66")
INVENTED = 200
LINES, LINES_A_MINUTE = 6, 6
"""That a pod may add to the agent's log, whatever it does."""

FORGOTTEN_SECONDS = 120.0
KEPT = ("net.ipv4.ipfrag_time", "net.ipv6.ip6frag_time", "net.netfilter.nf_conntrack_frag6_timeout")
"""For how many seconds the kernel keeps fragments: 30 and 60, unless it is told otherwise."""

CHANGES = """
set -e
for each in $(seq 20); do
    ip link set eth0 arp on
    ip link set eth0 address 02:00:00:00:0e:$(printf %02x $each)
    ip neigh flush dev eth0 nud permanent
    ip neigh replace 169.254.1.1 lladdr 02:00:00:00:0f:$(printf %02x $each) dev eth0
    ip addr replace 10.129.7.$each/32 dev eth0
    ip -6 addr replace 2001:db8:bad::$each/64 dev eth0 nodad
    ip route replace 10.200.$each.0/24 dev eth0
    ip link set eth0 arp off
    ip link set eth0 down
    ip link set eth0 up
done
ip link set eth0 mtu 1280 promisc on allmulticast on
# Without its addresses and routes, which went with the link, a pod can do no more.
for address in "$@"; do ip addr replace $address dev eth0 nodad; done
ip route replace default via 169.254.1.1 dev eth0 onlink
ip -6 route replace default via fe80::1 dev eth0 onlink
"""
FLOOD = """
import socket, sys
for address in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        for port in range(20000, 20200):
            sender.sendto(bytes(100), (address, port))
"""
POWERS = ("+net_admin", "+net_raw")
_numbers = count(1)


class Scene(NamedTuple):
    world: World
    node: LabNode
    intruder: Sandbox
    victim: Sandbox

    def run(self, *command: str) -> str:
        return inside(self.node.namespace, *command)

    def log(self) -> list[str]:
        return (self.node.directory / "agent.log").read_text().splitlines()

    def try_all(self, *command: str) -> None:
        """What a process of the pod with these two capabilities does; it must be able to."""
        bounds = f"-all,{','.join(POWERS)}"
        limits = [f"--bounding-set={bounds}", f"--inh-caps={bounds}"]
        into = ["nsenter", f"--net={self.intruder.netns}", "setpriv", *limits]
        done = programs.run([*into, *command])
        assert done.returncode == 0, done.stderr.decode()

    def others(self, family: Family) -> tuple[Address, ...]:
        """The node, another pod and a host of the internet."""
        return self.node.node.address(family), self.victim.address(family), INTERNET[family]

    def others_work(self) -> None:
        for address in self.victim.addresses:
            pod = End(self.victim.netns, address)
            datagrams(pod, self.world.outside(address.family), [100], [100])
            node = self.node.end(address.family)
            datagrams(node, pod, [100], [100])


@pytest.fixture
def scene(backend: Backend) -> Iterator[Scene]:
    room = replace(cluster(pods=4), pods=())
    name = f"caps-{os.getpid()}-{next(_numbers)}"
    with World(room, backend=backend, name=name, exporters=False) as world:
        node = world.node("node-1")
        # Links that are left as the kernel makes them take every advertisement.
        settings = [f"net.ipv6.conf.{scope}.accept_ra=2" for scope in ("all", "default")]
        inside(node.namespace, "sysctl", "-qw", *settings, *(f"{one}=2" for one in KEPT))
        yield Scene(world, node, node.add("intruder"), node.add("victim"))


def state(scene: Scene, backend: Backend) -> dict[str, object]:
    """What the node's pods share, without counters and ages."""
    found: dict[str, object] = {"links": json.loads(scene.run("ip", "-d", "-j", "link"))}
    for of in ("-4", "-6"):
        for what in ("route show table all", "route show cache", "-o addr"):
            shown = scene.run("ip", of, *what.split()).splitlines()
            found[f"{of} {what}"] = sorted(
                re.sub(r"(expires|\w+_lft) \w+", "", line) for line in shown
            )
        entries = json.loads(scene.run("ip", "-j", of, "neigh", "show", "nud", "all"))
        # Not groups, which are no neighbours, nor those at the uplink, which the node talks to.
        found[f"{of} neigh"] = sorted(
            (entry["dst"], entry["dev"], entry.get("lladdr", ""))
            for entry in entries
            if entry["dev"] != "eth0" and "NOARP" not in entry["state"]
        )
    sysctls = scene.run("sysctl", "-e", "-a", "--pattern", "^net").splitlines()
    found["sysctls"] = [line for line in sysctls if "conntrack_count" not in line]
    sockets = scene.run("cat", "/proc/net/sockstat", "/proc/net/sockstat6").splitlines()
    found["fragments"] = [line for line in sockets if line.startswith("FRAG")]
    return found | rules(scene, backend)


def rules(scene: Scene, backend: Backend) -> dict[str, object]:
    if backend is Backend.NFTABLES:
        # Of its fragments a pod has one element, for a minute.
        listed = scene.run("nft", "--stateless", "list", "ruleset")
        return {"rules": re.sub(r"\n\s*elements = \{ \S+ limit rate [^}]*\}", "", listed)}
    saved = {
        f"{program}-legacy-save": scene.run(f"{program}-legacy-save")
        for program in ("iptables", "ip6tables")
    }
    counted = re.compile(r"\[\d+:\d+\]|^#.*$", re.MULTILINE)
    return {name: counted.sub("", text) for name, text in saved.items()} | {
        "sets": re.sub(r" (packets|bytes) \d+", "", scene.run("ipset", "save"))
    }


def frames(scene: Scene) -> Iterator[bytes]:
    """A round of what a machine may be told or asked by raw packets."""
    mac, node = forging.mac_of(scene.intruder), scene.node.node
    gateway, node4 = Address.parse("169.254.1.1"), node.address(Family.V4)
    yield forging.router_advertisement(EVIL, routes=[scene.victim.address(Family.V6)])
    for number in range(INVENTED):
        local = Address(Family.V6, EVIL.value + 1 + number)
        invented = Address(Family.V4, Address.parse("10.200.0.1").value + number)
        asking = bytes(4) + link_layer(1, mac)
        telling = struct.pack("!I", 0xE << 28) + local.packed + link_layer(2, mac)
        yield forging.icmp6(local, ALL_ROUTERS, forging.ROUTER_SOLICITATION, asking)
        yield forging.icmp6(local, ALL_NODES, forging.ECHO_REQUEST6, bytes(8))
        yield forging.icmp6(local, ALL_NODES, forging.NEIGHBOUR_ADVERTISEMENT, telling)
        for operation in (forging.ARP_REQUEST, forging.ARP_REPLY):
            yield forging.arp(operation, invented, gateway, mac)
            yield forging.arp(operation, node4, invented, mac)
        yield forging.udp(invented, node4, (4000 + number, 9), b"forged")
    for own in scene.intruder.addresses:
        ends = scene.others(own.family)
        for (to, far), kind in product(permutations(ends, 2), forging.ERRORS[own.family]):
            yield forging.too_big(own, to, far, kind)
        for to, port in product(ends, range(INVENTED)):
            yield forging.udp(own, to, (1024 + port, 30000 + port), bytes(100))
            # A datagram that never ends, and the end of one of another's.
            yield forging.fragment(own, to, port, 0, bytes(1000), more=True)
            yield forging.fragment(ends[1], to, port, 8, bytes(16), more=False)


def test_what_a_pod_with_capabilities_does_leaves_its_node_as_it_was(
    scene: Scene, backend: Backend
) -> None:
    pod = scene.intruder
    scene.others_work()
    own = json.loads(inside(pod.netns, "ip", "-j", "link", "show", "eth0"))[0]
    before, lines, began = state(scene, backend), len(scene.log()), time.monotonic()
    closed = [str(address) for of in Family for address in scene.others(of)]
    interpreter = os.path.realpath(sys.executable)
    while time.monotonic() < began + SECONDS:
        scene.try_all(interpreter, "-I", "-S", "-c", FLOOD, *closed)
        forging.send(pod, frames(scene), Power.NET_RAW)
        scene.try_all("sh", "-c", CHANGES, "sh", *map(str, pod.addresses))
        eventually(lambda: scene.node.runtime.status() == "")
    scene.others_work()
    inside(pod.netns, *["ip", "link", "set", "eth0", "address", own["address"]])
    eventually(
        lambda: state(scene, backend) == before,
        lambda: differing(before, state(scene, backend)),
        FORGOTTEN_SECONDS,
        every=1,
    )
    # Without what the runtime asked.
    grown = [line for line in scene.log()[lines:] if "verb=STATUS" not in line]
    minutes = (time.monotonic() - began) / 60
    assert len(grown) <= LINES + LINES_A_MINUTE * minutes, "\n".join(grown)


def differing(before: dict[str, object], after: dict[str, object]) -> str:
    return "\n".join(
        f"{name}: {before[name]}\n-> {found}"
        for name, found in after.items()
        if found != before[name]
    )
