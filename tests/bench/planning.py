"""Planning: a whole process beside netaddr and the standard library; how full a pool gets, and what
growth adds to it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, median

from netmgr.documents import loader
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.locking import make_lock
from tests.bench import filling
from tests.bench.planning_peers import LIBRARIES
from tests.bench.report import SOURCE, Effort, Figure

FASTER = 0.1


def measure(effort: Effort) -> Iterator[Figure]:
    """`plan lock` as a process and alone, then filling and growth."""
    shape = f"{effort.shape[0]} clusters x {effort.shape[1]:,} nodes"
    with tempfile.TemporaryDirectory() as folder:
        plan, lock = Path(folder, "plan.yaml"), Path(folder, "plan.lock.yaml")
        plan.write_text(document(*effort.shape))
        took = []
        for _ in range(effort.starts):
            lock.unlink(missing_ok=True)
            took.append(_run(["netmgr", "plan", "lock", "-f", str(plan), "--yes"]))
        for library in LIBRARIES:
            # It takes seconds: once is enough.
            job = [library, *map(str, effort.shape), str(Path(folder, library))]
            peer = _run(["tests.bench.planning_peers", *job])
            yield Figure.of(f"plan lock, {shape}", took, "s", median, (library, [peer]), FASTER)
    parsed = loader.parse(document(*effort.shape), "plan.yaml", PlanDocument)
    limits = load_limits(parsed.cloud).agreed(parsed.limits)
    # Once unmeasured: its first run imports modules.
    make_lock(parsed, None, limits)
    ours = _timed(lambda: make_lock(parsed, None, limits))
    for library, allocate in LIBRARIES.items():
        theirs = _timed(partial(allocate, *effort.shape))
        yield Figure(f"lock alone, {shape}", 1e3 * ours, "ms", 1e3 * theirs, library, FASTER)
    yield from _filling(effort.seeds)


def document(clusters: int, nodes: int) -> str:
    """A plan of that shape: two /28 blocks a node, no surge."""
    pools = f"{{gpu: {{nodes: {nodes}, pods_per_node: 32, surge: 0}}}}"
    lines = [
        "apiVersion: netmgr.io/v1alpha1",
        "kind: NetworkPlan",
        "name: bench",
        "pools: {nodes: [10.0.0.0/8], services: [172.16.0.0/12]}",
        # As far as so many clusters or nodes exceed the cloud's limits, these are raised.
        "limits:",
        "  mappings_per_peered_group: 1000000",
        "  peerings_per_network: 10000",
        "  route_tables_per_region: 100000",
        "  routes_per_table: 100000",
        "  networks_per_region: 100000",
        "  interfaces_per_region: 10000000",
        "clusters:",
        *(
            f"  c{number}: {{node_pools: {pools}, services: {{length: 24}}}}"
            for number in range(clusters)
        ),
    ]
    return "\n".join(lines)


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _run(command: Sequence[str]) -> float:
    run = [sys.executable, "-m", *command]
    return _timed(lambda: subprocess.run(run, cwd=SOURCE, stdout=subprocess.DEVNULL, check=True))


def _filling(seeds: int) -> Iterator[Figure]:
    """How full a pool gets; then prefixes that growth added, and growth that was refused."""
    shapes = {"equal": [filling.equal(400)], "mixed": [filling.mixed(300, n) for n in range(seeds)]}
    for shape, several in shapes.items():
        theirs = 100 * mean(map(filling.fill_of_peer, several))
        ways = {"at once": filling.fill, "one by one": filling.fill_step_by_step}
        for way, fill in ways.items():
            what = f"{shape} clusters in a pool, {way}"
            ours = 100 * mean(map(fill, several))
            yield Figure(what, ours, "%", theirs, "first fit", budget=0.95, more_is_better=True)
    for declared, load in product((False, True), (0.1, 0.3, 0.5)):
        years = [filling.year(n, load, 30, declared=declared) for n in range(seeds)]
        growth = "declared" if declared else "undeclared"
        for rule, what in product(filling.RULES, ("extra", "refused")):
            mine, theirs = (
                mean(getattr(year[name], what) for year in years) for name in ("netmgr", rule)
            )
            named = f"{growth} growth of {load:.0%} of a pool, {what}"
            # What others' declared growth keeps free may be missing where the pool is full.
            budget = 1.0 if what == "extra" else 1.2
            yield Figure(named, mine, "", theirs or None, rule, budget=budget)
