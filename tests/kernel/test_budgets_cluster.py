"""Budgets of a cluster of eight nodes: real agents, exporters, server, kernel limits and TCP."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from netmgr.budgets.terms import HOLD, OUTSTANDING, PERIOD
from netmgr.clock import DAY_SECONDS
from tests.kernel.budgeted import BudgetedCluster, Downloads
from tests.kernel.flows import MEGABIT
from tests.waiting import eventually

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.slow, pytest.mark.timeout(900)]

LIMIT = 80 * MEGABIT
BATCH, QUOTA = 40 * MEGABIT, 120_000_000
"""Bits a second, and bytes: an allowance that passes between two reports stalls TCP, which waits
longer each time."""
NODES = 8
SETTLED = 10.0
"""Seconds that are measured together."""

BUDGETS = [
    {"name": "everyone", "namespaces": ["*"], "internet-in": "1G"},
    {"name": "research", "within": "everyone", "namespaces": ["research"], "internet-in": "80M"},
    {
        "name": "batch",
        "within": "everyone",
        "namespaces": ["batch"],
        "internet-in": "40M",
        "per-day": str(QUOTA),
    },
]


@pytest.fixture(scope="module")
def budgeted() -> Iterator[BudgetedCluster]:
    name = f"budgets-{os.getpid()}"
    # Nobody may not enter pytest's own folders, and the exporters need their certificates.
    folder = Path("/run") / name
    folder.mkdir()
    try:
        with BudgetedCluster(folder, name, BUDGETS, NODES) as made:
            yield made
    finally:
        shutil.rmtree(folder)


def fairness(rates: Collection[float]) -> float:
    """Jain's index."""
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def is_kept(downloads: Downloads) -> bool:
    rates = downloads.rates(SETTLED).values()
    return 0.93 <= sum(rates) / LIMIT <= 1.05 and fairness(rates) > 0.95


def test_a_budget_is_kept_and_shared_by_pod_through_faults(budgeted: BudgetedCluster) -> None:
    with Downloads(budgeted.world.internet) as downloads:
        # By pod, not by node: the first one has three.
        for number, node in enumerate([*budgeted.nodes, *[budgeted.nodes[0]] * 2]):
            downloads.start(f"research-{number}", node.add(f"research-{number}").netns)

        def otherwise() -> str:
            log = (budgeted.folder / "server.log").read_text()
            return f"{downloads.rates(SETTLED)} {log[-2000:]}"

        eventually(lambda: is_kept(downloads), otherwise, seconds=120)
        began = time.monotonic()
        # A leader that is killed, and another that knows nothing but what was kept; and whose clock
        # was set back by a day.
        budgeted.kill_server()
        budgeted.start_server(ahead=-DAY_SECONDS)
        time.sleep(HOLD + PERIOD)
        eventually(lambda: is_kept(downloads), otherwise, seconds=120)
        # A partition of half of the nodes, longer than their rates hold.
        with budgeted.unreachable(budgeted.nodes[NODES // 2 :]):
            time.sleep(HOLD + PERIOD)
        eventually(lambda: is_kept(downloads), otherwise, seconds=120)
        # A node whose agent and exporter are killed.
        lost = budgeted.nodes[-1]
        lost.kill_exporter()
        lost.restart_after_kill()
        time.sleep(HOLD + PERIOD)
        budgeted.start_exporter(lost)
        eventually(lambda: is_kept(downloads), otherwise, seconds=120)
        assert max(downloads.windows(began, 2)) <= OUTSTANDING * LIMIT


def test_pods_of_all_nodes_get_no_more_than_the_quota(budgeted: BudgetedCluster) -> None:
    first_day = time.time() // DAY_SECONDS
    with Downloads(budgeted.world.internet) as downloads:
        for number, node in enumerate(budgeted.nodes):
            downloads.start(f"batch-{number}", node.add(f"batch-{number}", "batch").netns)
        eventually(lambda: downloads.total() > QUOTA / 8)
        budgeted.kill_server()
        budgeted.start_server()
        budgeted.nodes[0].restart_after_kill()
        eventually(lambda: downloads.total() > QUOTA * 0.6, seconds=180)
        # Without an end, twice the quota would pass meanwhile.
        time.sleep(2 * QUOTA * 8 / BATCH + 20)
        # Midnight (UTC) begins another quota.
        days = time.time() // DAY_SECONDS - first_day + 1
        assert downloads.total() <= QUOTA * days
