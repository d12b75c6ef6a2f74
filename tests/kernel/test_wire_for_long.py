"""Wire bytes of everything at once, for some seconds, or for an hour (`make wire`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Address, Family
from tests.kernel.namespaces import inside
from tests.kernel.wires import KNOWS_TUNNELS, assert_exact, counted, in_parts, vxlan, wire_of
from tests.lab.exchange import End, Frontend, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

SECONDS = float(os.environ.get("NETMGR_WIRE_SECONDS", "20"))
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(2 * SECONDS + 120)]

ROUNDS = 20
"""From one comparison to the next."""
MOST_BYTES = 3_000_000
SERVICES = {Family.V4: Address.parse("10.96.7.7"), Family.V6: Address.parse("fd00:96::7")}
PORT = 4243
QUIET_SECONDS = 2.0
"""The last packet of a connection may be lost, and come again this late."""


@contextmanager
def losing(namespace: Path) -> Iterator[None]:
    """Of TCP's packets one in a hundred is lost where it arrives, behind the wire."""
    chain = "type filter hook input priority 0"
    rule = "meta l4proto tcp numgen random mod 100 0 drop"
    inside(namespace, "nft", f"table inet losing {{ chain arriving {{ {chain}; {rule}; }}; }}")
    try:
        yield
    finally:
        inside(namespace, "nft", "delete table inet losing")


def serve(node: LabNode) -> None:
    """Have Services lead to the internet, as kube-proxy does."""
    rules = "".join(
        f"{what} daddr {SERVICES[family]} dnat {what} to {INTERNET[family]};"
        for family, what in ((Family.V4, "ip"), (Family.V6, "ip6"))
    )
    chain = "type nat hook prerouting priority dstnat"
    inside(node.namespace, "nft", f"table inet services {{ chain to {{ {chain}; {rules} }}; }}")


def tunnelled(world: World, node: LabNode, pod: Sandbox) -> tuple[End, End]:
    """The ends of a tunnel that a pod has made itself."""
    near, far = (Address.parse(f"192.168.77.{number}") for number in (1, 2))
    outside, of_node = INTERNET[Family.V4], node.node.address(Family.V4)
    vxlan(pod.netns, "tunnel", str(near), pod.address(Family.V4), outside)
    vxlan(world.internet, "tunnel", str(far), outside, of_node)
    return End(pod.netns, near), End(world.internet, far)


def conversations(
    random: Random, world: World, node: LabNode, pod: Sandbox
) -> list[Callable[[], object]]:
    """All kinds, each of another size whenever it is had."""

    def converse(own: End, peer: End, service: Address | None = None) -> None:
        size, answer = random.randint(0, MOST_BYTES), random.randint(0, MOST_BYTES)
        frontend = Frontend(service, PORT) if service else None
        stream(own, peer, size, answer, port=PORT if service else 0, frontend=frontend)

    kinds: list[Callable[[], object]] = []
    for family, service in SERVICES.items():
        ends = pod.end(family), world.outside(family)
        kinds += [partial(converse, *ends), partial(converse, *ends, service)]
        kinds.append(lambda ends=ends: in_parts(*ends, random.randint(37, 1200)))
    if KNOWS_TUNNELS:
        kinds.append(partial(converse, *tunnelled(world, node, pod)))
    return kinds


def test_everything_at_once_is_counted_as_a_wire_carries_it() -> None:
    seed = int(os.environ.get("NETMGR_WIRE_SEED", time.time_ns() % 10_000))
    random = Random(seed)  # noqa: S311 -- no secret
    room, name = replace(cluster(), pods=()), f"wire-{os.getpid()}"
    settings = {"accounting": {"at": "links"}}
    with ExitStack() as stack:
        made = World(room, backend=Backend.NFTABLES, name=name, settings=settings)
        world = stack.enter_context(made)
        node = world.nodes[0]
        pod = node.add("mixed")
        wire = stack.enter_context(wire_of(world, node, pod))
        serve(node)
        kinds = conversations(random, world, node, pod)
        for namespace in (world.internet, pod.netns):
            stack.enter_context(losing(namespace))
        until, number = time.monotonic() + SECONDS, 0
        while number % ROUNDS or time.monotonic() < until:
            random.choice(kinds)()
            number += 1
            wire.drain()
            if number % ROUNDS == 0:
                assert_exact(node, pod, wire, quiet_seconds=QUIET_SECONDS)
        total = {way: row["wire"] for way, row in counted(node, pod).items()}
    sys.stdout.write(f"seed {seed}: {number} conversations, {total} bytes on the wire\n")
