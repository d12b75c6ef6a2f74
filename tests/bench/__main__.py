"""`python -m tests.bench [SUBJECT…]`: measure, and print each figure beside its budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from tests.bench import (
    attaching,
    budgets,
    crowded,
    forwarding,
    growth,
    planning,
    routing,
    throughput,
)
from tests.bench.report import COUNTED, SMOKE, Effort, Figure, run

SUBJECTS: dict[str, Callable[[Effort], Iterator[Figure]]] = {
    "attaching": attaching.measure,
    "crowded": crowded.measure,
    "forwarding": forwarding.measure,
    "throughput": throughput.measure,
    "starting": crowded.measure_starting,
    "planning": planning.measure,
    "routing": routing.measure,
    "growth": growth.measure,
    "limits": throughput.measure_limits,
    "budgets": budgets.measure,
}

if __name__ == "__main__":
    run("bench", __doc__, SUBJECTS, COUNTED if "NETMGR_VM" in os.environ else Effort(), SMOKE)
