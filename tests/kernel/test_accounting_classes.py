"""Traffic classes of node.yaml: every byte in one class, all of them the pod's whole, and what a
former class counted last stays.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import gap_counts, talk
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.namespaces import host_link, inside
from tests.lab.capture import Tally
from tests.lab.exchange import End, datagrams, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World, counted_by

pytestmark = pytest.mark.root

OTHER = {
    Backend.NFTABLES: Backend.IPTABLES_LEGACY,
    Backend.IPTABLES_LEGACY: Backend.NFTABLES,
    Backend.LINKS: Backend.NFTABLES,
}
NEIGHBOURLY = 4
"""Packets that node and pod may exchange meanwhile to find each other: they pass the link and no
forward hook.
"""
SIZES = [1, 700, 1200]
# The second node's ranges are a class to both nodes.
FAR = {"name": "far", "prefixes": [str(block) for block in cluster(pods=100).nodes[1].ranges]}
WORLD = {
    "settings": {"accounting": {"min_reading_seconds": 0, "classes": [FAR]}},
    "exporters": False,
}


backend = one_of(EVERY_WAY_OF_COUNTING)


def told(node: LabNode, pod: Sandbox) -> dict[str, Tally]:
    """What the agent tells of a pod, by traffic, where there was any."""
    return {
        row["traffic"]: Tally(row["bytes"], row["packets"])
        for row in node.snapshot()["pods"]
        if row["pod"] == pod.pod.name and row["packets"]
    }


def test_what_a_pod_exchanges_is_told_class_by_class_and_nothing_twice(
    world: World, new_pod: Callable[[str], Sandbox]
) -> None:
    pod, near, far = new_pod("node-1"), new_pod("node-1"), new_pod("node-2")
    expected: dict[str, Tally] = {}

    def exchange(kind: str, family: Family, peer: End) -> None:
        own = End(pod.netns, pod.address(family))
        heard = datagrams(own, peer, SIZES, SIZES[1:] + SIZES[:1])
        for way, tally in (("out", heard.forth), ("in", heard.back)):
            traffic = f"{kind}-{way}"
            expected[traffic] = expected.get(traffic, Tally()) + tally

    for family in Family:
        exchange("internet", family, End(world.internet, INTERNET[family]))
        exchange("far", family, End(far.netns, far.address(family)))
        exchange("internal", family, End(near.netns, near.address(family)))
    node = world.node("node-1")
    assert told(node, pod) == expected
    mirrored = {"internal-in": expected["internal-out"], "internal-out": expected["internal-in"]}
    assert told(node, near) == mirrored
    # To the other node the first one's pods are no class.
    there = {"internal-in": expected["far-out"], "internal-out": expected["far-in"]}
    assert told(world.node("node-2"), far) == there


@pytest.mark.parametrize("family", Family, ids=lambda family: f"v{family.value}")
def test_the_classes_add_up_to_all_that_passes_the_pods_link(
    world: World, node: LabNode, new_pod: Callable[[str], Sandbox], family: Family
) -> None:
    pod, near, far = new_pod("node-1"), new_pod("node-1"), new_pod("node-2")
    # It asks for routers, ever more rarely.
    inside(pod.netns, "sysctl", "-qw", "net.ipv6.conf.eth0.accept_ra=0")
    own, before = End(pod.netns, pod.address(family)), carried(node, pod)
    for peer in (
        End(world.internet, INTERNET[family]),
        *(End(peer.netns, peer.address(family)) for peer in (near, far)),
    ):
        stream(own, peer, 200_000, 50_000)
    now, counted = carried(node, pod), told(node, pod)
    assert (now["out"] - before["out"]).bytes > 600_000
    for way in ("in", "out"):
        classes = [tally for kind, tally in counted.items() if kind.endswith(way)]
        assert len(classes) == 3
        rest = now[way] - before[way] - sum(classes, Tally())
        assert 0 <= rest.packets <= NEIGHBOURLY
        assert 0 <= rest.bytes <= 100 * NEIGHBOURLY


def carried(node: LabNode, pod: Sandbox) -> dict[str, Tally]:
    """What the kernel counts on the node's end of the pod's link, without Ethernet's 14 bytes a
    packet.
    """
    (link,) = json.loads(
        inside(node.namespace, "ip", "-s", "-j", "link", "show", host_link(node, pod))
    )
    counts = link["stats64"]
    return {
        way: Tally(counts[side]["bytes"] - 14 * counts[side]["packets"], counts[side]["packets"])
        for way, side in (("in", "tx"), ("out", "rx"))
    }


@pytest.fixture
def changing(backend: Backend, lab_name: str) -> Iterator[World]:
    """A class for the internet host, which the tests remove; nothing is read by itself."""
    patient = {"reading_seconds": 300, "min_reading_seconds": 0}
    accounting = {**patient, "classes": [internet_as("far")]}
    settings = {"accounting": accounting, "reconcile_seconds": 3600}
    room = cluster(nodes=1, pods=1)
    with World(room, backend=backend, name=lab_name, settings=settings, exporters=False) as made:
        yield made


def internet_as(name: str) -> dict[str, Any]:
    return {"name": name, "prefixes": [str(address.prefix) for address in INTERNET.values()]}


def counted(node: LabNode, kind: str) -> dict[str, int]:
    """What the node's namespaces were counted for in one class, in bytes."""
    rows, traffics = node.snapshot()["namespaces"], (f"{kind}-in", f"{kind}-out")
    return {row["traffic"]: row["bytes"] for row in rows if row["traffic"] in traffics}


def document(node: LabNode, backend: Backend, *classes: dict[str, Any]) -> None:
    """Have the node's document name these classes and no others."""
    kept = yaml.safe_load(node.document.read_text())
    kept |= counted_by(backend, {**kept["accounting"], "classes": list(classes)})
    node.document.write_text(yaml.safe_dump(kept))


@pytest.mark.slow
@pytest.mark.parametrize("moves", [False, True], ids=["same-backend", "other-backend"])
def test_what_a_former_class_counted_unread_is_not_lost(
    changing: World,
    backend: Backend,
    moves: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    (node,), (pod,) = changing.nodes, changing.pods()
    sent = talk(changing, pod, SIZES)
    assert counted(node, "far") == {"far-in": sent, "far-out": sent}
    sent += talk(changing, pod, SIZES)
    node.kill_agent()
    document(node, OTHER[backend] if moves else backend)
    node.start_until_ready()
    former = {"far-in": sent, "far-out": sent}
    assert counted(node, "far") == former
    for command in (["nft", "list", "sets"], ["ipset", "list", "-n"]):
        listed = programs.run(["nsenter", f"--net={node.namespace}", *command])
        assert b"far" not in listed.stdout
    now = talk(changing, pod, SIZES)
    internet = {"internet-in": now, "internet-out": now}
    assert counted(node, "internet") == internet
    node.restart_after_kill()
    assert (counted(node, "far"), counted(node, "internet")) == (former, internet)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.LINKS], indirect=True, ids=str)
def test_a_further_class_is_no_gap_and_counts_from_zero(changing: World, backend: Backend) -> None:
    (node,), (pod,) = changing.nodes, changing.pods()
    talk(changing, pod, SIZES)
    node.stop_agent()
    document(node, backend, internet_as("near"))
    node.start_until_ready()
    sent = talk(changing, pod, SIZES)
    assert counted(node, "near") == {"near-in": sent, "near-out": sent}
    assert gap_counts(node) == {}
