"""Uplinks of several kinds, by which node and host reach each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext

from netmgr.kernel import netns
from netmgr.model import Counter, Traffic
from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from tests.contracts.routed import INTERNET, NODES, PODS, World, counts, of_pod
from tests.contracts.star import HEADERS, MACS, PORT, wait_until_up

NEAR, FAR = "192.0.2.1", "192.0.2.9"
CARRIERS = NODES[Family.V4], INTERNET[Family.V4]
ABOVE_UPLINK = {
    "a bridge": "link add wide address {mac} type bridge\nlink set uplink master wide",
    "a macvlan": "link add wide link uplink address {mac} type macvlan mode bridge",
}
ETHERNET = ("bridge", "vxlan id 7 dstport 4789")
BOND = "bond miimon 10"
OF_PARTS = ("bridge", BOND)


def widen(world: World, program: Callable[..., str], kind: str) -> None:
    """Have the node reach the host by the link `wide`: of parts, or a tunnel over the uplink."""
    if kind in OF_PARTS:
        program(f"ip link add wide address {MACS[0]} type {kind}")
        program("ip link add part type veth peer name far")
        # A bond takes no link that is up.
        program("ip link set part master wide")
        program("ip link set part up")
        program(f"ip link set far name wide netns /proc/{os.getpid()}/fd/{world.host}")
    for far, (own, other) in enumerate(((NEAR, FAR), (FAR, NEAR))):
        with netns.entered(world.host) if far else nullcontext():
            if kind not in OF_PARTS:
                local, remote = CARRIERS[::-1] if far else CARRIERS
                program(f"ip link add wide type {kind} local {local} remote {remote}")
            if kind in (*ETHERNET, BOND):
                program(f"ip link set wide address {MACS[far]}")
                program(f"ip neigh add {other} lladdr {MACS[not far]} dev wide")
            program(f"ip addr add {own}/32 dev wide")
            program("ip link set wide up")
            program(f"ip route add {other}/32 dev wide")
    if kind in (*ETHERNET, BOND):
        wait_until_up("wide")


def put_above(world: World, program: Callable[..., str], kind: str) -> None:
    """Have the node reach the host by the link `wide`, whose packets pass its uplink as well."""
    mac = "02:00:00:00:00:03"
    program("ip -b -", ABOVE_UPLINK[kind].format(mac=mac))
    program(f"ip addr add {NEAR}/32 dev wide")
    program("ip link set wide up")
    program(f"ip route add {FAR}/32 dev wide")
    program(f"ip neigh add {FAR} lladdr {MACS[1]} dev wide")
    with netns.entered(world.host):
        program(f"ip addr add {FAR}/32 dev lo")
        program(f"ip route add {NEAR}/32 dev eth0")
        program(f"ip neigh add {NEAR} lladdr {mac} dev eth0")
    wait_until_up("wide")


def exchange_is_counted_once(world: World, rules: Rules) -> None:
    """What the pod sends to the host's end of it, and gets from there."""
    family = Family.V4
    pod = world.socket(world.pod, family, PODS[family], PORT)
    host = world.socket(world.host, family, FAR, PORT)
    for size in (1, 100, 1000):
        assert world.reaches(pod, host, FAR, size) == NEAR
        host.sendto(bytes(size), (NEAR, PORT))
        assert len(pod.recv(2000)) == size
    expected, shown = (1101 + 3 * HEADERS[family], 3), counts(rules)
    for traffic in Traffic:
        of_all = [Counter(subject, family, traffic) for subject in ("PODS", "FORWARD")]
        counters = (of_pod(family, traffic), *of_all)
        assert {shown[counter] for counter in counters} == {expected}, traffic
