"""A demand that no single free block holds is divided, so that no growth is refused that steps
would reach.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.diff import Kind, diff
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.locking import make_lock
from tests.builders import PLAN_KEYS
from tests.locks import faults

pytestmark = pytest.mark.timeout(180)

AZURE = load_limits(Cloud.AZURE)


def document(nodes: dict[str, int], pool: str, pods: int = 31) -> PlanDocument:
    return PlanDocument.model_validate(
        {
            **PLAN_KEYS,
            "name": "growing",
            "pools": {"nodes": [pool], "services": ["172.16.0.0/12"]},
            "clusters": {
                name: {
                    "services": {"length": 24},
                    "node_pools": {"gpu": {"nodes": count, "pods_per_node": pods, "surge": 0}},
                }
                for name, count in nodes.items()
            },
        }
    )


def grown(
    nodes: dict[str, int], pool: str, before: LockDocument | None, pods: int = 31
) -> LockDocument | None:
    try:
        return make_lock(document(nodes, pool, pods), before, AZURE)
    except PlanRefused:
        return None


def test_growth_is_divided_where_no_block_holds_it():
    nodes = dict.fromkeys("abcd", 200)
    before = grown(nodes, "10.0.0.0/14", None)
    nodes["a"] = 3000
    after = grown(nodes, "10.0.0.0/14", before)
    assert after is not None
    assert after.clusters["a"].node_pools["gpu"].capacity >= 3000
    assert faults(after) == []
    assert {change.kind for change in diff(before, after)} <= {Kind.ADD, Kind.CHANGE}
    assert grown(nodes, "10.0.0.0/14", after) == after


def test_declared_growth_takes_nothing_that_is_needed_today():
    nodes = {f"c{number}": 2000 // (number + 1) for number in range(20)}
    plan = document(nodes, "10.0.0.0/11").model_dump(by_alias=True)
    for name, count in nodes.items():
        plan["clusters"][name]["grow_to"] = 8 * count
    make_lock(PlanDocument.model_validate(plan), None, AZURE)


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=5),
    st.sampled_from([16, 31, 60]),
    st.integers(50, 4_000),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_what_steps_would_reach_is_granted_at_once(sizes, pods, target, source):
    nodes = {f"c{number}": size for number, size in enumerate(sizes)}
    before = grown(nodes, "10.0.0.0/15", None, pods)
    if before is None:
        return
    goal = nodes["c0"] + target
    step, lock = dict(nodes), before
    while step["c0"] < goal:
        step["c0"] = min(goal, step["c0"] + source.randint(1, target))
        found = grown(step, "10.0.0.0/15", lock, pods)
        if found is None:
            return
        lock = found
    assert grown({**nodes, "c0": goal}, "10.0.0.0/15", before, pods) is not None
