"""A node whose pods all come at once, and all go at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from pyroute2 import IPRoute

from netmgr.agent.cni.node import TURNS
from netmgr.documents.node import Backend
from netmgr.kernel.routes import RTN_BLACKHOLE
from netmgr.model import LINK_PREFIX, ROUTE_PROTOCOL
from netmgr.prefixes import Address
from tests.kernel.namespaces import inside
from tests.kernel.stalling import stalled
from tests.lab import wiring
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Pod, cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

CROWD = 100
HANGING = 2 * TURNS
ANSWERED_SECONDS = 5.0
Subject = TypeVar("Subject")
Outcome = TypeVar("Outcome")


@pytest.fixture(params=[Backend.NFTABLES, Backend.IPTABLES_LEGACY], ids=str)
def node(request: pytest.FixtureRequest, lab_name: str) -> Iterator[LabNode]:
    ranges = ["10.128.0.0/25", "fd00:128::/112"]
    settings = {"ranges": ranges, "pool": {"cooldown_seconds": 3600}}
    with World(
        cluster(nodes=1, pods=0), backend=request.param, name=lab_name, settings=settings
    ) as world:
        yield world.nodes[0]


def at_once(action: Callable[[Subject], Outcome], subjects: Sequence[Subject]) -> list[Outcome]:
    with ThreadPoolExecutor(len(subjects)) as crowd:
        return list(crowd.map(action, subjects))


def kernel_leftovers(node: LabNode) -> list[str]:
    """Links and routes of pods in the node's namespace."""
    with wiring.inside(node.namespace), IPRoute() as route:
        links = [link.get_attr("IFLA_IFNAME") for link in route.get_links()]
        routes = [
            str(entry.get_attr("RTA_DST"))
            for entry in route.get_routes()
            # The blackholes of the node's ranges stay, whatever pods there are.
            if entry["proto"] == ROUTE_PROTOCOL and entry["type"] != RTN_BLACKHOLE
        ]
    return [name for name in links if name.startswith(LINK_PREFIX)] + routes


def counted_in_kernel(node: LabNode, addresses: Iterable[Address]) -> list[Address]:
    """Which of the addresses the rules know, of either backend."""
    listed = inside(node.namespace, "nft", "list", "ruleset")
    listed += inside(node.namespace, "ipset", "list")
    words = set(listed.replace(",", " ").split())
    return [address for address in addresses if str(address) in words]


def pool(node: LabNode) -> dict[str, tuple[int, int]]:
    """(allocated, cooling down) by family."""
    return {
        state["family"]: (state["allocated"], state["cooldown"])
        for state in node.snapshot()["pool"]
    }


@pytest.mark.alone  # nobody waits for a turn longer than LOCK_SECONDS
def test_a_hundred_pods_come_at_once_and_go_at_once_without_duplicate_or_leak(node: LabNode):
    sandboxes = at_once(node.add, [f"pod-{number}" for number in range(CROWD)])
    held = [address for sandbox in sandboxes for address in sandbox.addresses]
    assert len(held) == len(set(held)) == 2 * CROWD
    assert pool(node) == {"ipv4": (CROWD, 0), "ipv6": (CROWD, 0)}
    for sandbox in sandboxes[:: CROWD // 10]:
        node.runtime.check(sandbox)
    assert counted_in_kernel(node, held) == held
    at_once(node.runtime.delete, sandboxes)
    eventually(lambda: not kernel_leftovers(node), lambda: f"left: {kernel_leftovers(node)}")
    assert counted_in_kernel(node, held) == []
    assert pool(node) == {"ipv4": (0, CROWD), "ipv6": (0, CROWD)}
    assert node.runtime.sandboxes() == []
    assert {row["live"] for row in node.snapshot()["pods"]} <= {False}


@pytest.mark.alone
@pytest.mark.parametrize("node", [Backend.NFTABLES], indirect=True, ids=str)
def test_adds_are_answered_while_many_requests_of_one_pod_hang_and_others_leave(
    node: LabNode, tmp_path: Path
):
    gone = at_once(node.add, [f"gone-{number}" for number in range(CROWD // 2)])
    stuck = Sandbox(Pod("stuck", node.name), "stuck-container", "uid-stuck", tmp_path / "sandbox")
    with stalled(stuck.netns) as stall, ThreadPoolExecutor(1 + HANGING + CROWD // 10) as runtime:
        adding = runtime.submit(node.runtime.execute, "ADD", stuck)
        eventually(stall.holds_somebody)
        assert pool(node)["ipv4"] == (len(gone), 0), (
            "no address is held before the sandbox is known to be there"
        )
        deletions = [runtime.submit(node.runtime.execute, "DEL", stuck) for _ in range(HANGING)]
        leaving = [runtime.submit(node.runtime.delete, sandbox) for sandbox in gone]
        added, longest = [], 0.0
        while len(added) < CROWD // 2 and not all(deletion.done() for deletion in leaving):
            began = time.monotonic()
            added.append(node.add(f"lucky-{len(added)}"))
            longest = max(longest, time.monotonic() - began)
        assert added
        assert not any(request.done() for request in (adding, *deletions))
        assert longest < ANSWERED_SECONDS
        for deletion in leaving:
            deletion.result(timeout=PATIENCE)
        stall.end()
        with pytest.raises(LabError, match="code 4"):
            adding.result(timeout=PATIENCE)
        for deletion in deletions:
            deletion.result(timeout=PATIENCE)
    at_once(node.runtime.delete, added)
    eventually(lambda: not kernel_leftovers(node), lambda: f"left: {kernel_leftovers(node)}")
    assert pool(node)["ipv4"] == (0, len(gone) + len(added))
