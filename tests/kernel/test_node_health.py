"""Problems of a node's network that come back, on a real node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from netmgr.agent.diagnosis import WINDOW
from netmgr.agent.problems import ROUNDS
from netmgr.api.client import ask_report
from netmgr.documents.node import Backend
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import two_nodes
from netmgr.lab.world import World
from tests.kernel.spending import run

pytestmark = pytest.mark.root

RECONCILE_SECONDS = 0.25
PATIENCE = 4 * WINDOW * ROUNDS * RECONCILE_SECONDS
PROBLEM = 'netmgr_node_problem{reason="DriftReturns"}'


def eventually(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(RECONCILE_SECONDS)


def status(node: LabNode) -> str:
    command = [sys.executable, "-m", "netmgr", "node", "status"]
    return subprocess.run(
        [*command, f"--socket={node.ledger_socket}"], capture_output=True, text=True, check=True
    ).stdout


def test_a_program_that_keeps_changing_the_rules_is_a_problem_until_it_ends(lab_name: str) -> None:
    settings = {"reconcile_seconds": RECONCILE_SECONDS}
    room = replace(two_nodes(pods=1), pods=())
    with World(room, backend=Backend.NFTABLES, name=lab_name, settings=settings) as world:
        node = world.nodes[0]
        assert node.snapshot()["problems"] == []
        assert f"{PROBLEM} 0.0" in node.scrape()

        def disturbed() -> bool:
            assert run(node, "nft", "flush", "chain", "inet", "netmgr", "forward").returncode == 0
            return "DriftReturns" in reasons()

        def reasons() -> list[str]:
            return [one["reason"] for one in node.snapshot()["problems"]]

        eventually(disturbed)
        # Counters that are flushed with their rules may be another one.
        problems = node.snapshot()["problems"]
        problem = next(one for one in problems if one["reason"] == "DriftReturns")
        assert "(rules " in problem["message"]
        assert f"DriftReturns: {problem['message']}" in status(node)
        assert f"{PROBLEM} 1.0" in node.scrape()
        assert ask_report(node.ledger_socket) == {"spent": [], "problems": problems}
        eventually(lambda: node.snapshot()["problems"] == [])
        assert "DriftReturns" not in status(node)
