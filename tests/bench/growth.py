"""How costs grow with pods, drift, history and clusters: an exponent for each.

A cost of c x n^k is a straight line in logarithms, whose slope k is fitted by least squares: 0 does
not grow, 1 is linear. A constant part hides growth, so the last step is shown by itself as well.
"""

from __future__ import annotations

import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout
from functools import partial
from itertools import count, islice
from math import log
from pathlib import Path
from statistics import linear_regression, median
from tempfile import TemporaryDirectory

from netmgr.agent.accounting.accounting import NodeAccounting
from netmgr.agent.cni.node import Node
from netmgr.agent.cni.repairs import Repairs
from netmgr.agent.core.components import Agent
from netmgr.agent.core.files import Files
from netmgr.agent.main import SystemClock
from netmgr.agent.network.pool import NodeAddresses
from netmgr.cli.plan import app
from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.ledger.history import SECONDS, By, Period, Retention
from netmgr.ledger.ledger import PRUNE_SECONDS, Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.bench.forwarding import run_in
from tests.bench.planning import document
from tests.bench.plugins import Plugin, netmgr
from tests.bench.report import EXPONENT, Effort, Figure, short
from tests.lab import wiring
from tests.lab.nodes import LabNode

BUDGET = 1.1
LONG_SECONDS = 2.0
"""What takes longer in all is repeated no more."""

READ_WHEN_ASKED = {"accounting": {"reading_seconds": 300, "min_reading_seconds": 0}}
"""Settings of the node: every scrape reads the kernel, and nothing else does."""

LEDGER_PODS = 30
A_YEAR = Retention(8784, 10_000_000)
"""The longest history that a document may ask for."""
WAYS = (Traffic.INTERNET_IN, Traffic.INTERNET_OUT)

COMMANDS = {"plan lock": ("lock", "--yes"), "plan render node": ("render", "node", "c0-gpu-0")}

Costs = dict[str, dict[int, float]]
"""Milliseconds of each thing, by size."""


def measure(effort: Effort) -> Iterator[Figure]:
    """Exponents of what a larger site, or a longer life, could make slow."""
    with netmgr(Backend.NFTABLES, READ_WHEN_ASKED) as (plugin, node):
        yield from figures(_with_pods(effort, plugin, node), "pods")
        yield from figures(_with_drift(effort, node), "altered pods")
    yield from figures(_ledger(effort), "days of history")
    yield from figures(_plans(effort), "clusters")


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
            name = f"{what}, {sizes} {of}: {values} ms"
            yield Figure(name, exponent(part), EXPONENT, budget=BUDGET)


def _least(step: Callable[[], object], effort: Effort) -> float:
    """Milliseconds of the fastest of several times."""
    took: list[float] = []
    while len(took) < effort.rounds and sum(took) < 1000 * LONG_SECONDS:
        took.append(_timed(step))
    return min(took)


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - began)


def _with_pods(effort: Effort, plugin: Plugin, node: LabNode) -> Costs:
    costs: Costs = defaultdict(dict)
    present = 0
    for pods in effort.pods:
        plugin.fill([f"pod-{number}" for number in range(present, pods)])
        present = pods
        costs["ADD"][pods] = _median_add(plugin, [f"{pods}-{n}" for n in range(effort.alone)])
        costs["scrape"][pods] = _least(node.scrape, effort)
    return costs


def _median_add(plugin: Plugin, pods: Sequence[str]) -> float:
    plugin.make_pods(pods)
    took = []
    for pod in pods:
        took.append(1000 * plugin.call("ADD", pod))
        plugin.call("DEL", pod)
    plugin.remove_pods(pods)
    return median(took)


def _with_drift(effort: Effort, node: LabNode) -> Costs:
    """What repairs cost after another program removed so many pods' routes.

    The parts of the node's agent, which has ended, are in this process: each is timed by itself.
    """
    costs: Costs = defaultdict(dict)
    node.stop_agent()
    parsed = loader.load(node.document, NodeDocument)
    with wiring.inside(node.namespace), ExitStack() as stack:
        agent = Agent(node.document, parsed, SystemClock(), (), stack)
        agent.open((Files, NodeAddresses, NodeAccounting, Node, Repairs))
        for kind in (NodeAddresses, NodeAccounting):
            agent.get(kind).start()
        repairs, dataplane = agent.get(Repairs), agent.get(NodeAddresses).dataplane
        for altered in effort.pods:
            pods = agent.attachments()[:altered]
            lines = [f"route del {address}" for pod in pods for address in pod.addresses]
            run_in(node, "ip", "-batch", "-", stdin="\n".join(lines))
            costs["repairing routes"][altered] = _timed(repairs.repair_wiring)
            assert not dataplane.drift(agent.attachments).broken
    return costs


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
    with TemporaryDirectory() as folder:
        path, clock = Path(folder, "ledger.sqlite"), _Hours()
        for days in effort.days:
            with closing(_opened(path, clock)) as ledger:
                while clock.passed < 24 * days:
                    clock.passed += 1
                    _post(ledger, clock.passed)
                    if clock.passed % 24 == 0:
                        ledger.checkpoint()
            with closing(_opened(path, clock)) as ledger:
                whole = Period.around(0, clock.now() + SECONDS)
                usage = partial(ledger.usage, whole, [By.POD])
                costs["usage of the whole history"][days] = _least(usage, effort)
                costs["sweep, with the history bounded"][days] = _least(ledger.sweep, effort)
    return costs


def _opened(path: Path, clock: _Hours) -> Ledger:
    ledger = Ledger(
        LedgerStore(path), clock=clock, linger_seconds=0, boot_id="boot", retention=A_YEAR
    )
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


def _plans(effort: Effort) -> Costs:
    """Commands without Python's own start, for clusters of ten nodes."""
    costs: Costs = defaultdict(dict)
    for clusters in effort.clusters:
        with TemporaryDirectory() as folder:
            plan = Path(folder, "plan.yaml")
            plan.write_text(document(clusters, 10))
            for what, command in COMMANDS.items():
                run = partial(_run, plan, *command)
                # Once unmeasured: a command's first run imports its modules.
                run()
                costs[what][clusters] = _least(run, effort)
    return costs


def _run(plan: Path, command: str, *arguments: str) -> None:
    if command == "lock":
        plan.with_name("plan.lock.yaml").unlink(missing_ok=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = app([command, *arguments, "-f", str(plan)], standalone_mode=False)
    assert not code, f"plan {command} ends with {code}"
