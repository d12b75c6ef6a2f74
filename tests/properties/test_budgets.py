"""Whatever fails, and whatever fails beside it: what is in force on all nodes together is bounded,
and no more passes in a day than its quota.

Both are read from the nodes, and not from the server's table.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from netmgr.budgets.terms import OUTSTANDING
from tests.fleet.budget_faults import FAULTS
from tests.fleet.budget_world import World
from tests.fleet.budgets import WHOLE, WHOLE_DAY, scaled, under

FAULT = st.sampled_from(sorted(FAULTS))


CASES: list[tuple[int, int, int, tuple[str, str], int]] = [
    (1, 40, 3000, ("partition of idle", "restart of the idle"), 0),
    (2, 40, 30_000, ("partition of idle", "leader change"), 20),
    (3, 40, 30_000, ("lease end", "leader change"), 125),
    (4, 40, 3000, ("leader change", "two leaders"), 0),
    (73, 100, 3000, ("partition of idle", "clocks"), 10),
    (5, 40, 30_000, ("lost file", "clocks"), 20),
    (490972, 39, 3000, ("partition of idle", "restart of everything"), 5),
]
"""A seed, nodes, active pods, two faults, and seconds between these."""


def assert_bounded(seed: int, nodes: int, active: int, faults: tuple[str, str], gap: int) -> None:
    part = nodes / WHOLE.nodes
    quota = int(WHOLE.rate * part * 0.2 * 100 / 8)
    shape = scaled(part, active, 3.6e7 / active, quota)
    most, passed = under(World(seed, shape), faults, gap)
    assert most <= OUTSTANDING
    assert passed <= WHOLE_DAY


@pytest.mark.parametrize("case", CASES, ids=[" and ".join(faults) for *_, faults, _ in CASES])
def test_what_is_in_force_and_what_passes_is_bounded_under_these_faults(
    case: tuple[int, int, int, tuple[str, str], int],
) -> None:
    assert_bounded(*case)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A smaller fleet would be another one.
    phases=[Phase.reuse, Phase.generate],
)
@given(
    seed=st.integers(0, 2**32),
    nodes=st.integers(5, 40),
    active=st.sampled_from([3000, 30_000]),
    faults=st.tuples(FAULT, FAULT),
    gap=st.sampled_from([0, 5, 20, 60, 125]),
)
def test_what_is_in_force_and_what_passes_is_bounded_under_any_two_faults(
    seed: int, nodes: int, active: int, faults: tuple[str, str], gap: int
) -> None:
    assert_bounded(seed, nodes, active, faults, gap)
