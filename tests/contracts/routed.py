"""A pod and a host, with a node between them that routes: the namespace a test runs in."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from netmgr.kernel import netns
from netmgr.model import Counter, Traffic
from netmgr.prefixes import Address, Family
from netmgr.rules.engine import RuleBackend, Rules
from netmgr.rules.policy import Policy
from tests.contracts.star import MACS, Sockets, set_kernel, wait_until_up

LINK = "nm0123456789ab"
PODS = {Family.V4: "10.1.0.5", Family.V6: "2001:db8:1::5"}
FORGERIES = {
    "an address without a route": {Family.V4: "10.1.0.66", Family.V6: "2001:db8:1::66"},
    "an address behind the uplink": {Family.V4: "198.51.100.66", Family.V6: "2001:db8:fffe::66"},
    "the node's own address": {Family.V4: "203.0.113.1", Family.V6: "2001:db8:ffff::1"},
}
NODES = {Family.V4: "203.0.113.1", Family.V6: "2001:db8:ffff::1"}
INTERNET = {Family.V4: "203.0.113.9", Family.V6: "2001:db8:ffff::9"}
INTERNAL = {Family.V4: "10.200.0.9", Family.V6: "fd00::9"}
NODE_INTERNAL = {Family.V4: "10.200.0.1", Family.V6: "fd00::1"}
FAMILIES = pytest.mark.parametrize("family", Family, ids=lambda family: f"v{family.value}")

NODE_WIRING = f"""
link set {LINK} up
link set uplink up
addr add 203.0.113.1/24 dev uplink
addr add 198.51.100.1/32 dev uplink
addr add 10.200.0.1/32 dev uplink
addr add fd00::1/128 dev uplink nodad
addr add 2001:db8:ffff::1/64 dev uplink nodad
neigh add 203.0.113.9 lladdr {MACS[1]} dev uplink
neigh add 2001:db8:ffff::9 lladdr {MACS[1]} dev uplink
route add 198.51.100.66 dev uplink
route add 2001:db8:fffe::66 dev uplink
route add 10.200.0.9 dev uplink
route add fd00::9 dev uplink
addr add 169.254.1.1/32 dev {LINK}
addr add fe80::1/64 dev {LINK} nodad
route add 10.1.0.5/32 dev {LINK}
route add 2001:db8:1::5/128 dev {LINK}
"""
HOST_WIRING = f"""
link set eth0 up
addr add 203.0.113.9/24 dev eth0
addr add 2001:db8:ffff::9/64 dev eth0 nodad
addr add 10.200.0.9/32 dev eth0
addr add fd00::9/128 dev eth0 nodad
neigh add 203.0.113.1 lladdr {MACS[0]} dev eth0
neigh add 2001:db8:ffff::1 lladdr {MACS[0]} dev eth0
route add default via 203.0.113.1
route add default via 2001:db8:ffff::1
"""
POD_WIRING = f"""
link set lo up
link set eth0 up
addr add 10.1.0.5/32 dev eth0
addr add 10.1.0.66/32 dev eth0
addr add 198.51.100.66/32 dev eth0
addr add 203.0.113.1/32 dev eth0
addr add 2001:db8:1::5/128 dev eth0 nodad
addr add 2001:db8:1::66/128 dev eth0 nodad
addr add 2001:db8:fffe::66/128 dev eth0 nodad
addr add 2001:db8:ffff::1/128 dev eth0 nodad
neigh add 169.254.1.1 lladdr {MACS[0]} dev eth0
neigh add fe80::1 lladdr {MACS[0]} dev eth0
route add 169.254.1.1 dev eth0
route add default via 169.254.1.1
route add default via fe80::1 dev eth0
"""


POD_ADDRESSES = tuple(map(Address.parse, PODS.values()))


def of_pod(family: Family, traffic: Traffic) -> Counter:
    return Counter.of_pod(Address.parse(PODS[family]), traffic)


@dataclass
class World(Sockets):
    """A pod and a host, with the node between them, in whose namespace the test runs."""

    pod: int
    host: int

    def reaches(self, *sent: Any) -> str | None:
        """Sends one datagram; the source address it arrived with, or None if it did not arrive."""
        source = self.source(*sent)
        return source[0] if source else None

    def send(self, frames: Iterable[bytes], at: int | None = None) -> None:
        """Have the pod, or another, send frames to the node as they are."""
        there = self.pod if at is None else at
        with netns.entered(there), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as link:
            link.bind(("eth0", 0))
            for frame in frames:
                link.send(bytes.fromhex(MACS[0].replace(":", "")) + frame[6:])


@contextmanager
def routed(namespaces: Any, program: Any) -> Iterator[World]:
    """Wires the pod as netmgr wires pods."""
    pod, host = namespaces("pod"), namespaces("host")
    for inside in (nullcontext(), netns.entered(pod.descriptor), netns.entered(host.descriptor)):
        with inside:
            set_kernel("ipv6/conf/default/accept_dad", 0)
    set_kernel("ipv4/ip_forward", 1)
    set_kernel("ipv6/conf/all/forwarding", 1)
    pairs = "".join(
        f"link add {link} address {MACS[0]} type veth peer name eth0 address {MACS[1]} "
        f"netns {far.name}\n"
        for link, far in ((LINK, pod), ("uplink", host))
    )
    program("ip -b -", pairs + NODE_WIRING)
    program(f"ip -n {host.name} -b -", HOST_WIRING)
    program(f"ip -n {pod.name} -b -", POD_WIRING)
    for far in (pod, host):
        with netns.entered(far.descriptor):
            wait_until_up("eth0")
    wait_until_up(LINK, "uplink")
    with ExitStack() as sockets:
        yield World(pod.descriptor, host.descriptor, sockets=sockets)


LINKS_KNOWN = ("link known", "link unknown")


def guarded(backend: RuleBackend, policy: Policy, *, knows_links: bool) -> Rules:
    """The node's rules, applied, with the pod admitted."""
    rules = Rules(backend, policy)
    if knows_links:
        rules.know(POD_ADDRESSES, "research", LINK)
    rules.apply(rules.plan(POD_ADDRESSES))
    return rules


def counts(rules: Rules) -> dict[Counter, tuple[int, int]]:
    """Bytes and packets of the counters that are not zero."""
    return {
        sample.counter: (sample.bytes, sample.packets) for sample in rules.read() if sample.packets
    }


def refused(rules: Rules) -> dict[str, int]:
    return {one["reason"]: one["packets"] for one in rules.drops().refused}
