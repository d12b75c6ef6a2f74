"""The audit on the real kernel: pods against forward rules and links, and who used the internet
when.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.guests import guest
from tests.kernel.namespaces import inside
from tests.lab.exchange import End, datagram_bytes, datagrams, stream
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

GUEST = "10.99.0.2"
IN, OUT = "internet-in", "internet-out"
ETHERNET = 14
NEIGHBOURS = 600
"""Bytes of ARP and neighbour discovery that a quiet link may carry beside a test's own."""
_numbers = count(1)


@pytest.fixture(scope="module")
def world(backend: Backend) -> Iterator[World]:
    room = replace(cluster(nodes=1, pods=20), pods=())
    settings = {
        "accounting": {"min_reading_seconds": 0, "reading_seconds": 60},
        "reconcile_seconds": 3600,
    }
    with World(
        room, backend=backend, name=f"audit-{os.getpid()}-{next(_numbers)}", settings=settings
    ) as made:
        yield made


def forward(node: LabNode) -> dict[str, dict[str, int]]:
    """The comparison with the forward rules after a reading that found nothing moving."""
    node.snapshot()
    return {one["traffic"]: one for one in node.ask("audit")["forward"]}


def link_of(node: LabNode, pod: Sandbox) -> dict[str, dict[str, int]]:
    mine = [
        one for one in node.ask("audit")["links"] if one["pods"] == [f"research/{pod.pod.name}"]
    ]
    return {one["direction"]: one for one in mine}


def exported(node: LabNode) -> dict[str, int]:
    return {one["traffic"]: one["bytes"] for one in node.snapshot()["unattributed"]}


def talk(world: World, pod: Sandbox, family: Family, sizes: list[int]) -> int:
    """Exchange datagrams of these payloads; bytes of IP each way."""
    there = End(world.internet, INTERNET[family])
    return datagrams(End(pod.netns, pod.address(family)), there, sizes, sizes).forth.bytes


def test_every_byte_that_was_forwarded_is_a_pods(world: World, node: LabNode, pod: Sandbox) -> None:
    before, links_before = forward(node), link_of(node, pod)
    sent = sum(talk(world, pod, family, [100, 900, 1400]) for family in Family)
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


def test_a_segmented_stream_counts_alike_on_the_link_and_in_the_rules(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    size = 20_000_000
    before = link_of(node, pod)["out"]
    stream(
        End(pod.netns, pod.address(Family.V4)), End(world.internet, INTERNET[Family.V4]), size, 0
    )
    after = link_of(node, pod)["out"]
    packets = after["packets"] - before["packets"]
    assert packets < size / 1500 / 2, "the kernel did not hand over whole super-packets"
    assert abs(packets - (after["counted_packets"] - before["counted_packets"])) < 10
    assert 0 <= after["rest"] - before["rest"] < NEIGHBOURS
    print(  # noqa: T201  the figure is what the test is for
        f"{size:,} bytes of payload: {packets:,} packets on link and rules, "
        f"{size // 1448:,} segments on a wire"
    )


def test_traffic_of_a_container_that_is_no_pod_is_unattributed_to_the_byte(
    world: World, node: LabNode, pod: Sandbox
) -> None:
    forward(node)
    before = exported(node)
    with guest(node) as send:
        for size in (200, 1000, 1500):
            send(size)
        talk(world, pod, Family.V4, [500] * 5)
        node.snapshot()
        assert exported(node) == {IN: before[IN], OUT: before[OUT] + 2700}
    ratio = {
        one["traffic"]: one["ratio"]
        for one in node.ask("audit")["ratios"]
        if one["against"] == "forward"
    }
    assert ratio[OUT] < ratio[IN] <= 1


def test_what_a_lost_counter_missed_is_unattributed_and_a_gap(
    world: World, node: LabNode, pod: Sandbox, backend: Backend
) -> None:
    talk(world, pod, Family.V4, [500] * 5)
    forward(node)
    before, gap = exported(node), {one["reason"]: one for one in node.snapshot()["gaps"]}["removed"]
    address = str(pod.address(Family.V4))
    if backend is Backend.NFTABLES:
        inside(node.namespace, "nft", f"delete element inet netmgr pod_out4 {{ {address} }}")
    else:
        inside(node.namespace, "ipset", "del", "netmgr-pod-out4", address)
    missed = talk(world, pod, Family.V4, [100, 900])
    node.snapshot()
    assert exported(node) == {IN: before[IN], OUT: before[OUT] + missed}
    node.restart_after_kill()
    forward(node)
    assert exported(node) == {IN: before[IN], OUT: before[OUT] + missed}
    now = {one["reason"]: one for one in node.snapshot()["gaps"]}["removed"]
    assert now["count"] == gap["count"] + 1
    assert 0 < now["seconds"] - gap["seconds"] < 60


def test_a_zeroed_forward_rule_hides_nothing_that_comes_after(
    world: World, node: LabNode, pod: Sandbox, backend: Backend
) -> None:
    with guest(node) as send:
        send(1000)
        forward(node)
        before = exported(node)
        talk(world, pod, Family.V4, [900])  # counted for the pod, and lost by the rule unread
        if backend is Backend.NFTABLES:
            inside(node.namespace, "nft", "reset", "counters", "table", "inet", "netmgr")
        else:
            inside(node.namespace, "iptables-legacy", "-t", "mangle", "-Z", "FORWARD")
        forward(node)
        send(700)
        forward(node)
        assert exported(node) == {IN: before[IN], OUT: before[OUT] + 700}


def test_the_links_share_is_exported(world: World, node: LabNode, pod: Sandbox) -> None:
    talk(world, pod, Family.V4, [1000] * 10)
    answer = node.ask("audit")
    for one in (one for one in answer["ratios"] if one["against"] == "links"):
        way = one["traffic"].rpartition("-")[2]
        links = [link for link in answer["links"] if link["direction"] == way]
        counted = sum(link["counted"][one["traffic"]] for link in links)
        assert one["ratio"] == counted / sum(link["carried"] - link["headers"] for link in links)
        assert 0.5 < one["ratio"] <= 1
    assert {(one["against"], one["traffic"]) for one in answer["ratios"]} == {
        (against, traffic) for against in ("forward", "links") for traffic in (IN, OUT)
    }
    assert (
        'netmgr_accounting_audit_ratio{against="forward",traffic="internet-out"}' in node.scrape()
    )


def test_the_audit_is_printed_with_its_reasons(world: World, node: LabNode, pod: Sandbox) -> None:
    talk(world, pod, Family.V4, [1000] * 10)
    with guest(node) as send:
        send(1500)
        node.snapshot()
        shown = netmgr("node", "audit", "--socket", str(node.ledger_socket))
    assert shown.returncode == 0, shown.stderr
    for words in (
        "forwarded",
        "unattributed",
        "headers",
        "14 bytes",
        "segmented",
        pod.pod.name,
        "addresses that no pod",
    ):
        assert words in shown.stdout
    document = json.loads(
        netmgr("node", "audit", "-o", "json", "--socket", str(node.ledger_socket)).stdout
    )
    assert {one["traffic"] for one in document["forward"]} == {IN, OUT}


def netmgr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netmgr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_usage_tells_pods_that_are_gone_whether_or_not_the_agent_is_there(
    world: World, node: LabNode
) -> None:
    name = f"gone-{next(_numbers)}"
    gone = node.add(name, "night-shift")
    sent = talk(world, gone, Family.V6, [1000] * 7)
    node.runtime.delete(gone)
    assert sent == 7 * datagram_bytes(Family.V6, 1000)
    where = (
        "--socket",
        str(node.ledger_socket),
        "--ledger",
        str(node.directory / "state" / "ledger.sqlite"),
    )
    rows = csv_rows(*where)
    assert {
        (row["traffic"], row["bytes"], row["packets"]) for row in rows if row["pod"] == name
    } == {
        (IN, str(sent), "7"),
        (OUT, str(sent), "7"),
    }
    table = netmgr("usage", "--since", "2h", *where).stdout
    assert any("night-shift" in line and "7.3 kB" in line for line in table.splitlines()), table
    by_class = json.loads(
        netmgr("usage", "--by", "class", "--by", "hour", "-o", "json", *where).stdout
    )
    assert {row["traffic"] for row in by_class["rows"]} == {IN, OUT}
    assert all(row["hour"].endswith(":00Z") for row in by_class["rows"])
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


def test_times_that_are_none_are_refused_with_examples(tmp_path: Path) -> None:
    for arguments in (
        ("--since", "yesteryear"),
        ("--since", "2h", "--until", "3h"),
        ("--since", "99999999999d"),
    ):
        done = netmgr("usage", *arguments, "--socket", str(tmp_path / "none"))
        assert done.returncode == 1
        assert arguments[-1] in done.stderr
        assert "Traceback" not in done.stderr


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
    def parts() -> dict[tuple[str, str], int]:
        node.snapshot()
        return {
            (part["origin"], part["traffic"]): part["bytes"] for part in node.snapshot()["origins"]
        }

    def whole() -> dict[str, int]:
        return {total["traffic"]: total["bytes"] for total in node.snapshot()["node_totals"]}

    before, whole_before = parts(), whole()
    with guest(node) as send:
        send(1300)
        of_pod = talk(world, pod, Family.V4, [400] * 3)
        own = End(node.namespace, next(a for a in node.node.addresses if a.family is Family.V6))
        of_node = datagrams(own, End(world.internet, INTERNET[Family.V6]), [900] * 2, [100] * 2)
        after, total = parts(), whole()
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
