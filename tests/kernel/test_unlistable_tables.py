"""An agent beside rules that this machine's libnftables cannot list: a newer program's, for
instance.

libnftables 1.0.6 ends its process by an assertion when it lists a rule that looks up again what
came out of a map. Whoever asks it for more than one's own has to expect that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from netmgr.documents.sites import Role
from netmgr.kernel import nf_tables as nft
from netmgr.kernel.netlink import NLM_F_DUMP, number
from netmgr.kernel.nf_tables_socket import NftSocket
from tests.kernel.namespaces import inside
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


@pytest.fixture(scope="module")
def node() -> Iterator[LabNode]:
    """A node of a spoke whose agent was started anew beside such a table."""
    with World(planned.network(2, 1, 0), name=f"unlist-{os.getpid()}", exporters=False) as world:
        made = next(host for host in world.nodes if host.node.role is Role.NODE)
        made.stop_agent()
        with wiring.inside(made.namespace):
            make_unlistable()
        made.start_until_ready()
        yield made


def make_unlistable() -> None:
    """A rule that looks up a mark in a map, and what it finds in a verdict map."""
    subprocess.run(["nft", "-f", "-"], input=MAPS, text=True, check=True)
    rule = (
        nft.Expression("meta", {1: number(1), 2: number(META_MARK)}),
        nft.Expression("lookup", {1: b"numbers\0", 2: number(1), 3: number(1)}),
        nft.Expression("lookup", {1: b"verdicts\0", 2: number(1), 3: number(0)}),
    )
    with closing(NftSocket()) as socket:
        socket.commit([nft.new_chain("foreign", "chain"), nft.add_rule("foreign", "chain", rule)])


def test_the_agent_starts_and_attaches_pods_and_the_table_is_as_it_was(node: LabNode) -> None:
    pod = node.add("pod-1")
    assert node.status() == ""
    assert node.snapshot()["ready"]
    node.runtime.delete(pod)
    with wiring.inside(node.namespace), closing(NftSocket()) as socket:
        listing = nft.message(nft.GET_RULE, b"", "list rules", NLM_F_DUMP)
        rules = list(socket.list_of(listing, nft.rule_of))
    assert [chain for table, chain, _ in rules if table == "foreign"] == ["chain"]


def test_a_nat_hosts_own_tables_can_be_listed() -> None:
    with World(planned.network(2, 1, 1), name=f"listed-{os.getpid()}", exporters=False) as world:
        for spoke in world.topology.spokes:
            listed = inside(world.namespace(spoke.nat_host), "nft", "list", "ruleset")
            assert "table inet netmgr" in listed
