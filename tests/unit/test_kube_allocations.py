"""What a lock gives to each node of a cluster."""

from __future__ import annotations

import pytest

from netmgr.errors import ConfigError
from netmgr.kube.controller.allocations import NodeAllocation, NodeAllocations, NodeIndex
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix
from tests.builders import PLAN_KEYS

POOLS = {"nodes": ["10.0.0.0/8", "fd00:10::/40"], "services": ["172.16.0.0/12"]}
CPU, GPU = {"nodes": 40, "surge": 0, "pods_per_node": 14}, {"nodes": 3, "surge": 0}


def lock(before: LockDocument | None = None, **clusters: object) -> LockDocument:
    document = PlanDocument.model_validate(
        {**PLAN_KEYS, "name": "test", "cloud": "none", "pools": POOLS, "clusters": clusters}
    )
    return make_lock(document, before, load_limits(document.cloud))


def prefixes(*texts: str) -> list[Prefix]:
    return [Prefix.parse(text) for text in texts]


@pytest.fixture
def train() -> NodeAllocations:
    clusters = {
        "train": {"node_pools": {"cpu": CPU, "gpu": GPU}},
        "evals": {"node_pools": {"cpu": CPU}},
    }
    return NodeAllocations(lock(**clusters), "train")


def test_an_unknown_cluster_is_refused_with_those_there_are() -> None:
    both = {name: {"node_pools": {"cpu": CPU}} for name in ("train", "evals")}
    before = lock(**both, old={"node_pools": {"cpu": CPU}})
    # What the plan dropped keeps its addresses, and is no cluster any more.
    after = lock(before, **both)
    for name in ("tra", "old"):
        with pytest.raises(ConfigError) as caught:
            NodeAllocations(after, name)
        assert str(caught.value) == f"the lock has no cluster '{name}'; there are: evals, train"
    with pytest.raises(ConfigError, match=r"has no cluster 'train'; there are: none$"):
        NodeAllocations(lock(before).model_copy(update={"clusters": {}}), "train")


def test_neighbouring_blocks_are_one_range_and_the_largest_of_a_family_is_its_podcidr() -> None:
    index = NodeIndex("cpu", 3)
    blocks = prefixes("10.0.1.0/28", "10.0.0.64/27", "10.0.0.96/27", "fd00::/112", "10.0.2.0/26")
    joined = NodeAllocation.of(index, blocks)
    # Of two equally large ones the first, so that it stays.
    assert joined.cidrs == tuple(prefixes("10.0.0.64/26", "fd00::/112"))
    assert joined.annotation == "10.0.0.64/26,10.0.1.0/28,10.0.2.0/26,fd00::/112"
    assert joined.ranges == tuple(prefixes(*joined.annotation.split(",")))
    alone = NodeAllocation.of(index, blocks[3:4])
    assert (alone.cidrs, alone.annotation) == (tuple(blocks[3:4]), "")
    grown = NodeAllocation.of(index, prefixes("10.0.0.0/28", "10.0.1.0/26", "10.0.3.0/27"))
    assert grown.cidrs == tuple(prefixes("10.0.1.0/26"))


def test_an_index_beyond_the_lock_has_no_allocation(train: NodeAllocations) -> None:
    # As many as the subnets have room for.
    assert train.capacity == {"cpu": 59, "gpu": 3}
    found = train.at(NodeIndex("cpu", 58))
    assert found is not None
    assert found.index == NodeIndex("cpu", 58)
    assert {block.family for block in found.ranges} == {Family.V4, Family.V6}
    assert train.at(NodeIndex("cpu", 59)) is None


def test_a_name_has_the_index_that_the_plan_gives_it(train: NodeAllocations) -> None:
    for number in (0, 58):
        assert train.named(f"train-cpu-{number}", "cpu") == NodeIndex("cpu", number)
    for name in ("cpu-59", "cpu-01", "cpu-\u0661", "cpu-x", "gpu-1"):
        assert train.named(f"train-{name}", "cpu") is None
    assert train.named("evals-cpu-1", "cpu") is None
    assert train.named("train-none-0", "none") is None


def test_nodes_with_an_address_in_a_prefix_are_touched(train: NodeAllocations) -> None:
    every = {
        NodeIndex(pool, number): train.at(NodeIndex(pool, number))
        for pool, count in train.capacity.items()
        for number in range(count)
    }
    for index, allocation in every.items():
        assert allocation is not None
        for block in allocation.ranges:
            first = Prefix(block.family, block.value, block.family.width)
            last = Prefix(block.family, block.last, block.family.width)
            for touching in (block, first, last):
                assert set(train.touched([touching])) == {index}
    assert set(train.touched(prefixes("10.0.0.0/8"))) == set(every)
    assert list(train.touched(prefixes("192.168.0.0/16"))) == []
    for prefix in prefixes("10.0.0.0/26", "10.0.0.64/27"):
        assert set(train.touched([prefix])) == {
            index
            for index, allocation in every.items()
            if allocation and any(block.overlaps(prefix) for block in allocation.ranges)
        }


def test_a_range_beside_those_of_a_pool_touches_none_of_its_nodes(train: NodeAllocations) -> None:
    """The one before its first node and the one behind its last."""
    for pool, count in train.capacity.items():
        lowest, highest = (train.at(NodeIndex(pool, number)) for number in (0, count - 1))
        assert lowest
        assert highest
        behind = max(block.last for block in highest.ranges if block.family is Family.V4) + 1
        for value in (lowest.ranges[0].value - 1, behind):
            touched = train.touched([Prefix(Family.V4, value, Family.V4.width)])
            assert pool not in {index.pool for index in touched}


def test_a_prefix_larger_than_any_node_s_is_no_podcidr(train: NodeAllocations) -> None:
    exceeds = [
        text
        for text in ("10.0.0.0/24", "10.0.0.0/23", "fd00::/40")
        if train.exceeds_a_node(Prefix.parse(text))
    ]
    assert exceeds == ["10.0.0.0/23"]
    wide = {"node_pools": {"cpu": {"nodes": 3, "surge": 0, "pods_per_node": 500}}}
    large = NodeAllocations(lock(wide=wide), "wide")
    assert not large.exceeds_a_node(Prefix.parse("10.0.0.0/23"))
    assert large.exceeds_a_node(Prefix.parse("10.0.0.0/22"))
