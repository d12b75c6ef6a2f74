"""The audit on the real kernel: pods against forward rules and links; who used the internet."""

from __future__ import annotations

import csv
import time

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from netmgr.rules.link_programs import PODS_MAP
from tests.kernel.common import ONLY_NFTABLES, Ends, grown, netmgr, origins, talk
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.kernel.guests import guest
from tests.kernel.namespaces import inside
from tests.kernel.spending import IN, OUT, counter_at_links, gaps, held_at_links, zero_sums
from tests.lab.exchange import End, datagram_bytes, datagrams, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

ETHERNET = 14
NEIGHBOURS = 600
"""Bytes of ARP and neighbour discovery that a quiet link may carry beside a test's own."""
WORLD = {
    "nodes": 1,
    "settings": {
        "accounting": {"min_reading_seconds": 0, "reading_seconds": 60},
        "reconcile_seconds": 3600,
    },
    "exporters": False,
}


backend = one_of(EVERY_WAY_OF_COUNTING)


def forward(node: LabNode) -> dict[str, dict[str, int]]:
    """The comparison with the forward rules after a reading that found nothing moving."""
    node.snapshot()
    return {row["traffic"]: row for row in node.ask("audit")["forward"]}


def link_of(node: LabNode, pod: Sandbox) -> dict[str, dict[str, int]]:
    rows, pods = node.ask("audit")["links"], [f"research/{pod.pod.name}"]
    return {row["direction"]: row for row in rows if row["pods"] == pods}


def exported(node: LabNode) -> dict[str, int]:
    return {row["traffic"]: row["bytes"] for row in node.snapshot()["unattributed"]}


def test_every_byte_that_was_forwarded_is_a_pods(world: World, node: LabNode, pod: Sandbox) -> None:
    before, links_before = forward(node), link_of(node, pod)
    sent = talk(world, pod, [100, 900, 1400])
    after, links = forward(node), link_of(node, pod)
    for traffic in (IN, OUT):
        for side in ("forwarded", "attributed"):
            assert after[traffic][side] - before[traffic][side] == sent
        assert after[traffic]["unattributed"] == before[traffic]["unattributed"]
    for direction in ("in", "out"):
        now, then = links[direction], links_before[direction]
        packets = now["packets"] - then["packets"]
        assert now["headers"] - then["headers"] == ETHERNET * packets
        assert sum(now["counted"].values()) - sum(then["counted"].values()) == sent
        assert 0 <= now["rest"] - then["rest"] < NEIGHBOURS
        assert now["carried"] == now["headers"] + sum(now["counted"].values()) + now["rest"]


@ONLY_NFTABLES
def test_a_segmented_stream_counts_alike_on_the_link_and_in_the_rules(
    node: LabNode, pod: Sandbox, ends: Ends
) -> None:
    size = 20_000_000
    before = link_of(node, pod)["out"]
    stream(*ends[Family.V4], size, 0)
    after = link_of(node, pod)["out"]
    packets = after["packets"] - before["packets"]
    assert packets < size / 1500 / 2, "the kernel did not hand over whole super-packets"
    assert abs(packets - (after["counted_packets"] - before["counted_packets"])) < 10
    assert 0 <= after["rest"] - before["rest"] < NEIGHBOURS


def test_traffic_of_a_container_that_is_no_pod_is_unattributed_to_the_byte(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    forward(node)
    before = exported(node)
    with guest(node) as send:
        for size in (200, 1000, 1500):
            send(size)
        talk(world, pod, [500] * 5)
        node.snapshot()
        assert exported(node) == {IN: before[IN], OUT: before[OUT] + 2700}
    ratios = node.ask("audit")["ratios"]
    ratio = {row["traffic"]: row["ratio"] for row in ratios if row["against"] == "forward"}
    assert ratio[OUT] < ratio[IN] <= 1


def test_what_a_lost_counter_missed_is_unattributed_and_a_gap(
    world: World, node: LabNode, pod: Sandbox, backend: Backend
) -> None:
    talk(world, pod, [500] * 5)
    began = time.monotonic()
    forward(node)
    before, gap = exported(node), gaps(node)["removed"]
    address = str(pod.address(Family.V4))
    if backend is Backend.LINKS:
        with held_at_links(node, PODS_MAP) as pods:
            key, _ = counter_at_links(pods, pod)
            pods.delete(key)
    elif backend is Backend.NFTABLES:
        inside(node.namespace, "nft", f"delete element inet netmgr pod_out4 {{ {address} }}")
    else:
        inside(node.namespace, "ipset", "del", "netmgr-pod-out4", address)
    missed = talk(world, pod, [100, 900], [Family.V4])
    node.snapshot()
    assert exported(node) == {IN: before[IN], OUT: before[OUT] + missed}
    node.restart_after_kill()
    forward(node)
    assert exported(node) == {IN: before[IN], OUT: before[OUT] + missed}
    times, seconds = grown(gap, gaps(node)["removed"])
    assert times == 1
    assert 0 < seconds <= time.monotonic() - began


def test_a_zeroed_forward_rule_hides_nothing_that_comes_after(
    world: World, node: LabNode, pod: Sandbox, backend: Backend
) -> None:
    with guest(node) as send:
        send(1000)
        forward(node)
        before = exported(node)
        talk(world, pod, [900])  # counted for the pod, and lost by the rule unread
        zero_sums(node, backend)
        forward(node)
        send(700)
        forward(node)
        assert exported(node) == {IN: before[IN], OUT: before[OUT] + 700}


@ONLY_NFTABLES
def test_the_audit_is_printed_with_its_reasons(world: World, node: LabNode, pod: Sandbox) -> None:
    talk(world, pod, [1000] * 10)
    with guest(node) as send:
        send(1500)
        node.snapshot()
        shown = netmgr("node", "audit", "--socket", str(node.ledger_socket))
    assert shown.returncode == 0, shown.stderr
    for words in ("unattributed", "14 bytes", pod.pod.name, "addresses that no pod"):
        assert words in shown.stdout


@ONLY_NFTABLES
def test_usage_tells_pods_that_are_gone_whether_or_not_the_agent_is_there(
    world: World, node: LabNode
) -> None:
    name = "gone"
    gone = node.add(name, "night-shift")
    sent = talk(world, gone, [1000] * 7, [Family.V6])
    node.runtime.delete(gone)
    assert sent == 7 * datagram_bytes(Family.V6, 1000)
    ledger = node.directory / "state" / "ledger.sqlite"
    where = ("--socket", str(node.ledger_socket), "--ledger", str(ledger))
    rows = csv_rows(*where)
    shown = {(row["traffic"], row["bytes"], row["packets"]) for row in rows if row["pod"] == name}
    assert shown == {(IN, str(sent), "7"), (OUT, str(sent), "7")}
    table = netmgr("usage", "--since", "2h", *where).stdout
    assert any("night-shift" in line and "7.3 kB" in line for line in table.splitlines()), table
    backwards = netmgr("usage", "--since", "2h", "--until", "3h", *where)
    assert (backwards.returncode, "--until 3h is not later" in backwards.stderr) == (2, True)
    node.stop_agent()
    try:
        away = netmgr("usage", "--by", "pod", "-o", "csv", *where)
        assert list(csv.DictReader(away.stdout.splitlines())) == rows
        assert "no agent answers there" in away.stderr
    finally:
        node.start_until_ready()


def csv_rows(*where: str) -> list[dict[str, str]]:
    done = netmgr("usage", "--by", "pod", "-o", "csv", *where)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


@ONLY_NFTABLES
def test_a_question_that_is_none_is_refused(node: LabNode) -> None:
    for arguments in (
        {"since": "nan"},
        {"since": "0", "until": "1e300"},
        {"since": "0", "by": "colour"},
        {},
    ):
        with pytest.raises(Exception, match="not a query"):
            node.ask("usage", **{"until": str(time.time()), "by": "pod"} | arguments)


def test_the_nodes_total_is_split_into_what_pods_the_node_and_others_exchanged(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    def whole() -> dict[str, int]:
        return {total["traffic"]: total["bytes"] for total in node.snapshot()["node_totals"]}

    before, whole_before = origins(node), whole()
    with guest(node) as send:
        send(1300)
        of_pod = talk(world, pod, [400] * 3)
        own = End(node.namespace, next(a for a in node.node.addresses if a.family is Family.V6))
        of_node = datagrams(own, End(world.internet, INTERNET[Family.V6]), [900] * 2, [100] * 2)
        after, total = origins(node), whole()
    grown = {
        key: size - before.get(key, 0) for key, size in after.items() if size != before.get(key, 0)
    }
    assert grown == {
        ("pods", OUT): of_pod,
        ("pods", IN): of_pod,
        ("node", OUT): of_node.forth.bytes,
        ("node", IN): of_node.back.bytes,
        ("unattributed", OUT): 1300,
    }
    for traffic in (IN, OUT):
        assert total[traffic] - whole_before[traffic] == sum(
            size for (_, way), size in grown.items() if way == traffic
        )
