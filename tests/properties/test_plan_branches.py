"""Two branches of a plan that each add a cluster: they seldom choose the same addresses, and what
each changed is merged.
"""

from __future__ import annotations

from itertools import combinations, product
from random import Random
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument
from netmgr.plan.merging import merge_locks
from netmgr.prefixes import Prefix
from tests.builders import plan_of
from tests.locks import faults, lock_for, published

LIMITS = published(Cloud.AZURE)
PLANS, BRANCHES = 12, 10
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


def locked(
    wanted: dict[str, Any], previous: LockDocument | None = None, hub: dict[str, Any] | None = None
) -> LockDocument:
    return lock_for(PlanDocument.model_validate(plan_of(wanted, hub=hub or {})), previous)


def held(lock: LockDocument, name: str) -> list[Prefix]:
    cluster = lock.clusters[name]
    return [*(own.reserve for own in cluster.prefixes), *cluster.services.vip_ranges]


def drawn(random: Random) -> dict[str, Any]:
    """The cluster that `clusters` describes, out of this random generator."""
    pool = {"nodes": random.randint(1, 300), "pods_per_node": random.randint(10, 60)}
    return {"services": {"length": random.randint(20, 24)}, "node_pools": {"cpu": pool}}


def test_branches_that_each_add_a_cluster_seldom_give_out_the_same_addresses():
    # The mean is the promise. The worst of many plans, which a search would find, is any number.
    random = Random(1)  # noqa: S311  the same plans each time
    collisions = pairs = 0
    for number in range(PLANS):
        before = {f"c{number}": drawn(random) for number in range(random.randint(0, 12))}
        base = locked(before) if before else None
        new = drawn(random)
        others = [f"added-{number}-{other}" for other in range(BRANCHES)]
        added = [held(locked({**before, name: new}, base), name) for name in others]
        for ours, theirs in combinations(added, 2):
            collisions += any(mine.overlaps(other) for mine, other in product(ours, theirs))
            pairs += 1
    # Without the name, all of them would.
    assert collisions * 40 <= pairs


def edited(plan: dict[str, Any], data: st.DataObject, own: list[str], side: str) -> dict[str, Any]:
    """A plan after random edits of some of its clusters, and with new ones."""
    after = dict(plan)
    for name in own:
        match data.draw(st.sampled_from(["keep", "remove", "grow", "declare", "add a node pool"])):
            case "remove":
                del after[name]
            case "grow":
                pools = after[name]["node_pools"]
                grown = {pool: {**spec, "nodes": 2 * spec["nodes"]} for pool, spec in pools.items()}
                after[name] = {**after[name], "node_pools": grown}
            case "declare":
                after[name] = {**after[name], "grow_to": 2000}
            case "add a node pool":
                pools = {**after[name]["node_pools"], "more": data.draw(node_pools)}
                after[name] = {**after[name], "node_pools": pools}
    for number in range(data.draw(st.integers(0, 2))):
        # Of other node pools than any that leaves, or it would look renamed.
        added = {"node_pools": {f"of-{side}": data.draw(node_pools)}}
        after[f"added-{side}-{number}"] = data.draw(clusters) | added
    return after


@given(st.dictionaries(names, clusters, min_size=1, max_size=6), st.data())
@settings(max_examples=20, deadline=None)
def test_a_merged_lock_answers_the_merged_plan(before, data):
    base = locked(before)
    is_ours = {name: data.draw(st.booleans()) for name in before}
    sides = [
        edited(before, data, [name for name in before if is_ours[name] is side], str(side).lower())
        for side in (True, False)
    ]
    hub = data.draw(st.sampled_from([{}, {"researchers": 300}, {"routers": 3}]))
    ours, theirs = locked(sides[0], base, hub), locked(sides[1], base)
    plan = {
        name: sides[0][name] if name in sides[0] and is_ours.get(name, True) else sides[1][name]
        for name in {**sides[0], **sides[1]}
        if all(name in side for side in sides) or name not in before
    }
    merged, mirrored = merge_locks(base, ours, theirs), merge_locks(base, theirs, ours)
    assert bool(merged.collisions) == bool(mirrored.collisions)
    if merged.collisions:
        own, other = (
            [prefix for name in lock.clusters for prefix in held(lock, name)]
            for lock in (ours, theirs)
        )
        kept = {prefix for name in base.clusters for prefix in held(base, name)}
        assert any(mine.overlaps(new) for mine in own for new in other if not {mine, new} <= kept)
        assert merged.lock == ours
        return
    assert merged.lock == mirrored.lock
    assert faults(merged.lock, [LIMITS]) == []
    assert locked(plan, merged.lock, hub) == merged.lock


def test_a_mapping_that_one_side_empties_and_the_other_adds_to_is_merged():
    first, second = (
        {"services": {"length": 20}, "node_pools": {pool: {"nodes": 1, "pods_per_node": 10}}}
        for pool in ("cpu", "gpu")
    )
    base = locked({"a": first})
    merged = merge_locks(base, locked({"a": first, "b": second}, base), locked({}, base))
    assert merged.collisions == ()
    assert locked({"b": second}, merged.lock) == merged.lock
