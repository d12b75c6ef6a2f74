"""Large plans: the work for a lock, its check, reach, diff and export grows as the plan does."""

from __future__ import annotations

import cProfile
import pstats

import pytest

from netmgr.plan import files
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.check.reach import matrix
from netmgr.plan.check.usage import forecasts
from netmgr.plan.derive import network
from netmgr.plan.diff import diff
from netmgr.plan.document import PlanDocument
from netmgr.plan.exchange import read_lock, rows, to_csv
from netmgr.plan.locking import make_lock
from tests.builders import plan_of
from tests.locks import faults


def document(clusters: int) -> PlanDocument:
    pool = {"nodes": 1000, "pods_per_node": 31, "surge": 0}
    cluster = {"services": {"length": 24}, "node_pools": {"gpu": pool}}
    pools = {"nodes": ["10.0.0.0/8", "20.0.0.0/6"], "services": ["172.16.0.0/12"]}
    named = {f"c{number}": cluster for number in range(clusters)}
    return PlanDocument.model_validate(plan_of(named, pools=pools))


def calls(clusters: int) -> int:
    """Function calls, which are the same on every machine however busy it is."""
    plan = document(clusters)
    limits = files.load_limits(plan.cloud)
    profile = cProfile.Profile()
    with profile:
        lock = make_lock(plan, None, limits)
        assert make_lock(plan, lock, limits) == lock
        assert faults(lock) == []
        assert len(diff(None, lock)) > clusters
        assert read_lock(to_csv(rows(plan, lock)), "large.csv", plan) == (lock, [])
        check_plan(plan, lock, limits)
        check_limits(plan, lock, limits)
        forecasts(plan, lock, limits)
        assert not any(cell.wrong for cell in matrix(network(plan, lock, limits)))
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # not in the stubs


@pytest.mark.slow
def test_twice_as_many_clusters_take_about_twice_the_work():
    calls(2)  # what is made once
    few, many = calls(60), calls(240)
    assert many < 5 * few
