"""An agent starts on the state that the release before this one left (`tests/golden/older`)."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.conforming import eventually
from tests.kernel.namespaces import inside
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

OLDER = Path(__file__).parents[1] / "golden" / "older"
COUNTED = {
    ("gone", "internet-in"): (2028, 6),
    ("gone", "internet-out"): (3228, 6),
    ("late", "internet-in"): (0, 0),
    ("late", "internet-out"): (0, 0),
    ("stays", "internet-in"): (6760, 20),
    ("stays", "internet-out"): (10760, 20),
}


@pytest.fixture
def world(lab_name: str) -> Iterator[World]:
    topology = cluster(nodes=1, pods=0)
    with World(topology, backend=Backend.NFTABLES, name=lab_name, exporters=False) as made:
        yield made


def restart_with(node: LabNode) -> None:
    """Restart the agent with the older state, as if the machine had been rebooted in between."""
    node.stop_agent()
    # The kernel's mark says which ledger counts there; a reboot takes it.
    inside(node.namespace, "nft", "flush", "ruleset")
    state = node.directory / "state"
    shutil.rmtree(state)
    state.mkdir()
    for name in ("ipam", "ledger"):
        with closing(sqlite3.connect(state / f"{name}.sqlite")) as connection:
            connection.executescript((OLDER / f"{name}.sql").read_text())
            if name == "ledger":
                # As if it were of today: totals of pods that ended long ago are their namespaces'.
                connection.execute("UPDATE ended SET since = ?", [time.time()])
                connection.commit()
    node.start_agent()
    node.wait_until_ready()


def counted(node: LabNode) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (row["pod"], row["traffic"]): (row["bytes"], row["packets"])
        for row in node.snapshot()["pods"]
    }


def test_totals_go_on_and_addresses_of_pods_that_are_gone_are_free(
    world: World, node: LabNode
) -> None:
    restart_with(node)
    assert counted(node) == COUNTED, (node.directory / "agent.log").read_text()
    assert node.ask("pods")["attachments"] == []
    assert node.snapshot()["state_rebuilds"] == 0
    assert [pool["allocated"] for pool in node.snapshot()["pool"]] == [0, 0]
    again = node.add("stays")
    assert not {"10.128.16.0", "10.128.16.1", "10.128.16.2"} & set(map(str, again.addresses))
    for family in Family:
        far = End(world.internet, INTERNET[family])
        datagrams(End(again.netns, again.address(family)), far, [500] * 10, [300] * 10)
    doubled = {
        ("stays", way): (2 * size, 2 * packets)
        for (pod, way), (size, packets) in COUNTED.items()
        if pod == "stays"
    }
    # A snapshot that follows another within a moment has the same reading.
    assert eventually(lambda: counted(node).items() >= doubled.items())
    node.runtime.delete(again)
