"""Problems of a node's network, on a real node: what is wrong now, and what lasts or comes back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count

import pytest

from netmgr.api.client import ask_report
from netmgr.documents.node import Backend
from tests.kernel.common import netmgr, table_of_another_program
from tests.kernel.guests import guest
from tests.kernel.spending import run
from tests.lab.errors import LabError
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.root

RECONCILE_SECONDS = 0.1
CHANGING = "other programs keep changing what the agent repairs (rules "
PROBLEM = 'netmgr_node_problem{reason="DriftReturns"}'


def status(node: LabNode) -> str:
    return netmgr("node", "status", f"--socket={node.ledger_socket}").stdout


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


def message(node: LabNode, reason: str) -> str:
    """What readers and the controller are told; empty without such a problem."""
    problems = ask_report(node.ledger_socket, timeout=PATIENCE)["problems"]
    return next((one["message"] for one in problems if one["reason"] == reason), "")


@contextmanager
def another_network_in_front(node: LabNode) -> Iterator[str]:
    other = node.runtime.conf_dir / "00-other.conf"
    other.write_text('{"cniVersion": "1.0.0", "name": "other", "type": "ptp"}')
    yield f"the runtime takes {other}, not netmgr's"
    other.unlink()


@contextmanager
def pods_that_wait(node: LabNode) -> Iterator[str]:
    with ExitStack() as pods:
        with suppress(LabError):
            for number in count():
                pods.callback(node.runtime.delete, node.add(f"fill-{number}"))
        yield "pods wait for an IPv4 address, and none is free; give the node more ranges"


DROPPING = """
add table inet fw
add chain inet fw f { type filter hook forward priority 0; policy drop; }
"""


@contextmanager
def a_policy_that_drops(node: LabNode) -> Iterator[str]:
    assert run(node, "nft", DROPPING).returncode == 0
    yield "the policy of inet fw f drops what pods exchange"
    remedy = message(node, "ForwardDropped").partition("or: ")[2]
    assert run(node, "sh", "-ec", remedy).returncode == 0
    eventually(lambda: not message(node, "ForwardDropped"))
    assert run(node, "nft", "delete table inet fw").returncode == 0


@contextmanager
def rules_of_another_program(node: LabNode) -> Iterator[str]:
    with table_of_another_program(node):
        yield "rules cannot be reconciled: "


BROKEN = {
    "PluginNotFound": another_network_in_front,
    "AddressesUsedUp": pods_that_wait,
    "ForwardDropped": a_policy_that_drops,
    "AgentNotReady": rules_of_another_program,
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_is_wrong_is_a_problem_until_it_is_mended(node: LabNode, reason: str) -> None:
    assert not message(node, reason)
    with BROKEN[reason](node) as what:
        eventually(lambda: what in message(node, reason))
        assert f'netmgr_node_problem{{reason="{reason}"}} 1.0' in node.scrape()
        assert f"{reason}: {what.split()[0]}" in status(node)
    eventually(lambda: not message(node, reason))
    assert f'netmgr_node_problem{{reason="{reason}"}} 0.0' in node.scrape()


@pytest.mark.parametrize("reason", ["PluginNotFound", "ForwardDropped"])
def test_the_next_agent_finds_what_is_wrong_as_well(node: LabNode, reason: str) -> None:
    node.kill_agent()
    with BROKEN[reason](node) as what:
        node.start_until_ready()
        eventually(lambda: what in message(node, reason))
    eventually(lambda: not message(node, reason))


@contextmanager
def flushing(node: LabNode) -> Iterator[None]:
    """Somebody flushes a chain again and again, whatever the test waits for meanwhile."""
    flush = "while nft flush chain inet netmgr before_srcnat; do sleep 0.1; done"
    with subprocess.Popen(["nsenter", f"--net={node.namespace}", "sh", "-c", flush]) as program:
        try:
            yield
            assert program.poll() is None, "it could not flush"
        finally:
            program.kill()


def test_a_program_that_keeps_changing_the_rules_is_a_problem_until_it_ends(node: LabNode) -> None:
    eventually(lambda: node.problems() == {})
    assert f"{PROBLEM} 0.0" in node.scrape()

    # Counters that are flushed with their rules may be another one.
    with flushing(node):
        eventually(lambda: "DriftReturns" in node.problems())
        # Its figures change with every look, and the command takes longer than one.
        eventually(lambda: f"DriftReturns: {CHANGING}" in status(node))
        eventually(lambda: f"{PROBLEM} 1.0" in node.scrape())
        eventually(lambda: message(node, "DriftReturns"))
    assert ask_report(node.ledger_socket, timeout=PATIENCE)["spent"] == []
    eventually(lambda: node.problems() == {})
    assert "DriftReturns" not in status(node)


@pytest.mark.slow
def test_a_lasting_share_of_traffic_without_a_pod_is_a_problem(node: LabNode) -> None:
    with guest(node) as send:

        def found() -> bool:
            for _ in range(20):
                send(50_000)
            return "TrafficUnattributed" in node.problems()

        eventually(found)
    eventually(lambda: node.problems() == {})
