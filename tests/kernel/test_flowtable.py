"""Whether this node's connections skip the rules, and why not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.kernel import flowtables
from netmgr.kernel.nf_tables_socket import NftSocket
from tests.kernel.common import netmgr
from tests.lab.topology import cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PROMISES = (
    "tests/kernel/flowtable_promises.py",
    "tests/kernel/flowtable_internet.py",
    "tests/kernel/flowtable_devices.py",
    "tests/contracts/uplink_promises.py",
)
FIRST = (
    "(4 and (no_rule or to_the_byte or holds)) or another_pod_cannot or comes_later or vlan"
    " or without_ethernet or (class and rules) or added_and_removed"
)
"""Those that take the least time; `make vm` runs all."""


def kernel_has_flowtables() -> bool:
    with closing(NftSocket()) as channel:
        return flowtables.is_supported(channel)


@pytest.mark.timeout(5400)  # QEMU without KVM takes minutes, and more beside other work
def test_every_promise_holds_where_the_kernel_has_flowtables() -> None:
    machine = [] if kernel_has_flowtables() else [".ci/vm", "debian"]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "root", *PROMISES, "-k", FIRST]
    command = [*machine, *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_asking_the_kernel_leaves_nothing_behind() -> None:
    before = subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout
    kernel_has_flowtables()
    after = subprocess.run(["nft", "list", "tables"], capture_output=True, check=True).stdout
    assert before == after


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"flowtable": False}, "node.yaml has flowtable: off"),
        (
            {"accounting": {"classes": [{"name": "lan", "prefixes": ["10.9.0.0/16"]}]}},
            "accounting.classes count internal packets, too",
        ),
        ({"backend": Backend.IPTABLES_LEGACY.value}, "iptables-legacy has none"),
    ],
)
def test_a_node_says_why_its_connections_meet_the_rules(
    lab_name: str, settings: dict[str, object], reason: str
) -> None:
    with World(
        cluster(nodes=1, pods=0), name=lab_name, settings=settings, exporters=False
    ) as world:
        shown = world.nodes[0].snapshot()["flowtable"]
        assert shown == {"links": 0, "off": reason}
        page = netmgr("node", "status", "--socket", str(world.nodes[0].ledger_socket)).stdout
        assert f"flowtable: off, {reason}" in page
