"""A full node: what ADD, a reading and a scrape cost there, and what agent and exporter take."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from netmgr.documents import loader
from netmgr.documents.node import Backend, NodeDocument
from netmgr.rules.choose import open_kind
from netmgr.rules.engine import Rules
from netmgr.rules.policy import Policy
from tests.bench.plugins import Plugin, netmgr
from tests.bench.report import Effort, Figure
from tests.lab import processes, wiring
from tests.lab.nodes import LabNode

MEGABYTE = 1024 * 1024
AS_INSTALLED = {"reconcile_seconds": 10}
_AT_ONCE = 250
_CPUCLOCK_SCHED = 2
IDLE_SECONDS = 7
"""How long an agent is watched for each round: all rounds together see several reconcile passes."""


def measure(effort: Effort) -> Iterator[Figure]:
    """ADD on a full node beside ADD on an empty one, in turns, then the full node's footprint."""
    for backend in effort.backends:
        with netmgr(backend) as (empty, _), netmgr(backend) as (full, node):
            _fill(full, effort.crowd)
            own, other = _add_medians((full, empty), effort.alone)
            pods = f"{effort.crowd} pods"
            yield Figure(f"ADD with {pods}, {backend}", own, "ms", other, "none", 1.1)
            yield from _footprint(node, f"{pods}, {backend}", effort.rounds)
        with netmgr(backend, AS_INSTALLED) as (full, node):
            _fill(full, effort.crowd)
            yield _idle(node, f"{effort.crowd} pods, {backend}", effort.rounds)
            yield _reading(full, node, backend, effort.rounds)
            _fill(full, effort.big_crowd, effort.crowd)
            yield _reading(full, node, backend, effort.rounds)


def _add_medians(plugins: Sequence[Plugin], count: int) -> list[float]:
    pods = [f"one-{number}" for number in range(count)]
    took: dict[Plugin, list[float]] = {plugin: [] for plugin in plugins}
    for plugin in plugins:
        plugin.make_pods(pods)
    for pod in pods:
        for plugin in plugins:
            took[plugin].append(plugin.call("ADD", pod))
            plugin.call("DEL", pod)
    return [1000 * median(took[plugin]) for plugin in plugins]


def _fill(plugin: Plugin, count: int, present: int = 0) -> None:
    pods = [f"crowd-{number}" for number in range(present, count)]
    plugin.make_pods(pods)
    for first in range(0, len(pods), _AT_ONCE):
        plugin.call_at_once("ADD", pods[first : first + _AT_ONCE])


def _idle(node: LabNode, where: str, rounds: int) -> Figure:
    process = process_of(node, "agent")
    began, before = time.monotonic(), _processor_seconds(process)
    time.sleep(IDLE_SECONDS * rounds)
    spent = _processor_seconds(process) - before
    share = 100 * spent / (time.monotonic() - began)
    return Figure(f"agent's processor time, idle, {where}", share, "% of one", budget=0.5)


def _processor_seconds(process: int) -> float:
    """User and system time so far, to the nanosecond."""
    # As clock_getcpuclockid(3) makes the number; the ticks of proc_pid_stat(5) are too long for an
    # idle agent.
    return time.clock_gettime((~process << 3) | _CPUCLOCK_SCHED)


def _reading(plugin: Plugin, node: LabNode, backend: Backend, rounds: int) -> Figure:
    """The counters of all pods, beside those of their links as cAdvisor reads them."""
    document = loader.load(node.document, NodeDocument)
    own, other = list[float](), list[float]()
    with (
        _processes_in(sorted(plugin.pods.iterdir())) as found,
        wiring.inside(node.namespace),
        # Beside the agent's, and only read.
        closing(Rules(open_kind(backend), Policy.of(document))) as rules,
    ):
        counted = {sample.counter.subject for sample in rules.read() if sample.counter.is_pod}
        assert len(counted) == len(found)
        # Processor time, since neither waits for anything, in turns.
        for _ in range(3 * rounds):
            own.append(_processor_ms(rules.read))
            other.append(_processor_ms(lambda: [_net_dev(one) for one in found]))
    reference = "/proc/PID/net/dev of each", other
    what = f"reading of {len(found)} pods, {backend}"
    return Figure.of(what, own, "ms", median, reference, 0.25)


def _processor_ms(step: Callable[[], object]) -> float:
    began = time.thread_time()
    step()
    return 1000 * (time.thread_time() - began)


@contextmanager
def _processes_in(namespaces: Sequence[Path]) -> Iterator[list[int]]:
    """A process in each."""
    started: list[int] = []
    try:
        for namespace in namespaces:
            with wiring.inside(namespace):
                started.append(os.posix_spawn("/bin/sleep", ["sleep", "infinity"], {}))
        yield started
    finally:
        for process in started:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _net_dev(process: int) -> list[tuple[bytes, list[int]]]:
    """Name and figures of each link of the process's namespace, as cAdvisor finds them out."""
    lines = Path(f"/proc/{process}/net/dev").read_bytes().splitlines()[2:]
    parted = (line.partition(b":") for line in lines)
    return [(name.strip(), list(map(int, figures.split()))) for name, _, figures in parted]


def _footprint(node: LabNode, where: str, rounds: int) -> Iterator[Figure]:
    scrapes = [_timed_scrape(node) for _ in range(3 * rounds)]
    yield Figure(f"scrape time, {where}", 1000 * median(took for took, _ in scrapes), "ms")
    yield Figure(f"scrape size, {where}", max(size for _, size in scrapes) / 1000, "kB")
    yield Figure(
        f"agent's memory, {where}",
        resident_bytes(process_of(node, "agent")) / MEGABYTE,
        "MB",
        budget=45,
    )
    exporter = process_of(node, "tests.lab.unprivileged")
    yield Figure(
        f"exporter's memory, {where}", resident_bytes(exporter) / MEGABYTE, "MB", budget=35
    )


def _timed_scrape(node: LabNode) -> tuple[float, int]:
    began = time.perf_counter()
    page = node.scrape()
    return time.perf_counter() - began, len(page)


def process_of(node: LabNode, word: str) -> int:
    """The process in the node's namespace that has `word` on its command line."""
    return next(
        number
        for number in processes.running_in([node.namespace])
        if word in processes.command_line(number)
    )


def resident_bytes(process: int) -> int:
    """Memory the process has in use (VmRSS, proc_pid_status(5))."""
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
