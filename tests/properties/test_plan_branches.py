"""Two branches of a plan that each add a cluster: they seldom choose the same addresses."""

from __future__ import annotations

from itertools import combinations, product

import hypothesis.strategies as st
from hypothesis import given, settings

from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Prefix
from tests.builders import PLAN_KEYS

LIMITS = load_limits(Cloud.AZURE)
PAIRS, FEW = 40, 4
names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
node_pools = st.fixed_dictionaries(
    {"nodes": st.integers(1, 300), "pods_per_node": st.integers(10, 60)}
)
clusters = st.fixed_dictionaries(
    {
        "services": st.fixed_dictionaries({"length": st.integers(20, 24)}),
        "node_pools": st.dictionaries(
            st.sampled_from(["cpu", "gpu"]), node_pools, min_size=1, max_size=2
        ),
    }
)


def locked(wanted: dict[str, object], previous: LockDocument | None = None) -> LockDocument:
    plan = {
        **PLAN_KEYS,
        "name": "branched",
        "pools": {"nodes": ["10.0.0.0/8"], "services": ["172.16.0.0/12"]},
        "clusters": wanted,
    }
    return make_lock(PlanDocument.model_validate(plan), previous, LIMITS)


def held(lock: LockDocument, name: str) -> list[Prefix]:
    cluster = lock.clusters[name]
    return [*(own.reserve for own in cluster.prefixes), *cluster.services.vip_ranges]


@given(
    st.dictionaries(names, clusters, max_size=12),
    clusters,
    st.integers(0, 1_000_000),
)
@settings(max_examples=12, deadline=None)
def test_branches_that_each_add_a_cluster_seldom_give_out_the_same_addresses(before, new, seed):
    base = locked(before) if before else None
    # No name that is drawn is as long.
    others = [f"added-by-a-branch-{seed}-{number}" for number in range(10)]
    added = [held(locked({**before, name: new}, base), name) for name in others]
    pairs = list(combinations(added, 2))[:PAIRS]
    assert len(pairs) == PAIRS
    collisions = [any(mine.overlaps(theirs) for mine, theirs in product(*pair)) for pair in pairs]
    # Without the name, all of them would.
    assert sum(collisions) <= FEW
