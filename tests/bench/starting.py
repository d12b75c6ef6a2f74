"""From nothing to ready: the agent, and the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tests.bench.plugins import netmgr
from tests.bench.report import Effort, Figure
from tests.lab.nodes import LabNode

SOURCE = Path(__file__).resolve().parents[2]


def measure(effort: Effort) -> Iterator[Figure]:
    """Agent restarts, then `netmgr --help` beside a Python that does nothing."""
    for backend in effort.backends:
        with netmgr(backend) as (_, node):
            took = [_restart(node) for _ in range(effort.starts)]
            yield Figure.of(f"agent start to ready, {backend}", took, "s", median, budget=1)
    showing_help = median(
        _run([sys.executable, "-m", "netmgr", "--help"]) for _ in range(effort.starts)
    )
    bare = median(_run([sys.executable, "-c", "pass"]) for _ in range(effort.starts))
    yield Figure("netmgr --help beyond bare Python", 1000 * (showing_help - bare), "ms", budget=150)


def _restart(node: LabNode) -> float:
    node.stop_agent()
    began = time.perf_counter()
    node.start_agent()
    node.wait_until_ready()
    return time.perf_counter() - began


def _run(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=SOURCE, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began
