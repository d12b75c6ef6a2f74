"""Whatever is locked stays within a VNet's limit, now and after any growth that is locked; and a
demand that no single free block holds is divided, so that no growth is refused that steps would
reach.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from netmgr.plan.diff import ChangeKind, diff
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument, PlanRefused
from tests.builders import plan_of
from tests.locks import errors, faults, lock_for

EXAMPLES = 80

pools = st.fixed_dictionaries(
    {
        "nodes": st.integers(0, 3000),
        "pods_per_node": st.integers(1, 60),
        "surge": st.sampled_from([0, 5, "10%"]),
    },
    optional={"addressing": st.sampled_from(["blocks", "single"])},
)
clusters = st.fixed_dictionaries(
    {
        "node_pools": st.dictionaries(
            st.sampled_from(["gpu", "cpu", "system"]), pools, min_size=1, max_size=3
        ),
        "services": st.just({"length": 24}),
        "nat_hosts": st.integers(1, 8),
    }
)
IPV4 = {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]}
ranges = st.sampled_from(
    [
        IPV4,
        {**IPV4, "nodes": ["10.0.0.0/8", "fd00:1::/40"]},
        {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12", "fd00:5e::/104"]},
    ]
)
quotas = st.sampled_from([500, 3_000, 20_000, 65_536])


def document(clusters: object, pools: object = IPV4, quota: int | None = 65_536) -> PlanDocument:
    # A low quota makes many networks, more than a region has by default.
    limits = dict.fromkeys(
        ("mappings_per_peered_group", "peerings_per_network", "networks_per_region"), 10**9
    )
    quotas = {**limits, "mappings_per_network": quota} if quota else {}
    return PlanDocument.model_validate(plan_of(clusters, pools=pools, limits=quotas))


def assert_sound(plan: PlanDocument, lock: LockDocument) -> None:
    assert faults(lock) == []
    assert errors(plan, lock) == []


@given(st.dictionaries(st.sampled_from("abc"), clusters, min_size=1), ranges, quotas)
@settings(max_examples=EXAMPLES)
def test_check_accepts_whatever_lock_makes(clusters, pools, quota):
    plan = document(clusters, pools, quota)
    lock = lock_for(plan)
    assert_sound(plan, lock)
    assert lock_for(plan, lock) == lock


@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), clusters, min_size=1), min_size=2, max_size=5),
    ranges,
    quotas,
)
@settings(max_examples=EXAMPLES)
def test_check_accepts_it_after_every_change_of_the_plan(steps, pools, quota):
    lock: LockDocument | None = None
    for clusters in steps:
        plan = document(clusters, pools, quota)
        try:
            lock = lock_for(plan, lock)
        except PlanRefused:  # more blocks a node would renumber its nodes
            continue
        assert_sound(plan, lock)


@pytest.mark.parametrize("nodes", [13_100, 13_200, 20_000, 26_200, 27_000])
def test_a_cluster_that_needs_several_vnets_leaves_room_for_its_nat_hosts(nodes):
    pool = {"nodes": nodes, "pods_per_node": 60, "surge": 0}
    plan = document({"a": {"node_pools": {"gpu": pool}}})
    lock = lock_for(plan)
    assert_sound(plan, lock)


def test_two_node_pools_can_grow_as_far_as_their_segments_promise():
    spec = {"pods_per_node": 60, "surge": 0}
    pools = {name: {**spec, "nodes": 5000} for name in ("gpu", "cpu")}
    plan = document({"a": {"node_pools": pools}})
    lock = lock_for(plan)
    held = lock.clusters["a"].node_pools
    full = {name: {**spec, "nodes": held[name].capacity} for name in pools}
    plan = document({"a": {"node_pools": full}})
    after = lock_for(plan, lock)
    assert after == lock.model_copy(update={"plan_digest": after.plan_digest})
    assert_sound(plan, after)


def several(nodes: dict[str, int], pool: str, pods: int = 31) -> PlanDocument:
    spec = {"pods_per_node": pods, "surge": 0}
    clusters = {
        name: {"services": {"length": 24}, "node_pools": {"gpu": {**spec, "nodes": count}}}
        for name, count in nodes.items()
    }
    return document(clusters, {**IPV4, "nodes": [pool]}, None)


def grown(
    nodes: dict[str, int], pool: str, before: LockDocument | None, pods: int = 31
) -> LockDocument | None:
    plan = several(nodes, pool, pods)
    try:
        return lock_for(plan, before)
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
    assert {change.kind for change in diff(before, after)} <= {ChangeKind.ADD, ChangeKind.CHANGE}
    assert grown(nodes, "10.0.0.0/14", after) == after


def test_declared_growth_takes_nothing_that_is_needed_today():
    nodes = {f"c{number}": 2000 // (number + 1) for number in range(20)}
    plan = several(nodes, "10.0.0.0/11").model_dump(by_alias=True)
    for name, count in nodes.items():
        plan["clusters"][name]["grow_to"] = 8 * count
    lock_for(PlanDocument.model_validate(plan))


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
