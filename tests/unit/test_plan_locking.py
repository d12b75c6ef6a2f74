"""From the lock so far to the next one: what stays, what is given up, and what only renumbering
brings about.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from netmgr.documents.diagnostics import Diagnostic
from netmgr.plan import machines
from netmgr.plan.allocate.subnetting import ClusterDemand
from netmgr.plan.check.conflicts import REMEDY
from netmgr.plan.document import PlanDocument
from netmgr.plan.lock import LockDocument, PlanRefused
from tests.builders import plan_of
from tests.locks import errors, faults, lock_for

Plan = dict[str, Any]


def pool(nodes: int = 10, **keys: Any) -> Plan:
    return {"nodes": nodes, "surge": 0, "pods_per_node": 15, **keys}


def plan(**changes: Any) -> Plan:
    """Two clusters, and two node pools of the first one; `changes` are by dotted keys."""
    document = plan_of(
        {
            "a": {"services": {"length": 18}, "node_pools": {"cpu": pool(), "gpu": pool(3)}},
            "b": {"services": {"length": 18}, "node_pools": {"cpu": pool()}},
        },
        cloud="azure",
        pools={"nodes": ["10.0.0.0/12"], "services": ["172.16.0.0/14"]},
    )
    for path, value in changes.items():
        *keys, last = path.split("__")
        part = document
        for key in keys:
            part = part.setdefault(key, {})
        if value is None:
            del part[last]
        else:
            part[last] = value
    return document


def locked(document: Plan, before: LockDocument | None = None, **keys: Any) -> LockDocument:
    return lock_for(PlanDocument.model_validate(document), before, **keys)


def refused(
    document: Plan, before: LockDocument | None = None, **keys: Any
) -> tuple[Diagnostic, ...]:
    with pytest.raises(PlanRefused) as caught:
        locked(document, before, **keys)
    return caught.value.diagnostics


def keys(found: tuple[Diagnostic, ...]) -> list[str]:
    return [".".join(map(str, each.at.key)) for each in found]


@pytest.fixture
def before() -> LockDocument:
    return locked(plan())


def test_a_lock_that_answers_its_plan_comes_back_unchanged(before):
    assert locked(plan(), before) == before
    assert before.plan == "test"


def test_nothing_that_is_added_moves_what_is_there(before):
    grown = plan(clusters__c={"node_pools": {"x": pool(500)}}, clusters__a__node_pools__tpu=pool())
    after = locked(grown, before)
    assert after.clusters["b"] == before.clusters["b"]
    assert after.clusters["a"].services == before.clusters["a"].services
    for name, held in before.clusters["a"].node_pools.items():
        assert after.clusters["a"].node_pools[name] == held


def test_pins_that_contradict_each_other_are_refused_before_anything_else():
    pinned = plan(pinned={"a": ["10.1.0.0/16"], "b": ["10.1.0.0/24"]})
    assert keys(refused(pinned)) == ["pinned.b.0"]


def test_a_lock_of_another_plan_is_refused(before):
    (found,) = refused(plan(name="other"), before)
    assert found.at.key == ("name",)
    assert found.message == "is 'other', but the lock belongs to the plan 'test'"


def test_a_cluster_that_looks_renamed_is_refused_unless_it_is_meant(before):
    renamed = plan(clusters__c={"node_pools": {"cpu": pool()}}, clusters__b=None)
    (found,) = refused(renamed, before)
    assert found.at.key == ("clusters", "c")
    assert found.beside is not None
    assert found.beside.key == ("clusters", "b")
    assert found.message == (
        "is new, and b, which left the plan, has the same node pools: addresses go by the name"
    )
    assert (
        found.remedy == "call it b to keep them, or lock with --renumber if it is another cluster"
    )
    after = locked(renamed, before, renumber=True)
    assert after.clusters["b"].tombstone
    assert after.clusters["c"].prefixes != before.clusters["b"].prefixes


@pytest.mark.parametrize(
    "other",
    [
        {"cpu": pool(), "gpu": pool(3)},
        {"gpu": pool()},
        {"cpu": pool(1000)},
        {"cpu": pool(block_length=27)},
    ],
    ids=["more pools", "another pool", "more nodes", "other blocks"],
)
def test_a_cluster_with_other_node_pools_is_another_cluster(before, other):
    after = locked(plan(clusters__c={"node_pools": other}, clusters__b=None), before)
    assert not after.clusters["c"].tombstone
    # A tombstone that left long ago is not who was renamed.
    fourth = {"node_pools": {"cpu": pool()}}
    again = plan(clusters__c={"node_pools": other}, clusters__b=None, clusters__d=fourth)
    assert "d" in locked(again, after).clusters


def test_a_cluster_that_left_keeps_its_addresses_until_it_is_released(before):
    without = plan(clusters__b=None)
    kept = locked(without, before)
    assert kept.clusters["b"] == before.clusters["b"].model_copy(update={"tombstone": True})
    assert locked(plan(), kept) == before
    after = locked(without, kept, released=["b"])
    assert list(after.clusters) == ["a"]
    # The same run may give them to somebody else.
    other = {"services": {"length": 18}, "node_pools": {"x": pool()}}
    taken = before.clusters["b"].prefixes[0].prefix
    wanted = plan(clusters__b=None, clusters__c=other, pinned={"c": [str(taken)]})
    assert refused(wanted, kept)
    freed = locked(wanted, kept, released=["b"])
    assert [each.prefix for each in freed.clusters["c"].prefixes] == [taken]


def test_one_node_pool_is_released_and_the_others_stay(before):
    without = plan(clusters__a__node_pools__gpu=None)
    kept = locked(without, before)
    assert kept.clusters["a"].node_pools["gpu"].tombstone
    after = locked(without, kept, released=["a/gpu"])
    assert list(after.clusters["a"].node_pools) == ["cpu"]
    assert after.clusters["a"].node_pools["cpu"] == before.clusters["a"].node_pools["cpu"]
    assert after.clusters["b"] == before.clusters["b"]
    gpu = before.clusters["a"].node_pools["gpu"].segments[0]
    other = plan(clusters__a__node_pools__gpu=None, clusters__a__node_pools__new=pool(3))
    again = locked(other, after)
    assert again.clusters["a"].node_pools["new"].segments[0].prefixes == gpu.prefixes


def test_nodes_are_not_named_like_those_of_a_tombstone():
    kept = locked(plan(), locked(plan(**{"clusters__a__node_pools__gpu-x": pool()})))
    like = plan(**{"clusters__a-gpu": {"node_pools": {"x": pool()}}})
    (fault,) = refused(like, kept)
    assert fault.at.key == ("clusters", "a-gpu", "node_pools", "x")
    assert fault.message == "nodes of a/gpu-x and a-gpu/x would have the same names"
    assert fault.remedy == "release the one that left the plan, or call this one otherwise"
    after = locked(like, kept, released=["a/gpu-x"])
    node = machines.node_named(after, "a-gpu-x-0")
    assert node is not None
    assert (node.cluster, node.pool) == ("a-gpu", "x")


@pytest.mark.parametrize("name", ["none", "a/none", "none/cpu"])
def test_what_is_not_in_the_lock_cannot_be_released(name):
    for before in (locked(plan()), None):
        (found,) = refused(plan(), before, released=[name])
        assert found.message == f"{name} is not in the lock; nothing to release"


@pytest.mark.parametrize(("name", "key"), [("a", "clusters.a"), ("a/cpu", "clusters.a.cpu")])
def test_what_is_in_use_cannot_be_released(name, key):
    (found,) = refused(plan(), locked(plan()), released=[name])
    assert (found.message, found.remedy) == ("is in use", "take it out of plan.yaml first")
    assert keys((found,)) == [key]


def parts(lock: LockDocument) -> dict[str, object]:
    """What may move without the others."""
    found: dict[str, object] = {"hub": lock.hub}
    for name, held in lock.clusters.items():
        found |= {name: held.prefixes, f"{name} nat": held.nat, f"{name} services": held.services}
        found |= {f"{name} {own}": nodes for own, nodes in held.node_pools.items()}
    return found


OF_HUB, OF_A = "10.15.254.0/23", "10.14.182.0/23"
SERVICES = {"clusters__a__services": {"length": 20}}
BLOCKS = {"clusters__a__node_pools__gpu": pool(3, block_length=27)}
PINNED = {"pinned": {"else": [OF_A]}}
WHOLE = {"a", "a nat", "a services", "a cpu", "a gpu"}


@pytest.mark.parametrize(
    ("changes", "refusals", "moves"),
    [
        (SERVICES, ["clusters.a.services.length"], {"a services"}),
        ({"exclude": [{"prefix": OF_HUB}]}, ["exclude.0"], {"hub"}),
        (PINNED, ["pinned.else.0"], WHOLE),
        # For their larger subnet the cluster's prefix grows in place.
        (BLOCKS, ["clusters.a.node_pools.gpu.block_length"], {"a", "a gpu"}),
        (
            SERVICES | BLOCKS | PINNED,
            [
                "clusters.a.node_pools.gpu.block_length",
                "clusters.a.services.length",
                "pinned.else.0",
            ],
            WHOLE,
        ),
    ],
    ids=[
        "a Service range that is to be of another size",
        "the hub whose prefix is somebody else's",
        "a whole cluster whose prefix is somebody else's",
        "a node pool whose nodes are to have other blocks",
        "a cluster and one of its node pools together",
    ],
)
def test_renumbering_moves_what_the_plan_contradicts_and_nothing_else(
    before, changes, refusals, moves
):
    document = plan(**changes)
    found = refused(document, before)
    assert sorted(keys(found)) == refusals
    assert all(each.remedy == REMEDY for each in found)
    after = locked(document, before, renumber=True)
    assert locked(document, after) == after
    former = parts(before)
    assert {name for name, part in parts(after).items() if part != former[name]} == moves


NETWORK = {"a": ["10.4.0.0/16"]}
AT_GPU, AT_A = "clusters.a.node_pools.gpu", "clusters.a"


def pins(**subnets: list[str]) -> Plan:
    """The plan with node pools of its first cluster that have these pinned subnets, or none."""
    node_pools = {name: pool(3, subnets=pinned) for name, pinned in subnets.items()}
    return plan(pinned=NETWORK, clusters__a__node_pools=node_pools)


@pytest.mark.parametrize(
    ("former", "document", "where"),
    [
        (pins(gpu=["10.4.0.0/24"]), pins(gpus=["10.4.0.0/24"]), AT_GPU),
        (pins(gpu=["10.4.0.0/24"]), pins(gpus=["10.4.0.64/26"], cpu=[]), AT_GPU),
        (pins(gpu=["10.4.0.0/24"], cpu=[]), pins(gpu=[], cpu=["10.4.0.0/24"]), AT_GPU),
        (pins(gpu=[]), pins(gpu=[], cpu=["10.4.0.0/16"]), AT_A),
    ],
    ids=["a renamed pool", "part of it", "a pin that moved", "the NAT hosts' subnet"],
)
def test_a_pin_on_a_subnet_that_the_lock_gave_away_is_refused(former, document, where):
    before = locked(former)
    diagnostics = refused(document, before)
    places = [".".join(map(str, fault.beside.key)) for fault in diagnostics if fault.beside]
    assert where in places
    after = locked(document, before, renumber=True)
    assert faults(after) == []
    assert errors(PlanDocument.model_validate(document), after) == []
    assert locked(document, after) == after


def test_a_tombstones_pinned_subnet_is_free_once_it_is_released():
    before = locked(pins(gpu=["10.4.0.0/24"], cpu=[]))
    kept, document = locked(pins(cpu=[]), before), pins(gpus=["10.4.0.0/24"], cpu=[])
    (fault,) = refused(document, kept)
    assert fault.message == "10.4.0.0/24 is pinned, but a/gpu has its subnet 10.4.0.0/24 there"
    assert faults(locked(document, kept, released=["a/gpu"])) == []


def test_a_lock_in_which_two_node_pools_have_one_subnet_does_not_pass_the_check(before):
    document = PlanDocument.model_validate(plan())
    assert errors(document, before) == []
    pools = before.clusters["a"].node_pools
    twice = before.clusters["a"].model_copy(update={"node_pools": pools | {"gpu": pools["cpu"]}})
    broken = before.model_copy(update={"clusters": before.clusters | {"a": twice}})
    (fault,) = errors(document, broken)
    subnet = pools["cpu"].segments[0].v4.subnet
    assert fault.message == f"{subnet} of a-gpu overlaps {subnet} of a-cpu"
    assert fault.at.key == ("clusters", "a")
    remedy = "take one of the two out of the plan; once none of its machines runs, release it"
    assert fault.remedy == remedy


def test_a_move_that_nobody_foresaw_is_refused_with_both_places(before, monkeypatch):
    held, other = before.clusters["a"].node_pools.values()
    complete = ClusterDemand.complete

    def moving(*arguments: Any) -> Any:
        """As one that lost what the lock has."""
        found = complete(*arguments)
        return {**found, **({"cpu": found["gpu"], "gpu": found["cpu"]} if "gpu" in found else {})}

    monkeypatch.setattr(ClusterDemand, "complete", moving)
    found = refused(plan(), before)
    assert all(each.at.key[:2] == ("clusters", "a") for each in found)
    assert all(each.remedy == REMEDY for each in found)
    before_and_after = [str(spec.segments[0].v4.subnet) for spec in (held, other)]
    assert re.fullmatch(
        "would move from .*{}.* to .*{}.*".format(*before_and_after), found[0].message
    )


def test_declared_growth_gives_way_to_what_somebody_needs_today():
    def reserves(document: Plan) -> list[int]:
        lock = locked(document)
        assert locked(document, lock) == lock
        held = lock.clusters["a"].prefixes
        lengths = (each.reserve.length - each.prefix.length for each in held)
        return [length for length in lengths if length]

    spacious = plan(clusters__a__grow_to=100)
    assert reserves(spacious) != []

    def small(grow_to: int, neighbour: int | None, first: int = 5) -> Plan:
        clusters: Plan = {"a": {"node_pools": {"cpu": pool(first)}, "grow_to": grow_to}}
        if neighbour:
            clusters["b"] = {"node_pools": {"cpu": pool(neighbour)}}
        for cluster in clusters.values():
            cluster["services"] = {"length": 18}
        hub = {"researchers": 1, "routers": 1}
        return plan(pools__nodes=["10.0.0.0/21"], hub=hub, clusters=clusters)

    assert reserves(small(60, 40)) == []
    # What is reserved would fit, but half of all addresses is then missing elsewhere.
    assert reserves(small(30, None)) == [-3]
    assert reserves(small(30, 50)) == []
    # What nobody needs is reserved at once, not only when the plan is locked again.
    crowded = small(9, 20, first=3)
    crowded["clusters"]["c"] = crowded["clusters"]["a"] | {
        "node_pools": {"cpu": pool(10)},
        "grow_to": 20,
    }
    assert reserves(crowded) == [-2]
    impossible = plan(pools__nodes=["10.0.0.0/24"], clusters__a__grow_to=100)
    (found,) = refused(impossible)
    assert "more addresses" in found.message
