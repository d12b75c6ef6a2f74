"""What `make fleet` measures still runs; with so few nodes only the requests mean something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netmgr.budgets.terms import OUTSTANDING
from tests.bench.report import Figure
from tests.fleet import budgets, cluster, scraping
from tests.fleet.effort import SMOKE


def values(figures: Iterator[Figure]) -> dict[str, float]:
    measured = {figure.what.strip(): figure.value for figure in figures}
    assert all(value >= 0 for value in measured.values())
    return measured


@pytest.mark.slow
@pytest.mark.root
def test_a_real_prometheus_is_measured() -> None:
    measured = values(scraping.measure(SMOKE))
    assert measured["samples of one scrape of 10 nodes"] > 10 * 150


@pytest.mark.kubernetes
@pytest.mark.programs
def test_the_controllers_requests_are_those_of_the_formulas() -> None:
    measured = values(cluster.measure(SMOKE))

    def requests(what: str) -> float:
        return measured[f"{what} by the controller, {SMOKE.nodes} nodes"]

    for resource in ("nodes", "pods", "configmaps"):
        assert requests(f"LIST {resource}") == 1
    # Each Node registers twice, and each time has two writes. How often a round falls between two
    # writes of a kubelet is by chance.
    assert 4 * SMOKE.nodes <= requests("PATCH nodes") <= 6 * SMOKE.nodes
    # Its agent starts, is replaced, and is given the second ranges: a write each, and another if a
    # kubelet wrote in between, or the first ranges were taken away before.
    assert 3 * SMOKE.nodes <= requests("PATCH pods") <= 6 * SMOKE.nodes


@pytest.mark.slow
def test_budgets_are_kept_in_virtual_time() -> None:
    figures = list(budgets.measure(SMOKE))
    # What is fair and quick needs more nodes; what is safe does not.
    kept = [figure for figure in figures if figure.budget in {OUTSTANDING, budgets.WHOLE_DAY, 1.05}]
    assert len(kept) == 4
    assert all(figure.is_within for figure in kept), kept
