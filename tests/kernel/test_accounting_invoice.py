"""An invoice rebuilt: prices times usage is, to the cent, what a capture in the lab saw."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.main import main
from netmgr.prefixes import Family
from tests.builders import PRICES
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING, one_of
from tests.lab.capture import Capture, Tally
from tests.lab.exchange import End, datagrams, stream
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = pytest.mark.root

SIZES = [1, 700, 1200]
FAR = {"name": "zone", "prefixes": [str(block) for block in cluster(pods=100).nodes[1].ranges]}
VENDOR = {"name": "vendor", "prefixes": [str(INTERNET[Family.V6].prefix)]}
"""The internet host's IPv6 address is one that a vendor has, so the two are told apart."""

WORLD = {"settings": {"accounting": {"min_reading_seconds": 0, "classes": [FAR, VENDOR]}}}
# So dear that a cent is ten bytes.
PER_GB = {"internet-out": 1_000_000, "internet-in": 250_000.5, "vendor-out": 500_000, "zone-out": 1}
CENT = Decimal("0.01")


backend = one_of(EVERY_WAY_OF_COUNTING)


@pytest.fixture
def invoice(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Callable[..., list[dict[str, str]]]:
    prices = tmp_path / "prices.yaml"
    content = yaml.safe_load(PRICES) | {"traffic": PER_GB}
    prices.write_text(yaml.safe_dump(content))

    def rows() -> list[dict[str, str]]:
        socket = world.node("node-1").ledger_socket
        line = f"netmgr usage -o focus --prices {prices} --socket {socket}"
        monkeypatch.setattr(sys, "argv", line.split())
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    return rows


def charged(rows: list[dict[str, str]], pod: Sandbox) -> Decimal:
    own = (Decimal(row["BilledCost"]) for row in rows if row["ResourceName"] == pod.pod.name)
    return sum(own, Decimal(0)).quantize(CENT, ROUND_HALF_EVEN)


def test_prices_times_usage_is_what_a_capture_saw(
    world: World, new_pod: Callable[[str], Sandbox], invoice: Callable[..., Any]
) -> None:
    pod, far = new_pod("node-1"), new_pod("node-2")
    with Capture(world.internet, "eth0") as capture:
        for family in Family:
            own = End(pod.netns, pod.address(family))
            peer = End(world.internet, INTERNET[family])
            datagrams(own, peer, SIZES, SIZES[1:] + SIZES[:1])
            stream(own, peer, 200_000, 50_000)
        capture.settle()
        seen: dict[tuple[Family, str], Tally] = {}
        for flow, tally in capture.flows().items():
            key = flow.peer.family, "in" if flow.traffic.is_inward else "out"
            seen[key] = seen.get(key, Tally()) + tally
    v4 = End(pod.netns, pod.address(Family.V4))
    zone = datagrams(v4, End(far.netns, far.address(Family.V4)), SIZES, SIZES).forth
    expected = (
        Decimal(PER_GB["internet-out"]) * seen[Family.V4, "out"].bytes
        + Decimal(str(PER_GB["internet-in"])) * seen[Family.V4, "in"].bytes
        + Decimal(PER_GB["vendor-out"]) * seen[Family.V6, "out"].bytes
        + Decimal(PER_GB["zone-out"]) * zone.bytes
    ) / 10**9
    asked = world.node("node-1").history(since="0", until="", by="pod")["rows"]
    rows = invoice()
    assert charged(rows, pod) == expected.quantize(CENT, ROUND_HALF_EVEN) > 200
    assert {row["x_MissingBytes"] for row in rows} == {"0"}
    consumed = {
        row["SkuId"]: int(row["ConsumedQuantity"])
        for row in rows
        if row["ResourceName"] == pod.pod.name
    }
    carried = sum(tally.bytes for tally in seen.values()) + 2 * zone.bytes
    assert sum(consumed.values()) == carried
    # The exporter, which `--cluster` asks, has the same.
    mine = {row["traffic"]: row["bytes"] for row in asked if row["pod"] == pod.pod.name}
    assert mine == consumed
