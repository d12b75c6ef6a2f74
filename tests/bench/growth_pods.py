"""What an agent's work costs as its node gets pods, and as more of them have to be repaired."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from statistics import median

from netmgr.agent.accounting import Accounting
from netmgr.agent.components import Agent
from netmgr.agent.files import Files
from netmgr.agent.main import SystemClock
from netmgr.agent.node import Node
from netmgr.agent.pool import Pool
from netmgr.documents import loader
from netmgr.documents.node import NodeDocument
from netmgr.model import Attachment
from tests.bench.forwarding import run_in
from tests.bench.plugins import Plugin
from tests.bench.report import Effort
from tests.lab import wiring
from tests.lab.nodes import LabNode

LONG_SECONDS = 2.0
"""What takes longer in all is repeated no more."""
BURST = 100
READ_WHEN_ASKED = {"accounting": {"reading_seconds": 300, "min_reading_seconds": 0}}
"""Settings of the node: every snapshot and scrape reads the kernel, and nothing else does."""

Costs = dict[str, dict[int, float]]
"""Milliseconds of each thing, by size."""


def with_pods(effort: Effort, plugin: Plugin, node: LabNode) -> Costs:
    """What costs how much with how many pods, none of which needs to be repaired."""
    costs: Costs = defaultdict(dict)
    names, present = count(), 0
    for pods in effort.pods:
        _attach(plugin, [f"pod-{next(names)}" for _ in range(pods - present)])
        present = pods
        added = [f"pod-{next(names)}" for _ in range(effort.alone)]
        costs["ADD"][pods] = _median_add(plugin, added)
        costs["reading and snapshot"][pods] = least(node.snapshot, effort)
        costs["scrape"][pods] = least(node.scrape, effort)
        node.stop_agent()
        with _parts(node) as agent:
            look = {
                "links": agent.get(Node).repair_wiring,
                "rules": agent.get(Accounting).accounts.reconcile,
            }
            for what, step in look.items():
                costs[f"looking for drift of {what}"][pods] = least(step, effort)
        costs["start to ready"][pods] = _timed(lambda: _start(node))
    return costs


def with_drift(effort: Effort, node: LabNode) -> Costs:
    """What repairs cost after another program removed what so many pods need."""
    costs: Costs = defaultdict(dict)
    node.stop_agent()
    with _parts(node) as agent:
        accounting, wired = agent.get(Accounting), agent.get(Node)
        for altered in effort.pods:
            pods = agent.attachments()[:altered]
            addresses = [address for pod in pods for address in pod.addresses]
            accounting.rules.expel(addresses)
            costs["repairing sets"][altered] = _timed(accounting.accounts.reconcile)
            _remove_routes(node, pods)
            costs["repairing routes"][altered] = _timed(wired.repair_wiring)
            assert not wired.dataplane.drift(agent.attachments).broken
    return costs


def least(step: Callable[[], object], effort: Effort) -> float:
    """Milliseconds of the fastest of several times."""
    took: list[float] = []
    while len(took) < effort.rounds and sum(took) < 1000 * LONG_SECONDS:
        took.append(_timed(step))
    return min(took)


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return 1000 * (time.perf_counter() - began)


def _attach(plugin: Plugin, pods: Sequence[str]) -> None:
    plugin.make_pods(pods)
    for first in range(0, len(pods), BURST):
        plugin.call_at_once("ADD", pods[first : first + BURST])


def _median_add(plugin: Plugin, pods: Sequence[str]) -> float:
    plugin.make_pods(pods)
    took = []
    for pod in pods:
        took.append(1000 * plugin.call("ADD", pod))
        plugin.call("DEL", pod)
    plugin.remove_pods(pods)
    return median(took)


def _start(node: LabNode) -> None:
    node.start_agent()
    node.wait_until_ready()


@contextmanager
def _parts(node: LabNode) -> Iterator[Agent]:
    """The parts of the node's agent, which has ended, in this process: each is timed by itself."""
    document = loader.load(node.document, NodeDocument)
    with wiring.inside(node.namespace), ExitStack() as stack:
        agent = Agent(node.document, document, SystemClock(), (), stack)
        agent.open((Files, Pool, Accounting, Node))
        for kind in (Pool, Accounting):
            agent.get(kind).start()
        yield agent


def _remove_routes(node: LabNode, pods: Sequence[Attachment]) -> None:
    lines = [f"route del {address}" for pod in pods for address in pod.addresses]
    run_in(node, "ip", "-batch", "-", stdin="\n".join(lines))
