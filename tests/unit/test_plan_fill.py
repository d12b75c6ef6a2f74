"""A pool fills up as far as with first fit, whether all clusters come at once or one by one."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.bench.filling import equal, fill, fill_of_peer, fill_step_by_step, mixed, year

SHAPES = [
    pytest.param(equal(280), id="equal", marks=pytest.mark.slow),
    pytest.param(mixed(120, 1), id="mixed"),
    pytest.param(mixed(120, 2), id="others", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("clusters", SHAPES)
def test_a_pool_fills_up_as_far_as_with_first_fit(clusters):
    theirs = fill_of_peer(clusters)
    assert 0.9 < theirs < 1
    assert fill(clusters) >= 0.95 * theirs
    assert fill_step_by_step(clusters) >= 0.95 * theirs


@pytest.mark.parametrize("declared", [False, True])
def test_growth_adds_the_fewest_prefixes(declared):
    years = [year(seed, 0.2, 20, declared=declared) for seed in range(3)]
    ours, *theirs = (mean(each[name].extra for each in years) for name in years[0])
    assert ours < 0.5 * min(theirs)
    refused, first_fit, *_ = (sum(each[name].refused for each in years) for name in years[0])
    assert refused <= first_fit
