"""What a node keeps does not grow with the number of pods it has seen.

A few hundred pods in `make test-all`, 100,000 in `make soak`, and more with NETMGR_SOAK_PODS.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from netmgr import sqlite_file
from netmgr.documents.node import Backend
from tests.kernel.conftest import one_of
from tests.kernel.namespaces import inside
from tests.kernel.spending import Spender, gaps
from tests.lab.nodes import LabNode
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.alone]

PODS = int(os.environ.get("NETMGR_SOAK_PODS", "240"))
AT_ONCE = 4
SETTINGS = {
    "ranges": ["10.128.0.0/25", "fd00:128::/121"],
    "pool": {"cooldown_seconds": 0, "conntrack_wait_seconds": 0},
    "accounting": {"linger_seconds": 1, "history_rows": 1000},
    "reconcile_seconds": 5,
}
GROWTH_KIB = 8 << 10
"""What the agent's memory may vary by. A leak of 200 bytes a pod is more in a soak."""
IS_SOAK = PODS > 10_000
FLAT = (
    *("files", "rules", "link", "route show table all", "-6 route", "neighbour"),
    *(f"ipam.{table}" for table in ("attachments", "leases", "facts")),
    *(f"ledger.{table}" for table in ("fact", "counter", "total", "ended", "gap")),
)
LOG_BOUND = 32 * sqlite_file.LOG_BYTES
"""Of both logs: what may remain, and what is written between two reconcile passes.

A soak writes sixty times as much.
"""
TOMBSTONE_SECONDS = 600
"""How long the agent knows each deleted sandbox: the one thing that follows the rate of pods."""


WORLD = {"nodes": 1, "settings": SETTINGS, "exporters": False}
backend = one_of([Backend.NFTABLES])


def churn(world: World, node: LabNode, first: int, pods: int) -> None:
    """Have pods come and go, some of which send a packet."""

    def live(number: int) -> None:
        sandbox = node.add(f"pod-{number}", f"team-{number % 3}")
        if number % 8 == 0:
            Spender(world, node, sandbox).send()
        node.runtime.delete(sandbox)

    with ThreadPoolExecutor(AT_ONCE) as workers:
        for _ in workers.map(live, range(first, first + pods)):
            pass


def rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        counted = {}
        for table in tables:
            query = f"SELECT count(*) FROM {table}"  # noqa: S608  the file's own tables
            (counted[f"{path.stem}.{table}"],) = connection.execute(query).fetchone()
    return counted


def elements(node: LabNode) -> int:
    """Lines of all rules, sets and elements in the kernel."""
    listing = json.loads(inside(node.namespace, "nft", "-j", "list", "ruleset"))
    return len(json.dumps(listing, indent=0).splitlines())


def footprint(node: LabNode) -> dict[str, int]:
    """How many of each thing there are, in the agent, on the disk and in the kernel."""
    pid = node.agent_pid()
    state = node.directory / "state"
    found = {
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": len(list(Path(f"/proc/{pid}/task").iterdir())),
        "files": sum(1 for each in node.directory.rglob("*") if each.is_file()),
        "rules": elements(node),
    }
    for what in (["link"], ["route", "show", "table", "all"], ["-6", "route"], ["neighbour"]):
        found[" ".join(what)] = len(inside(node.namespace, "ip", *what).splitlines())
    return found | rows(state / "ipam.sqlite") | rows(state / "ledger.sqlite")


def resident(node: LabNode) -> int:
    """KiB of the agent's memory."""
    status = Path(f"/proc/{node.agent_pid()}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def logs(node: LabNode) -> int:
    """Bytes of both write-ahead logs."""
    return sum(path.stat().st_size for path in (node.directory / "state").glob("*-wal"))


def settled(node: LabNode) -> dict[str, int]:
    """The footprint once no ended pod's series lingers, and in a soak, no tombstone is left."""
    waits_for = {"ledger.ended", "ipam.tombstones"} if IS_SOAK else {"ledger.ended"}
    deadline = time.monotonic() + 60 + (TOMBSTONE_SECONDS if IS_SOAK else 0)
    while any((found := footprint(node))[what] for what in waits_for):
        assert time.monotonic() < deadline, found
        time.sleep(1)
    return found


def test_nothing_grows_with_the_pods_that_were(
    world: World, node: LabNode, capsys: pytest.CaptureFixture[str]
) -> None:
    half = PODS // 2
    # Two halves of one length: memory follows the most tombstones that there were at once.
    churn(world, node, 0, half)
    before, memory = settled(node), resident(node)
    churn(world, node, half, half)
    longest = logs(node)
    after, grown = settled(node), resident(node) - memory
    with capsys.disabled():
        print(f"\n{PODS} pods: logs of {longest} bytes, {grown:+} KiB of memory, {after}")  # noqa: T201  the figures are what a soak is for
    assert {what for what in FLAT if after[what] != before[what]} == set(), (before, after)
    assert after["descriptors"] <= before["descriptors"] + AT_ONCE
    assert after["threads"] <= before["threads"] + AT_ONCE
    # Every address that was given once, and the history's rows of ten minutes.
    assert after["ipam.released"] <= 2 * 128
    assert after["ledger.hour"] <= SETTINGS["accounting"]["history_rows"] + PODS // 8
    assert grown <= GROWTH_KIB
    assert longest <= LOG_BOUND
    assert gaps(node).keys() == {reason for reason, (count, _) in gaps(node).items() if not count}
