"""A node may have more links than one message about a flowtable names (255).

`test_flowtable.py` runs this on a kernel that has flowtables, if need be in a virtual machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from netmgr.agent.accounting.flowtable import MOST_PODS
from netmgr.kernel import flowtables, nf_tables
from netmgr.kernel.flowtables import Flowtable
from netmgr.kernel.nf_tables_socket import NftSocket
from tests.kernel.flowtable_promises import nft, restart, wait_for_links
from tests.kernel.spending import run
from tests.lab import wiring
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

PODS = 256


@pytest.fixture
def node() -> Iterator[LabNode]:
    room = replace(cluster(nodes=1, pods=250), pods=())
    with World(room, name=f"flow-many-{os.getpid()}", exporters=False) as world:
        yield world.nodes[0]


def test_more_devices_than_one_message_names_are_added_and_removed(node: LabNode) -> None:
    """As many as the kernel lists; it would show none of some more."""
    devices = frozenset(f"link-of-a-{number}" for number in range(10001, 10001 + MOST_PODS))
    links = "sed 's/.*/link add link-of-a-& type dummy/' | ip -batch -"
    run(node, "sh", "-ec", f"seq 10001 {10000 + MOST_PODS} | {links}")
    flowtable = Flowtable("inet many", "many", devices)
    with wiring.inside(node.namespace), closing(NftSocket()) as channel:
        channel.commit([nf_tables.new_table("many"), flowtables.new_flowtable("many", "many")])
        channel.commit(flowtables.add_devices(flowtable))
        assert flowtable in flowtables.read_flowtables(channel)
        channel.commit(flowtables.remove_devices(flowtable))
        assert replace(flowtable, devices=frozenset()) in flowtables.read_flowtables(channel)
    nft(node, "delete table inet many")


def test_the_rules_of_a_node_with_more_links_than_one_message_names_can_change(
    node: LabNode,
) -> None:
    for number in range(PODS):
        node.add(f"pod-{number}")
    wait_for_links(node)
    # All of them leave the flowtable before the rules change, and are put into it at once.
    restart(node, internal=["192.168.0.0/16"])
    wait_for_links(node)
