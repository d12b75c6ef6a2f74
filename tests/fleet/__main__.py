"""`python -m tests.fleet [SUBJECT…]`: what thousands of nodes cost, on real parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.bench.report import Figure, run
from tests.fleet import budgets, cluster, scraping
from tests.fleet.effort import SMOKE, Effort

SUBJECTS: dict[str, Callable[[Effort], Iterator[Figure]]] = {
    "prometheus": scraping.measure,
    "cluster": cluster.measure,
    "budgets": budgets.measure,
}

if __name__ == "__main__":
    run("fleet", __doc__, SUBJECTS, Effort(), SMOKE)
