"""`python -m tests.bench [SUBJECT…]`: measure, and print each figure beside its budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.bench import (
    attaching,
    crowded,
    forwarding,
    growth,
    limits,
    planning,
    profile,
    routing,
    starting,
    throughput,
)
from tests.bench.report import SMOKE, Effort, Figure
from tests.bench.running import run

SUBJECTS: dict[str, Callable[[Effort], Iterator[Figure]]] = {
    "attaching": attaching.measure,
    "crowded": crowded.measure,
    "forwarding": forwarding.measure,
    "profile": profile.measure,
    "throughput": throughput.measure,
    "starting": starting.measure,
    "planning": planning.measure,
    "routing": routing.measure,
    "growth": growth.measure,
    "limits": limits.measure,
}

if __name__ == "__main__":
    run("bench", __doc__, SUBJECTS, Effort(), SMOKE)
