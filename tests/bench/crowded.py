"""A full node: what ADD, a reading and a scrape cost there, and what agent and exporter take; and
how long the agent and the command line take to start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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
from tests.bench.processor import processor_seconds
from tests.bench.report import SOURCE, Effort, Figure
from tests.lab import processes, wiring
from tests.lab.nodes import LabNode

MEGABYTE = 1024 * 1024
AS_INSTALLED = {"reconcile_seconds": 10}
IDLE_SECONDS = 7
"""How long an agent is watched for each round: all rounds together see several reconcile passes."""


def measure(effort: Effort) -> Iterator[Figure]:
    """ADD on a full node beside ADD on an empty one, in turns, then the full node's footprint."""
    for backend in effort.backends:
        with netmgr(backend) as (empty, _), netmgr(backend) as (full, node):
            full.fill([f"crowd-{number}" for number in range(effort.crowd)])
            own, other = _add_medians((full, empty), effort.alone)
            pods = f"{effort.crowd} pods"
            yield Figure(f"ADD with {pods}, {backend}", own, "ms", other, "none", 1.1)
            yield from _footprint(node, f"{pods}, {backend}", effort.rounds)
        with netmgr(backend, AS_INSTALLED) as (full, node):
            full.fill([f"crowd-{number}" for number in range(effort.crowd)])
            yield _idle(node, f"{effort.crowd} pods, {backend}", effort.rounds)
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


def measure_starting(effort: Effort) -> Iterator[Figure]:
    """Agent restarts, then `netmgr --help` beside a Python that does nothing."""
    for backend in effort.backends:
        with netmgr(backend) as (_, node):
            took = [_restart(node) for _ in range(effort.starts)]
            yield Figure.of(f"agent start to ready, {backend}", took, "s", median, budget=1)
    help_, bare = (
        median(_run(sys.executable, *arguments) for _ in range(effort.starts))
        for arguments in (("-m", "netmgr", "--help"), ("-c", "pass"))
    )
    yield Figure("netmgr --help beyond bare Python", 1000 * (help_ - bare), "ms", budget=150)


def _restart(node: LabNode) -> float:
    node.stop_agent()
    began = time.perf_counter()
    node.start_agent()
    node.wait_until_ready()
    return time.perf_counter() - began


def _run(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=SOURCE, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _idle(node: LabNode, where: str, rounds: int) -> Figure:
    process = process_of(node, "agent")
    began, before = time.monotonic(), processor_seconds(process)
    time.sleep(IDLE_SECONDS * rounds)
    spent = processor_seconds(process) - before
    share = 100 * spent / (time.monotonic() - began)
    return Figure(f"agent's processor time, idle, {where}", share, "% of one", budget=0.5)


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
    for program, word, budget in (
        ("agent", "agent", 40),
        ("exporter", "tests.lab.unprivileged", 35),
    ):
        memory = resident_bytes(process_of(node, word)) / MEGABYTE
        yield Figure(f"{program}'s memory, {where}", memory, "MB", budget=budget)


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
