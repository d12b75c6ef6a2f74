"""What `make fleet` measures still runs; with so few nodes the figures mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.report import EXPONENT, Figure
from tests.fleet import cluster, growing, scraping
from tests.fleet.effort import SMOKE


def values(figures: Iterator[Figure]) -> dict[str, Figure]:
    found = {figure.what.strip(): figure for figure in figures}
    assert all(one.value >= 0 for one in found.values() if one.unit != EXPONENT)
    return found


def test_growth_is_measured() -> None:
    found = values(growing.measure(SMOKE))
    assert any("requests of controllers but for the Lease, 10, 20 nodes" in what for what in found)


@pytest.mark.root
def test_a_real_prometheus_is_measured() -> None:
    found = values(scraping.measure(SMOKE))
    assert found["samples of one scrape of 10 nodes"].value > 10 * 150


@pytest.mark.kubernetes
@pytest.mark.programs
def test_the_controllers_requests_to_a_real_server_are_those_of_the_simulation() -> None:
    found = values(cluster.measure(SMOKE))
    for what in ("PATCH nodes", "PATCH pods", "LIST nodes", "LIST pods", "LIST configmaps"):
        figure = found[f"{what} by the controller, {SMOKE.nodes} nodes"]
        assert figure.reference is not None
        # How often a round falls between two writes of a kubelet is by chance, on either side.
        assert abs(figure.value - figure.reference) <= 2 * SMOKE.nodes, what
