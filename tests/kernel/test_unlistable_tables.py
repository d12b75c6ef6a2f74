"""An agent beside rules that this machine's libnftables cannot list: a newer program's, for
instance.

libnftables 1.0.6 ends its process by an assertion when it lists a rule that looks up again what
came out of a map. Whoever asks it for more than one's own has to expect that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from netmgr.documents.sites import Role
from netmgr.kernel import nf_tables as nft
from netmgr.kernel.nf_tables_socket import NftSocket
from tests.lab import planned, wiring
from tests.lab.nodes import LabNode
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]

META_MARK = 3
MAPS = """
table inet foreign {
    map numbers { type mark : mark; }
    map verdicts { type mark : verdict; }
}
"""
SECONDS = 20


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    """A node of a spoke whose agent was started anew beside such a table."""
    with World(planned.network(2, 1, 0), name=f"unlist-{os.getpid()}", exporters=False) as world:
        found = next(each for each in world.nodes if each.node.role is Role.NODE)
        found.stop_agent()
        with wiring.inside(found.namespace):
            make_unlistable()
        found.start_agent()
        found.wait_until_ready()
        yield found


def make_unlistable() -> None:
    """A rule that looks up a mark in a map, and what it finds in a verdict map."""
    subprocess.run(["nft", "-f", "-"], input=MAPS, text=True, check=True)
    rule = (
        nft.Expression("meta", {1: nft.number(1), 2: nft.number(META_MARK)}),
        nft.Expression("lookup", {1: b"numbers\0", 2: nft.number(1), 3: nft.number(1)}),
        nft.Expression("lookup", {1: b"verdicts\0", 2: nft.number(1), 3: nft.number(0)}),
    )
    socket = NftSocket()
    socket.commit([*nft.new_chain("foreign", nft.Chain("chain", (rule,)))])
    socket.close()


def test_the_agent_starts_counts_and_attaches_pods(node: LabNode) -> None:
    pod = node.add("pod-1")
    try:
        assert node.status() == ""
        assert node.snapshot()["ready"]
        assert node.agent_pid() is not None
    finally:
        node.runtime.delete(pod)


def test_the_table_is_still_as_it_was(node: LabNode) -> None:
    with wiring.inside(node.namespace):
        socket = NftSocket()
        rules = list(socket.list_of(nft.list_all(nft.GET_RULE, "foreign"), nft.rule_of))
        socket.close()
    assert [(table, chain) for table, chain, _ in rules if table == "foreign"] == [
        ("foreign", "chain")
    ]


def test_a_nat_hosts_own_tables_can_be_listed() -> None:
    with World(planned.network(2, 1, 1), name=f"listed-{os.getpid()}", exporters=False) as world:
        for spoke in world.topology.spokes:
            command = [
                "nsenter",
                f"--net={world.namespace(spoke.nat_host)}",
                "nft",
                "list",
                "ruleset",
            ]
            listed = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            assert listed.returncode == 0, listed.stderr
            assert "table inet netmgr" in listed.stdout
