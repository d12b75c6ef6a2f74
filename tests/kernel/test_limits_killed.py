"""An agent that is killed while it changes limits: pods stay limited, and connected."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest

from netmgr.documents.limits import Limit
from netmgr.documents.node import Backend
from netmgr.limits import tree
from netmgr.limits.rules import KnownPeers
from netmgr.limits.shaper import Shaper
from netmgr.limits.tree import Tree
from netmgr.model import Attachment, AttachmentKey, PodRef, Traffic
from netmgr.prefixes import Prefix
from tests.failpoints import steps
from tests.failpoints.steps import Step
from tests.kernel.spending import Spender, run
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.slow]

BEFORE = [Limit.model_validate({"pods": "*/*", "internet-out": "20M", "internet-in": "20M"})]
AFTER = [Limit.model_validate({"namespaces": "*", "internet-out": "10M", "internet-in": "10M"})]
PEERS = KnownPeers((Prefix.parse("10.0.0.0/8"), Prefix.parse("fc00::/7")))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    name = f"killed-{os.getpid()}"
    with World(
        cluster(nodes=1, pods=1), backend=Backend.NFTABLES, name=name, exporters=False
    ) as made:
        yield made


def trees(world: World, limits: list[Limit]) -> dict[Traffic, Tree]:
    (node,) = world.nodes
    pods = [
        Attachment(
            AttachmentKey(one["container_id"], "eth0"),
            PodRef(one["namespace"], one["pod"]),
            (),
            one["host_link"],
            "",
        )
        for one in node.ask("pods")["attachments"]
    ]
    return {way: tree.tree(limits, pods, way, time.time()) for way in Traffic}


def killed_at(
    step: int, world: World, before: dict[Traffic, Tree], after: dict[Traffic, Tree]
) -> bool:
    """Change limits in a process that is killed before its step of this number; False if it came
    to its end first.
    """
    (node,) = world.nodes
    child = os.fork()
    if not child:
        try:
            with wiring.inside(node.namespace), closing(Shaper(PEERS, lambda _: {})) as shaper:
                shaper.apply(lambda: before)
                _kill_at(step)
                shaper.apply(lambda: after)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _kill_at(number: int) -> None:
    taken = count()

    @contextmanager
    def watcher(_: Step) -> Iterator[None]:
        if next(taken) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        yield

    steps.watch(watcher)


def limits_in_force(node: LabNode, link: str) -> set[int]:
    """Megabits a second of the classes that the link's chains lead to, which all exist."""
    listed = run(node, "nft", "list", "table", "netdev", "netmgr").stdout
    found = set()
    for way, ifb in (("out", "netmgr-out"), ("in", "netmgr-in")):
        chain = re.search(rf"(?sm)chain internet_{way}_{link} {{(.*?)^\t}}", listed)
        assert chain, f"{link} is not limited"
        classes = run(node, "tc", "class", "show", "dev", ifb).stdout
        for number in set(re.findall(r"priority set (1:[0-9a-f]+)", chain[1])):
            rate = re.search(rf"class htb {number} .* ceil (\d+)Mbit", classes)
            assert rate, f"{number} passes without a limit"
            found.add(int(rate[1]))
    return found


def test_killed_at_any_step_it_leaves_pods_limited_and_connected(world: World) -> None:
    (node,), (pod,) = world.nodes, world.pods()
    link = node.ask("pods")["attachments"][0]["host_link"]
    for old, new in ((BEFORE, AFTER), (AFTER, BEFORE)):
        before, after = trees(world, old), trees(world, new)
        step = 0
        while killed_at(step, world, before, after):
            rates = limits_in_force(node, link)
            assert rates <= {20, 10}
            assert rates, step
            # Waits until it has arrived.
            Spender(world, node, pod).send()
            step += 1
        assert step > 5
        assert limits_in_force(node, link) == {10 if new is AFTER else 20}
