"""The article's own exporter, PyPI iptables-exporter 0.9.3, reads the same rules on the same node as ours."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from netmgr.config import Backend
from netmgr.lab import wiring
from netmgr.lab.exchange import End, datagrams
from netmgr.lab.nodes import EXPORTER_PORT, LabNode
from netmgr.lab.topology import INTERNET, cluster
from netmgr.lab.world import World
from netmgr.prefixes import Family

pytestmark = pytest.mark.root

NAMES = ("iptables_bytes_total", "iptables_packets_total")
ARTICLE = """\
-A INPUT ! -s 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-in"
-A FORWARD ! -s 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-in"
-A OUTPUT ! -d 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-out"
-A FORWARD ! -d 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-out"
"""
THEIR_PROGRAM = """
import http.server
import prometheus_client.exposition
prometheus_client.exposition.HTTPServer = http.server.HTTPServer
from iptables_exporter.main import main
main()
"""
"""It imports HTTPServer from prometheus_client, where today's versions no longer have it; that is all we add."""

Series = dict[tuple[str, str, str, str, str], float]


def world_with(**accounting: object) -> World:
    quick = {"reading_seconds": 1, "min_reading_seconds": 0}
    settings = {"accounting": {**quick, "rule_owner": "openai", **accounting}}
    return World(cluster(nodes=1, pods=1), backend=Backend.IPTABLES_LEGACY, settings=settings)


@pytest.fixture(params=["exact", "corrected"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_with(node_rules=request.param) as world:
        yield world


def in_node(node: LabNode, *command: str) -> str:
    entered = ["nsenter", f"--net={node.namespace}", *command]
    return subprocess.run(entered, capture_output=True, check=True, text=True).stdout


def use_the_internet(world: World) -> None:
    pod = world.pods()[0]
    for family in Family:
        from_pod = End(pod.netns, pod.address(family))
        from_node = End(world.nodes[0].namespace, world.nodes[0].node.address(family))
        to_internet = End(world.internet, INTERNET[family])
        datagrams(from_pod, to_internet, forth=[100] * 5, back=[700] * 5)
        datagrams(from_node, to_internet, forth=[30] * 3, back=[60] * 3)


def series(page: str) -> Series:
    return {
        (sample.name, *(sample.labels[name] for name in ("ip_version", "table", "chain", "rule"))): sample.value
        for metric in text_string_to_metric_families(page)
        for sample in metric.samples
        if sample.name in NAMES
    }


def theirs(node: LabNode) -> Series:
    """Asked for each version alone: asked for both, it adds v6 to v4."""
    program = (sys.executable, "-c", THEIR_PROGRAM, "--tables", "mangle")
    found: Series = {}
    for version in ("4", "6"):
        found |= series(in_node(node, *program, "--ip-versions", version, "--dump-data"))
    return found


def ours(world: World) -> Series:
    """Fetched from the fabric's internal address, so that the fetching itself is no internet traffic."""
    with wiring.inside(world.namespace("fabric")):
        address = str(world.nodes[0].node.address(Family.V4))
        connection = http.client.HTTPConnection(address, EXPORTER_PORT, timeout=10)
        connection.connect()
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return series(page)


def test_both_exporters_give_the_same_values_under_the_same_names(world: World):
    use_the_internet(world)
    expected = theirs(world.nodes[0])
    assert ours(world) == expected
    counted = {(version, chain, rule) for (name, version, _, chain, rule), value in expected.items() if value > 0}
    directions = ("openai traffic=internet-in", "openai traffic=internet-out")
    assert {(version, "forward", rule) for version in "46" for rule in directions} <= counted
    assert {(version, "input", directions[0]) for version in "46"} <= counted
    assert {(version, "output", directions[1]) for version in "46"} <= counted


def test_the_articles_rules_stand_in_the_mangle_table_word_for_word():
    with world_with(node_rules="exact") as world:
        saved = in_node(world.nodes[0], "iptables-legacy-save", "-t", "mangle").splitlines()
    tagged = [line for line in saved if '"iptables-exporter ' in line]
    assert sorted(tagged) == sorted(ARTICLE.splitlines())
