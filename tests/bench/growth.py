"""How costs grow with pods, drift, history, nodes and clusters: an exponent for each.

A cost of c x n^k is a straight line in logarithms, whose slope k is fitted by least squares: 0 does
not grow, 1 is linear. A constant part hides growth, so the last step is shown by itself as well.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import partial
from itertools import count, islice
from math import log
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory

from netmgr.cli.plan import app
from netmgr.ledger.history import SECONDS, By, Period, Retention
from netmgr.ledger.ledger import PRUNE_SECONDS, Ledger
from netmgr.ledger.store import Store
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.bench.growth_pods import READ_WHEN_ASKED, Costs, least, with_drift, with_pods
from tests.bench.plugins import netmgr
from tests.bench.report import EXPONENT, Effort, Figure, short

BUDGET = 1.1

LEDGER_PODS = 30
A_YEAR = Retention(8784, 10_000_000)
"""The longest history that a document may ask for."""
WAYS = (Traffic.INTERNET_IN, Traffic.INTERNET_OUT)

CLUSTERS, NODES_OF_CLUSTER = 10, 10
PLAN = """\
apiVersion: netmgr.io/v1alpha1
kind: NetworkPlan
name: growth
pools: {nodes: [10.0.0.0/8], services: [172.16.0.0/12]}
limits:
  mappings_per_peered_group: 1000000
  peerings_per_network: 10000
  route_tables: 100000
  routes_per_table: 100000
clusters:
"""
"""As far as a thousand clusters exceed the cloud's limits, these are raised."""
COMMANDS = {
    "plan lock": ("lock", "--yes"),
    "plan check": ("check",),
    "plan render node": ("render", "node", "c0-gpu-0"),
    "plan render terraform": ("render", "terraform"),
}


def measure(effort: Effort) -> Iterator[Figure]:
    """Exponents of what a larger site, or a longer life, could make slow."""
    for backend in effort.backends:
        with netmgr(backend, READ_WHEN_ASKED) as (plugin, node):
            yield from figures(with_pods(effort, plugin, node), f"pods, {backend}")
            yield from figures(with_drift(effort, node), f"altered pods, {backend}")
    yield from figures(_ledger(effort), "days of history")
    of_nodes = {nodes: (CLUSTERS, nodes // CLUSTERS) for nodes in effort.nodes}
    yield from figures(_plans(effort, of_nodes), "nodes")
    of_clusters = {clusters: (clusters, NODES_OF_CLUSTER) for clusters in effort.clusters}
    yield from figures(_plans(effort, of_clusters), "clusters")


def exponent(costs: Mapping[int, float]) -> float:
    """The slope of log cost on log size, by least squares."""
    slope, _ = linear_regression([log(size) for size in costs], [log(c) for c in costs.values()])
    return slope


def figures(measured: Costs, of: str) -> Iterator[Figure]:
    """For each thing the exponent over all sizes, and that of the last step alone."""
    for what, costs in measured.items():
        last = dict(islice(costs.items(), len(costs) - 2, None))
        for part in (costs, last) if len(costs) > len(last) else (costs,):
            sizes = ", ".join(f"{size:,}" for size in part)
            values = ", ".join(map(short, part.values()))
            unit = " kB" if "size" in what else " ms"
            name = f"{what}, {sizes} {of}: {values}{'' if 'requests' in what else unit}"
            yield Figure(name, exponent(part), EXPONENT, budget=BUDGET)


class _Hours:
    """The clocks of a machine: hours pass when told, and the steady one shows each look."""

    def __init__(self) -> None:
        self.passed = 0
        self._looks = count(step=PRUNE_SECONDS)

    def now(self) -> float:
        return 1.8e9 + self.passed * SECONDS

    def monotonic(self) -> float:
        return next(self._looks)


def _ledger(effort: Effort) -> Costs:
    """A ledger whose pods had traffic in every hour."""
    costs: Costs = defaultdict(dict)
    readings = count(1)
    with TemporaryDirectory() as folder:
        path, clock = Path(folder, "ledger.sqlite"), _Hours()
        for days in effort.days:
            with closing(_opened(path, clock)) as ledger:
                while clock.passed < 24 * days:
                    clock.passed += 1
                    _post(ledger, next(readings))
                    if clock.passed % 24 == 0:
                        ledger.checkpoint()
            costs["ledger's file size"][days] = path.stat().st_size / 1000
            costs["ledger's start"][days] = least(lambda: _opened(path, clock).close(), effort)
            with closing(_opened(path, clock)) as ledger:
                for what, took in _while_open(ledger, clock, readings, effort):
                    costs[what][days] = took
    return costs


def _while_open(
    ledger: Ledger, clock: _Hours, readings: Iterator[int], effort: Effort
) -> Iterator[tuple[str, float]]:
    everything = Period.around(0, clock.now() + SECONDS)
    yield "posting a reading", least(lambda: _post(ledger, next(readings)), effort)
    yield "usage of the whole history", least(lambda: ledger.usage(everything, [By.POD]), effort)
    yield "sweep, with the history bounded", least(ledger.sweep, effort)


def _opened(path: Path, clock: _Hours) -> Ledger:
    ledger = Ledger(Store(path), clock=clock, linger_seconds=0, boot_id="boot", retention=A_YEAR)
    for pod in range(LEDGER_PODS):
        owner = PodRef("bench", f"pod-{pod}", f"uid-{pod}")
        ledger.begin([_counter(pod, way) for way in WAYS], owner)
    return ledger


def _post(ledger: Ledger, number: int) -> None:
    ledger.post(
        Sample(_counter(pod, way), 1000 * number, number)
        for pod in range(LEDGER_PODS)
        for way in WAYS
    )


def _counter(pod: int, way: Traffic) -> Counter:
    return Counter.of_pod(Address(Family.V4, (10 << 24) + pod), way)


def _plans(effort: Effort, shapes: Mapping[int, tuple[int, int]]) -> Costs:
    """Commands without Python's own start; `shapes` are clusters and the nodes of each, by size."""
    costs: Costs = defaultdict(dict)
    for size, (clusters, nodes) in shapes.items():
        with TemporaryDirectory() as folder:
            plan = Path(folder, "plan.yaml")
            plan.write_text(_plan(clusters, nodes))
            for what, command in COMMANDS.items():
                run = partial(_run, plan, *command)
                # Once unmeasured: a command's first run imports its modules.
                run()
                costs[what][size] = least(run, effort)
    return costs


def _plan(clusters: int, nodes: int) -> str:
    pools = f"{{gpu: {{nodes: {nodes}, pods_per_node: 32, surge: 0}}}}"
    lines = (
        f"  c{number}: {{node_pools: {pools}, services: {{length: 24}}}}\n"
        for number in range(clusters)
    )
    return PLAN + "".join(lines)


def _run(plan: Path, command: str, *arguments: str) -> None:
    if command == "lock":
        plan.with_name("plan.lock.yaml").unlink(missing_ok=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = app([command, *arguments, "-f", str(plan)], standalone_mode=False)
    assert not code, f"plan {command} ends with {code}"
