"""The article's own exporter, PyPI iptables-exporter 0.9.3, reads the same rules on the same node
as ours.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.comparison import wait_for
from tests.lab.exchange import datagrams
from tests.lab.nodes import EXPORTER_PORT, LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

NAMES = ("iptables_bytes_total", "iptables_packets_total", "iptables_rules")
TABLES = ("raw", "mangle", "nat", "filter", "security")
ARTICLE = """\
-A INPUT ! -s 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-in"
-A FORWARD ! -s 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-in"
-A OUTPUT ! -d 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-out"
-A FORWARD ! -d 10.0.0.0/8 -m comment --comment "iptables-exporter openai traffic=internet-out"
"""
DIRECTIONS = ("openai traffic=internet-in", "openai traffic=internet-out")
THEIR_PROGRAM = """
import http.server
import prometheus_client.exposition
prometheus_client.exposition.HTTPServer = http.server.HTTPServer
from iptables_exporter.main import main
main()
"""
"""It imports HTTPServer from prometheus_client, where today's versions no longer have it; that is
all we add.
"""

Series = dict[tuple[str, str, str, str, str], float]


def world_with(backend: Backend = Backend.IPTABLES_LEGACY, **accounting: object) -> World:
    quick = {"reading_seconds": 1, "min_reading_seconds": 0}
    settings = {"accounting": {**quick, "rule_owner": "openai", **accounting}}
    name = f"peers-{os.getpid()}"
    return World(cluster(nodes=1, pods=1), backend=backend, name=name, settings=settings)


@pytest.fixture(params=["exact", "corrected"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with world_with(node_rules=request.param) as world:
        yield world


FOREIGN = """\
*filter
:WEB - [0:0]
[3:300] -A INPUT -p tcp -m tcp --dport 22 -m comment --comment "iptables-exporter ssh in"
[4:400] -A WEB -m comment --comment "iptables-exporter web" -j DROP
[5:500] -A WEB -m comment --comment "of no exporter's concern"
COMMIT
*nat
[6:600] -A POSTROUTING -d 198.51.100.0/24 -m comment --comment "iptables-exporter nat 7" -j ACCEPT
COMMIT
*mangle
[7:700] -A INPUT -p udp -m comment --comment "iptables-exporter openai traffic=internet-in"
COMMIT
*security
[8:800] -A OUTPUT -o theirs -m comment --comment "iptables-exporter labels"
COMMIT
"""
"""In every table but raw; one with the words of ours, over other packets."""


def use_the_internet(world: World) -> None:
    pod = world.pods()[0]
    for family in Family:
        from_pod = pod.end(family)
        from_node = world.nodes[0].end(family)
        to_internet = world.outside(family)
        datagrams(from_pod, to_internet, forth=[100] * 5, back=[700] * 5)
        datagrams(from_node, to_internet, forth=[30] * 3, back=[60] * 3)


def series(page: str) -> Series:
    return {
        (
            sample.name,
            *(sample.labels.get(name, "") for name in ("ip_version", "table", "chain", "rule")),
        ): sample.value
        for metric in text_string_to_metric_families(page)
        for sample in metric.samples
        if sample.name in NAMES
    }


def theirs(node: LabNode) -> Series:
    """Asked for each version alone: asked for both, it adds v6 to v4."""
    program = (sys.executable, "-c", THEIR_PROGRAM, "--tables", *TABLES)
    found: Series = {}
    for version in ("4", "6"):
        found |= series(inside(node.namespace, *program, "--ip-versions", version, "--dump-data"))
    return found


def ours(world: World) -> Series:
    """Fetched from the fabric's internal address, so that the fetching itself is no internet
    traffic.
    """
    with wiring.inside(world.namespace("fabric")):
        address = str(world.nodes[0].node.address(Family.V4))
        connection = http.client.HTTPConnection(address, EXPORTER_PORT, timeout=PATIENCE)
        connection.connect()
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return series(page)


def test_both_exporters_give_the_same_values_under_the_same_names(world: World):
    use_the_internet(world)
    expected = theirs(world.nodes[0])
    assert wait_for(lambda: ours(world), expected, PATIENCE) == expected
    counted = {
        (version, chain, rule)
        for (name, version, _, chain, rule), value in expected.items()
        if value > 0
    }
    both = [("forward", DIRECTIONS[0]), ("forward", DIRECTIONS[1])]
    once = [("input", DIRECTIONS[0]), ("output", DIRECTIONS[1])]
    assert {(version, *rule) for version in "46" for rule in (*both, *once)} <= counted


def test_the_users_own_rules_of_all_tables_go_on_under_the_same_names(world: World):
    node = world.nodes[0]
    add_foreign_rules(node)
    use_the_internet(world)
    expected = theirs(node)
    names = {"ssh in", "web", "nat 7", "labels", *DIRECTIONS}
    assert {rule for _, _, _, _, rule in expected} == {"", *names}
    assert expected["iptables_bytes_total", "6", "filter", "web", "web"] == 400
    assert wait_for(lambda: ours(world), expected, PATIENCE) == expected


@pytest.mark.parametrize("backend", [Backend.NFTABLES, Backend.IPTABLES_NFT], ids=str)
def test_rules_in_the_legacy_tables_are_told_with_the_other_backends_too(backend: Backend):
    with world_with(backend) as world:
        node = world.nodes[0]
        add_foreign_rules(node)
        told = {name: value for name, value in theirs(node).items() if name[0] != NAMES[-1]}
        # With the words of ours: told as the sum of both, as their exporter does.
        shared = {name for name in told if name[-1].startswith("openai")}
        wanted = {name: value for name, value in told.items() if name not in shared}
        eventually(lambda: wanted.items() <= ours(world).items())
        assert shared <= ours(world).keys()


def test_plain_iptables_of_todays_distributions_shows_the_articles_rules_and_their_counts():
    with world_with(Backend.IPTABLES, node_rules="exact") as world:
        node = world.nodes[0]
        assert node.snapshot()["backend"] == Backend.IPTABLES_NFT
        saved = inside(node.namespace, "iptables-nft-save", "-t", "mangle").splitlines()
        assert sorted(line for line in saved if '"iptables-exporter ' in line) == sorted(
            ARTICLE.splitlines()
        )
        use_the_internet(world)
        command = ("iptables-nft", "-t", "mangle", "-L", "FORWARD", "-v", "-n", "-x")
        shown = inside(node.namespace, *command).splitlines()
        counted = [line.split()[1] for line in shown if "traffic=internet-in" in line]
        told = ours(world)[
            "iptables_bytes_total", "4", "mangle", "forward", "openai traffic=internet-in"
        ]
        assert counted == [str(int(told))]
        assert told == 5 * (700 + 28)


def add_foreign_rules(node: LabNode) -> None:
    for family, block in (("", "198.51.100.0/24"), ("6", "2001:db8:5::/48")):
        restore = f"ip{family}tables-legacy-restore --noflush --counters".split()
        rules = FOREIGN.replace("198.51.100.0/24", block)
        entered = ["nsenter", f"--net={node.namespace}", *restore]
        subprocess.run(entered, input=rules, check=True, text=True)
