"""A full node: what ADD costs there, what agent and exporter weigh, how long a scrape takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from netmgr.lab import processes
from netmgr.lab.nodes import LabNode
from tests.bench.plugins import Plugin, netmgr
from tests.bench.report import Effort, Figure

MEGABYTE = 1024 * 1024


def measure(effort: Effort) -> Iterator[Figure]:
    """ADD on a full node beside ADD on an empty one, in turns, then the full node's footprint."""
    for backend in effort.backends:
        with netmgr(backend) as (empty, _), netmgr(backend) as (full, node):
            _fill(full, effort.crowd)
            own, other = _add_medians((full, empty), effort.alone)
            pods = f"{effort.crowd} pods"
            yield Figure(f"ADD with {pods}, {backend}", own, "ms", other, "none", 1.1)
            yield from _footprint(node, f"{pods}, {backend}", effort.rounds)


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


def _fill(plugin: Plugin, count: int) -> None:
    pods = [f"crowd-{number}" for number in range(count)]
    plugin.make_pods(pods)
    plugin.call_at_once("ADD", pods)


def _footprint(node: LabNode, where: str, rounds: int) -> Iterator[Figure]:
    scrapes = [_timed_scrape(node) for _ in range(3 * rounds)]
    yield Figure(f"scrape time, {where}", 1000 * median(took for took, _ in scrapes), "ms")
    yield Figure(f"scrape size, {where}", max(size for _, size in scrapes) / 1000, "kB")
    yield Figure(
        f"agent's memory, {where}",
        resident_bytes(process_of(node, "agent")) / MEGABYTE,
        "MB",
        budget=60,
    )
    exporter = process_of(node, "netmgr.lab.unprivileged")
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
