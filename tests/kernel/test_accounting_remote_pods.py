"""Traffic that enters by one node for a pod of another, as kube-proxy forwards it for a NodePort.

Rules as kube-proxy writes them: the node where a client's packets enter translates their
destination, and gives them its own address as source, so that the pod's node sees no internet.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.namespaces import inside
from tests.kernel.spending import IN, OUT
from tests.lab.exchange import End, Frontend, Heard, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

FORTH, BACK = [100, 900, 1400], [10, 1200, 700]
NODE_PORT, PORT = 30080, 4000
Amounts = dict[tuple[str, str], tuple[int, int]]
WORLD = {
    "settings": {
        "accounting": {
            "min_reading_seconds": 0,
            "reading_seconds": 60,
            "cluster_cidrs": ["10.128.0.0/14", "fd00:128::/32"],
        },
        "reconcile_seconds": 3600,
    },
    "exporters": False,
}


backend = one_of(EVERY_WAY_OF_COUNTING)


@pytest.fixture
def remote(node: LabNode, new_pod: Callable[[str], Sandbox]) -> Sandbox:
    """A pod of the other node, to which this node forwards its port."""
    made = new_pod("node-2")
    proxy(node, made)
    return made


def origins(node: LabNode) -> Amounts:
    # The first reading of two settles what the second one shows.
    node.snapshot()
    return {
        (one["origin"], one["traffic"]): (one["bytes"], one["packets"])
        for one in node.snapshot()["origins"]
    }


def by_address(node: LabNode) -> Amounts:
    return {
        (one["address"], one["traffic"]): (one["bytes"], one["packets"])
        for one in node.snapshot()["remote_pods"]
    }


def gained(before: Amounts, after: Amounts) -> Amounts:
    return {
        key: (after[key][0] - before[key][0], after[key][1] - before[key][1])
        for key in after
        if after[key] != before[key]
    }


def amounts(whose: str, heard: Heard, times: int = 1) -> Amounts:
    """What a client sent and got, so many times."""
    tallies = {IN: heard.forth, OUT: heard.back}
    return {
        (whose, way): (times * tally.bytes, times * tally.packets) for way, tally in tallies.items()
    }


def proxy(node: LabNode, pod: Sandbox) -> None:
    """Forward the node port to a pod, with this node's address as source."""
    rules = "\n".join(
        f"add rule inet proxy prerouting {ip} daddr {address} udp dport {NODE_PORT} "
        f"dnat {ip} to {target}:{PORT}"
        for ip, address, target in (
            ("ip", node.node.address(Family.V4), pod.address(Family.V4)),
            ("ip6", node.node.address(Family.V6), f"[{pod.address(Family.V6)}]"),
        )
    )
    text = f"""
        add table inet proxy
        flush table inet proxy
        add chain inet proxy prerouting {{ type nat hook prerouting priority -100; }}
        add chain inet proxy postrouting {{ type nat hook postrouting priority 100; }}
        add rule inet proxy postrouting ct status dnat masquerade
        {rules}"""
    inside(node.namespace, "nft", text)


def ask(world: World, node: LabNode, pod: Sandbox, family: Family) -> Heard:
    """A client of the internet talks to the pod by the node's port."""
    return datagrams(
        End(world.internet, INTERNET[family]),
        End(pod.netns, pod.address(family)),
        FORTH,
        BACK,
        port=PORT,
        frontend=Frontend(node.node.address(family), NODE_PORT),
    )


@pytest.mark.parametrize("family", Family)
def test_what_enters_for_another_nodes_pod_is_the_entry_nodes_and_not_unattributed(
    world: World, node: LabNode, remote: Sandbox, family: Family, backend: Backend
) -> None:
    other = world.node("node-2")
    before, before_there = origins(node), origins(other)
    heard = ask(world, node, remote, family)
    assert heard.peer == node.node.address(family), "the entry node gave its own address"
    assert gained(before, origins(node)) == amounts("remote-pods", heard)
    assert gained(before_there, origins(other)) == {}
    if backend is Backend.NFTABLES:
        expected = amounts(str(remote.address(family)), heard)
        assert by_address(node).items() >= expected.items()
    else:
        assert by_address(node) == {}
    (audited,) = [row for row in node.ask("audit")["forward"] if row["traffic"] == IN]
    assert audited["forwarded"] == audited["attributed"]


def test_what_enters_for_a_pod_of_this_node_is_the_pods(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    proxy(node, pod)
    before = origins(node)
    heard = ask(world, node, pod, Family.V4)
    assert gained(before, origins(node)) == amounts("pods", heard)


def test_the_agents_restart_loses_nothing(
    world: World, node: LabNode, remote: Sandbox, backend: Backend
) -> None:
    before = origins(node)
    ask(world, node, remote, Family.V4)
    node.kill_agent()
    heard = ask(world, node, remote, Family.V4)
    node.start_until_ready()
    assert gained(before, origins(node)) == amounts("remote-pods", heard, times=2)
    if backend is Backend.NFTABLES:
        expected = amounts(str(remote.address(Family.V4)), heard, times=2)
        assert by_address(node).items() >= expected.items()
        assert not any(row["count"] for row in node.snapshot()["drift_repaired"])


# ipset's elements are not added by a rule.
@ONLY_NFTABLES
def test_a_full_set_costs_the_breakdown_alone(world: World, node: LabNode, remote: Sandbox) -> None:
    address = str(remote.address(Family.V4))
    others = ", ".join(f"10.130.{number >> 8}.{number & 255}" for number in range(1024))
    for words in (
        "flush set inet netmgr remote_in4",
        f"add element inet netmgr remote_in4 {{ {others} }}",
    ):
        inside(node.namespace, "nft", words)
    before = origins(node)
    heard = ask(world, node, remote, Family.V4)
    assert gained(before, origins(node)) == amounts("remote-pods", heard)
    assert (address, IN) not in by_address(node)
    inside(node.namespace, "nft", "flush set inet netmgr remote_in4")
    ask(world, node, remote, Family.V4)
    assert by_address(node)[address, IN] == amounts(address, heard)[address, IN]


@ONLY_NFTABLES
def test_another_set_in_its_place_is_made_anew(
    world: World, node: LabNode, remote: Sandbox
) -> None:
    node.kill_agent()
    for words in (
        "flush chain inet netmgr before_srcnat",
        "delete set inet netmgr remote_in4",
        "add set inet netmgr remote_in4 { type ipv4_addr; size 5; flags dynamic; }",
    ):
        inside(node.namespace, "nft", words)
    node.start_until_ready()
    heard = ask(world, node, remote, Family.V4)
    expected = amounts(str(remote.address(Family.V4)), heard)
    assert by_address(node).items() >= expected.items()
