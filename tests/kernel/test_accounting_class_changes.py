"""Classes of traffic that a node document no longer names: what they counted last stays, their sets
go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]

OTHER = {Backend.NFTABLES: Backend.IPTABLES_LEGACY, Backend.IPTABLES_LEGACY: Backend.NFTABLES}
SIZES = [1, 700, 1200]


@pytest.fixture
def world(backend: Backend, lab_name: str) -> Iterator[World]:
    """One class for the internet host; nothing is read by itself while a test lasts."""
    classes = [{"name": "far", "prefixes": [str(address.prefix) for address in INTERNET.values()]}]
    accounting = {"reading_seconds": 300, "min_reading_seconds": 0, "classes": classes}
    settings = {"accounting": accounting, "reconcile_seconds": 3600}
    with World(
        cluster(nodes=1, pods=1), backend=backend, name=lab_name, settings=settings, exporters=False
    ) as made:
        yield made


def exchanged(world: World) -> int:
    """Have the first node's pod exchange something with the class, in both families; bytes each
    way.
    """
    pod = world.node("node-1").runtime.sandboxes()[0]
    ends = [
        (End(pod.netns, pod.address(family)), End(world.internet, INTERNET[family]))
        for family in Family
    ]
    return sum(datagrams(own, peer, SIZES, SIZES).forth.bytes for own, peer in ends)


def counted(node: LabNode, kind: str) -> dict[str, int]:
    """What the node's namespaces were counted for in one class, in bytes."""
    totals = node.snapshot()["namespaces"]
    return {
        one["traffic"]: one["bytes"] for one in totals if one["traffic"].rpartition("-")[0] == kind
    }


def sets(node: LabNode) -> str:
    """The names of all sets in the node's namespace."""
    enter = ["nsenter", f"--net={node.namespace}"]
    listings = [
        programs.run([*enter, *command])
        for command in (["nft", "list", "sets"], ["ipset", "list", "-n"])
    ]
    return "\n".join(one.stdout.decode() for one in listings)


def document(node: LabNode, backend: Backend, classes: tuple[dict[str, Any], ...] = ()) -> None:
    """Have the node's document name these classes and no others."""
    kept = yaml.safe_load(node.document.read_text())
    kept["accounting"]["classes"] = list(classes)
    kept["backend"] = str(backend)
    node.document.write_text(yaml.safe_dump(kept))


@pytest.mark.parametrize("moves", [False, True], ids=["same-backend", "other-backend"])
def test_what_a_former_class_counted_unread_is_not_lost(
    world: World,
    backend: Backend,
    moves: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    node = world.node("node-1")
    sent = exchanged(world)
    assert counted(node, "far") == {"far-in": sent, "far-out": sent}
    unread = exchanged(world)
    node.kill_agent()
    document(node, OTHER[backend] if moves else backend)
    node.start_until_ready()
    assert counted(node, "far") == {"far-in": sent + unread, "far-out": sent + unread}
    assert "far" not in sets(node)
    now = exchanged(world)
    internet = {"internet-in": now, "internet-out": now}
    assert counted(node, "internet") == internet
    node.restart_after_kill()
    assert counted(node, "far") == {"far-in": sent + unread, "far-out": sent + unread}
    assert counted(node, "internet") == internet


def test_a_further_class_is_no_gap_and_counts_from_zero(world: World, backend: Backend) -> None:
    node = world.node("node-1")
    exchanged(world)
    node.stop_agent()
    near = {"name": "near", "prefixes": [str(address.prefix) for address in INTERNET.values()]}
    document(node, backend, (near,))
    node.start_until_ready()
    sent = exchanged(world)
    assert counted(node, "near") == {"near-in": sent, "near-out": sent}
    assert {gap["reason"]: gap["count"] for gap in node.snapshot()["gaps"] if gap["count"]} == {}
