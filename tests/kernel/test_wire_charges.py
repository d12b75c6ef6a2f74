"""What bills of the wire ask for: the link layer of each packet, and quotas of wire bytes."""

from __future__ import annotations

import csv
import io
import json
import socket
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from netmgr.prefixes import Family
from tests.builders import PRICES
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.quota_traffic import pump
from tests.kernel.spending import IN, OUT
from tests.kernel.wires import in_parts, shell, wire_of
from tests.lab.capture import Tally
from tests.lab.exchange import open_socket, stream
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = [pytest.mark.root, ONLY_NFTABLES]

LINK_LAYER, QUOTA = 18, 3_000_000
SETTINGS = {
    "accounting": {"at": "links", "link_layer_bytes": LINK_LAYER, "charge": "wire"},
    "limits": [{"pods": "*/charged", "per-day": {OUT: "3M"}}],
    "reconcile_seconds": 0.25,
}
WORLD = {"settings": SETTINGS}


def charged(tally: Tally) -> int:
    return tally.bytes + LINK_LAYER * tally.packets


@pytest.mark.parametrize("family", Family)
def test_wire_bytes_have_the_link_layer_of_each_segment(world: World, family: Family) -> None:
    node = world.nodes[0]
    pod = node.add(f"billed-{family}")
    own, peer = pod.end(family), world.outside(family)
    with wire_of(world, node, pod) as wire:
        stream(own, peer, 3_000_000, 2_000_000)
        tallies = wire.carried()
    rows = [row for row in node.snapshot()["pods"] if row["pod"] == pod.pod.name]
    assert {row["traffic"]: row["wire"] for row in rows} == {
        way: charged(tally) for way, tally in tallies.items()
    }
    for row in rows:
        assert row["packets"] < tallies[row["traffic"]].packets, "nothing was segmented"
    node.runtime.delete(pod)


# So dear that a cent is ten bytes.
PER_GB = {OUT: 1_000_000, IN: 250_000}


def test_an_invoice_of_the_wire_is_rebuilt_to_the_cent(world: World, tmp_path: Path) -> None:
    node = world.nodes[0]
    pod, prices = node.add("invoiced"), tmp_path / "prices.yaml"
    prices.write_text(json.dumps(yaml.safe_load(PRICES) | {"charge": "wire", "traffic": PER_GB}))
    with wire_of(world, node, pod) as wire:
        for family in Family:
            own, peer = pod.end(family), world.outside(family)
            stream(own, peer, 300_000, 200_000)
            in_parts(own, peer, 37)
        tallies = wire.carried()
    expected = sum(PER_GB[way] * Decimal(charged(tally)) for way, tally in tallies.items()) / 10**9
    listed = shell(node, f"usage --since 1d -o focus --prices {prices}")
    rows = list(csv.DictReader(io.StringIO(listed)))
    mine = [row for row in rows if row["ResourceName"] == "invoiced"]
    cost = sum(Decimal(row["BilledCost"]) for row in mine)
    assert round(cost, 2) == round(expected, 2) > 100
    assert {row["SkuId"]: int(row["ConsumedQuantity"]) for row in mine} == {
        way: charged(tally) for way, tally in tallies.items()
    }
    table = shell(node, f"usage --since 1d --by pod --prices {prices}")
    (line,) = [line for line in table.splitlines() if "invoiced" in line]
    assert line.split()[-1] == f"{expected:.2f}"


def spend(world: World, node: LabNode) -> Tally:
    """What the uplink carries of a pod that sends by TCP until nothing passes any more."""
    pod = node.add("charged")
    with (
        wire_of(world, node, pod) as wire,
        open_socket(world.internet, Family.V4, socket.SOCK_STREAM) as listening,
        open_socket(pod.netns, Family.V4, socket.SOCK_STREAM) as near,
    ):
        listening.bind((str(INTERNET[Family.V4]), 0))
        listening.listen()
        near.connect(listening.getsockname())
        far, _ = listening.accept()
        with far:
            # Slowly, so that the agent looks often meanwhile.
            pump(near, far, still_seconds=2, pause=0.016)
        return wire.carried()[OUT]


@pytest.mark.alone
def test_a_quota_of_wire_bytes_is_kept_on_the_wire(world: World) -> None:
    node = world.nodes[0]
    tally = spend(world, node)
    sent = charged(tally)
    # A quota of bytes would let 1.045 times as many pass.
    assert 0.95 * QUOTA < sent < 1.02 * QUOTA
    (quota,) = [shown for shown in node.snapshot()["quotas"] if shown["pod"] == "charged"]
    assert quota["spent"]
    assert quota["used"] >= sent
