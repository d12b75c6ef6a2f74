"""Rates that limits give, from 10 Mbit/s to 1 Gbit/s, also to a peer that is 40 ms away.

`make limits` runs these on a kernel that has netem, in a virtual machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flows import MEGABIT, ON_THE_WIRE, flows, rate
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

RATES = (10, 100, 1000)
TOLERANCE = {10: 0.10, 100: 0.05, 1000: 0.05}
HEADERS = {Family.V4: 1.0, Family.V6: (1514 / 1428) / ON_THE_WIRE}
"""IPv6's are longer."""
ATTEMPTS = 24
LIMITS = [
    {"pods": f"*/at-{each}-*", "internet-in": f"{each}M", "internet-out": f"{each}M"}
    for each in RATES
]
ROOM = "4096 1048576 33554432"
"""For what is under way at 1 Gbit/s and 40 ms: 5 MB."""


@pytest.fixture(scope="module", params=[0, 40], ids=["near", "40ms"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    room = replace(cluster(pods=4), pods=())
    name = f"rates-{os.getpid()}-{request.param}"
    settings = {"limits": LIMITS}
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made:
        with wiring.inside(made.internet):
            _make_room()
            delay = f"tc qdisc add dev eth0 root netem limit 20000 delay {request.param}ms"
            subprocess.run(delay.split(), check=True)
        yield made


@pytest.mark.parametrize("family", Family)
@pytest.mark.parametrize("way", ["out", "in"])
@pytest.mark.parametrize("many", [1, 8])
@pytest.mark.parametrize("limit", RATES)
def test_a_limit_is_attained_and_kept(
    world: World, limit: int, many: int, way: str, family: Family
) -> None:
    node, internet = world.nodes[0], INTERNET[family]
    pod = node.add(f"at-{limit}-{many}-{way}-{family.value}")
    try:
        with wiring.inside(pod.netns):
            _make_room()
        with flows(pod.netns, world.internet, internet, many, to_server=way == "out") as found:
            # The first seconds are TCP's own. What a connection loses when it finds the limit, it
            # takes 14 s to have again at 1 Gbit/s and 40 ms (RFC 9438, K).
            least, most = (limit * (1 + sign * TOLERANCE[limit]) for sign in (-1, 1))
            receiver = world.internet if way == "out" else pod.netns
            attained, passed = [0.0], [0.0]
            while attained[-1] < least and len(attained) <= ATTEMPTS:
                before, began = arrived(receiver), time.monotonic()
                attained.append(rate(found) * HEADERS[family])
                seconds = time.monotonic() - began
                passed.append((arrived(receiver) - before) * 8 / seconds / MEGABIT)
            assert least <= attained[-1], attained
            # On the link: a receiver that waited for one lost packet gets all behind it at once.
            assert max(passed) <= most, passed
    finally:
        node.runtime.delete(pod)


def arrived(receiver: Path) -> int:
    """The bytes that have come over the link of the receiving end."""
    (shown,) = json.loads(inside(receiver, *["ip", "-j", "-s", "link", "show", "dev", "eth0"]))
    return int(shown["stats64"]["rx"]["bytes"])


def _make_room() -> None:
    for name in ("tcp_rmem", "tcp_wmem"):
        subprocess.run(["sysctl", "-qw", f"net.ipv4.{name}={ROOM}"], check=True)
