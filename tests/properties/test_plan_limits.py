"""Whatever is locked stays within a VNet's limit, now and after any growth that is locked."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from netmgr.documents.diagnostics import Diagnostic, Severity
from netmgr.plan.check.checks import check_limits, check_plan
from netmgr.plan.clouds.cloud import CloudLimits
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.locking import make_lock
from tests.builders import PLAN_KEYS
from tests.locks import faults

EXAMPLES = 80

pytestmark = pytest.mark.timeout(120)

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
ranges = st.sampled_from(
    [
        {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]},
        {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12"]},
        {"nodes": ["10.0.0.0/8", "fd00:1::/40"], "services": ["172.16.0.0/12", "fd00:5e::/104"]},
    ]
)
quotas = st.sampled_from([500, 3_000, 20_000, 65_536])


def document(clusters: object, pools: object, quota: int) -> PlanDocument:
    return PlanDocument.model_validate(
        {
            **PLAN_KEYS,
            "name": "drawn",
            "pools": pools,
            "clusters": clusters,
            "limits": {
                "mappings_per_network": quota,
                "mappings_per_peered_group": 10**9,
                "peerings_per_network": 10**6,
            },
        }
    )


def limits_of(plan: PlanDocument) -> CloudLimits:
    return load_limits(plan.cloud).agreed(plan.limits)


def errors(plan: PlanDocument, lock: LockDocument) -> list[Diagnostic]:
    limits = limits_of(plan)
    assert faults(lock) == []
    found = [*check_plan(plan, lock, limits), *check_limits(plan, lock, limits)[1]]
    return [finding for finding in found if finding.severity is Severity.ERROR]


@given(st.dictionaries(st.sampled_from("abc"), clusters, min_size=1), ranges, quotas)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_check_accepts_whatever_lock_makes(clusters, pools, quota):
    plan = document(clusters, pools, quota)
    lock = make_lock(plan, None, limits_of(plan))
    assert errors(plan, lock) == []
    assert make_lock(plan, lock, limits_of(plan)) == lock


@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), clusters, min_size=1), min_size=2, max_size=5),
    ranges,
    quotas,
)
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_check_accepts_it_after_every_change_of_the_plan(steps, pools, quota):
    lock: LockDocument | None = None
    for clusters in steps:
        plan = document(clusters, pools, quota)
        try:
            lock = make_lock(plan, lock, limits_of(plan))
        except PlanRefused:  # more blocks a node would renumber its nodes
            continue
        assert errors(plan, lock) == []


@pytest.mark.parametrize("nodes", [13_100, 13_200, 20_000, 26_200, 27_000])
def test_a_cluster_that_needs_several_vnets_leaves_room_for_its_nat_hosts(nodes):
    pool = {"nodes": nodes, "pods_per_node": 60, "surge": 0}
    plan = document(
        {"a": {"node_pools": {"gpu": pool}}},
        {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]},
        65_536,
    )
    lock = make_lock(plan, None, limits_of(plan))
    assert errors(plan, lock) == []


def test_two_node_pools_can_grow_as_far_as_their_segments_promise():
    pools = {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]}
    spec = {"pods_per_node": 60, "surge": 0}
    plan = document(
        {"a": {"node_pools": {"gpu": {**spec, "nodes": 5000}, "cpu": {**spec, "nodes": 5000}}}},
        pools,
        65_536,
    )
    lock = make_lock(plan, None, limits_of(plan))
    full = {
        name: {**spec, "nodes": held.capacity}
        for name, held in lock.clusters["a"].node_pools.items()
    }
    plan = document({"a": {"node_pools": full}}, pools, 65_536)
    after = make_lock(plan, lock, limits_of(plan))
    assert after == lock.model_copy(update={"plan_digest": after.plan_digest})
    assert errors(plan, after) == []
