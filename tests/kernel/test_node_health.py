"""Problems of a node's network that come back, on a real node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from netmgr.api.client import ask_report
from netmgr.documents.node import Backend
from tests.kernel.guests import guest
from tests.kernel.spending import run
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.root

RECONCILE_SECONDS = 0.1
PROBLEM = 'netmgr_node_problem{reason="DriftReturns"}'


def status(node: LabNode) -> str:
    command = [sys.executable, "-m", "netmgr", "node", "status"]
    return subprocess.run(
        [*command, f"--socket={node.ledger_socket}"], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    settings = {
        "reconcile_seconds": RECONCILE_SECONDS,
        "accounting": {"reading_seconds": 0.1, "cluster_cidrs": ["10.128.0.0/16"]},
    }
    room = replace(cluster(pods=1), pods=())
    name = f"health-{os.getpid()}"
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as world:
        yield world.nodes[0]


def reasons(node: LabNode) -> list[str]:
    return [one["reason"] for one in node.snapshot()["problems"]]


def test_a_program_that_keeps_changing_the_rules_is_a_problem_until_it_ends(node: LabNode) -> None:
    eventually(lambda: reasons(node) == [])
    assert f"{PROBLEM} 0.0" in node.scrape()

    def disturbed() -> bool:
        assert run(node, "nft", "flush", "chain", "inet", "netmgr", "forward").returncode == 0
        return "DriftReturns" in reasons(node)

    eventually(disturbed)
    # Its figures change with every look, and the command takes longer than one.
    shown = "DriftReturns: other programs keep changing what the agent repairs (rules "
    assert shown in status(node)
    assert f"{PROBLEM} 1.0" in node.scrape()
    report = ask_report(node.ledger_socket)
    assert report["spent"] == []
    # Counters that are flushed with their rules may be another one.
    assert "DriftReturns" in [one["reason"] for one in report["problems"]]
    eventually(lambda: reasons(node) == [])
    assert "DriftReturns" not in status(node)


@pytest.mark.slow
def test_a_lasting_share_of_traffic_without_a_pod_is_a_problem(node: LabNode) -> None:
    with guest(node) as send:

        def found() -> bool:
            for _ in range(20):
                send(50_000)
            return "TrafficUnattributed" in reasons(node)

        eventually(found)
    eventually(lambda: reasons(node) == [])
