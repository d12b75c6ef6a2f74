"""Which Node gets which allocation, case by case (`tests/properties/test_kube_assigning.py` has the
histories).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeAllocations, NodeIndex
from netmgr.kube.controller.assigning import (
    MOST_TOUCHED,
    Decision,
    RefusalReason,
    decide,
    released,
    takeovers,
)
from netmgr.kube.controller.nodes import NodeView
from netmgr.prefixes import Family, Prefix, overlaps
from tests.unit.test_kube_allocations import CPU, lock

NOW, QUARANTINE = 5000.0, 600.0


def allocations(**pools: object) -> NodeAllocations:
    return NodeAllocations(lock(train={"node_pools": pools}), "train")


def of_gpus(nodes: int, pods: int = 14) -> NodeAllocations:
    return allocations(gpu={"nodes": nodes, "surge": 0, "pods_per_node": pods})


ALLOCATIONS = allocations(cpu=CPU, gpu={"nodes": 2, "surge": 0, "pods_per_node": 40})
STRANGE = Prefix.parse("192.168.0.0/24")


def at(number: int, pool: str = "cpu") -> NodeAllocation:
    allocation = ALLOCATIONS.at(NodeIndex(pool, number))
    assert allocation is not None
    return allocation


def node(name: str, cidrs: Iterable[Prefix] = (), pool: str | None = "cpu") -> NodeView:
    return NodeView(name, f"uid-{name}", "2", pool, tuple(cidrs))


def held(number: int, name: str, since: float | None = None) -> dict[NodeIndex, Claim]:
    """A claim; in cooldown since some time, if given."""
    return {at(number).index: Claim(at(number), name, f"uid-{name}", since)}


def decided(claims: dict[NodeIndex, Claim], *nodes: NodeView, now: float = NOW) -> Decision:
    return decide(ALLOCATIONS, claims, nodes, now, QUARANTINE)


def refusals(decision: Decision) -> list[tuple[str, RefusalReason, str]]:
    return [(refused.node.name, refused.reason, refused.message) for refused in decision.refusals]


def touching(number: int) -> Prefix:
    """The IPv4 prefix that touches so many allocations from the first on, a power of two."""
    (first,) = (cidr for cidr in at(0).cidrs if cidr.family is Family.V4)
    return Prefix(Family.V4, first.value, first.length - (number.bit_length() - 1))


def test_the_name_decides_then_the_lowest_number_that_is_free() -> None:
    names = ["train-cpu-5", "b", "a", "train-gpu-0"]
    decision = decided({}, *map(node, names), node("c", pool="gpu"))
    expected = {"a": at(0), "b": at(1), "train-cpu-5": at(5), "train-gpu-0": at(2)}
    assert decision.assignments == expected | {"c": at(0, "gpu")}
    assert decision.claims == {
        one.index: Claim(one, name, f"uid-{name}") for name, one in decision.assignments.items()
    }
    assert decision.refusals == []


def test_a_name_whose_place_is_taken_gets_another() -> None:
    decision = decided(held(2, "other"), node("other", at(2).cidrs), node("train-cpu-2"))
    assert decision.assignments == {"train-cpu-2": at(0)}


def test_the_older_node_chooses_first_whatever_the_order_of_the_list() -> None:
    older, newer = replace(node("z"), created="1"), node("a")
    for listed in ((older, newer), (newer, older)):
        assert decided({}, *listed).assignments == {"z": at(0), "a": at(1)}


def test_deciding_again_before_or_after_the_nodes_are_written_changes_no_claim() -> None:
    first = decided({}, node("a"), node("b"))
    claims = {index: claim for index, claim in first.claims.items() if claim}
    pending = decided(claims, node("b"), node("a"))
    assert (pending.claims, pending.assignments) == ({}, first.assignments)
    written = decided(claims, node("a", at(0).cidrs), node("b", at(1).cidrs))
    assert written == Decision()


def test_a_claim_in_cooldown_is_renewed_when_its_node_is_there() -> None:
    for found in (node("a", at(0).cidrs), node("a")):
        decision = decided(held(0, "a", NOW - 1), found)
        assert decision.claims == held(0, "a")


def test_what_podcidrs_cannot_say_is_in_the_annotation() -> None:
    allocation = at(0, "gpu")
    assert allocation.annotation
    there = node("a", allocation.cidrs, "gpu")
    decision = decided({}, there)
    assert decision.assignments == {"a": allocation}
    assert decision.claims[allocation.index] == Claim(allocation, "a", "uid-a")
    claims = {allocation.index: Claim(allocation, "a", "uid-a")}
    assert decided(claims, there).assignments == {"a": allocation}
    assert decided(claims, replace(there, annotation=allocation.annotation)) == Decision()


def test_a_pending_claim_does_not_keep_its_range_from_the_node_that_has_it() -> None:
    """`a` was promised 0, but its podCIDRs were never written; now `b` has them."""
    decision = decided(held(0, "a"), node("a"), node("b", at(0).cidrs))
    assert decision.claims == held(0, "b") | held(1, "a")
    assert decision.assignments == {"a": at(1)}
    assert decision.refusals == []


def test_two_nodes_with_one_podcidr_are_both_refused_with_the_others_name() -> None:
    decision = decided(held(0, "a"), node("a", at(0).cidrs), node("b", at(0).cidrs))
    shared = f"podCIDR {', '.join(map(str, at(0).cidrs))} is also that of Node"
    assert refusals(decision) == [
        ("b", RefusalReason.TAKEN, f"{shared} a; drain and delete one of them"),
        ("a", RefusalReason.TAKEN, f"{shared} b; drain and delete one of them"),
    ]
    assert (decision.claims, decision.assignments) == ({}, {})


def test_a_claim_whose_node_has_another_allocation_begins_its_cooldown() -> None:
    decision = decided(held(0, "a"), node("a", at(1).cidrs))
    assert decision.claims == held(1, "a") | held(0, "a", NOW)


def test_cooldown_begins_lasts_and_ends() -> None:
    for since in (None, NOW + 1):
        assert decided(held(0, "a", since)).claims == held(0, "a", NOW)
    for since in (NOW, NOW - QUARANTINE + 1):
        assert decided(held(0, "a", since)).claims == {}
    assert decided(held(0, "a", NOW - QUARANTINE)).claims == {at(0).index: None}


def test_every_claim_is_looked_at_whichever_nodes_are_there() -> None:
    claims = held(0, "there") | held(1, "gone")
    assert decided(claims, node("there", at(0).cidrs)).claims == held(1, "gone", NOW)


def test_only_a_node_of_the_same_name_gets_what_is_in_cooldown() -> None:
    claims = held(0, "a", NOW - 1)
    assert decided(claims, node("b")).assignments == {"b": at(1)}
    again = replace(node("a"), uid="uid-again")
    decision = decided(claims | held(1, "c", NOW - 1), node("b"), again)
    assert decision.assignments == {"a": at(0), "b": at(2)}
    assert decision.claims[at(0).index] == Claim(at(0), "a", "uid-again")


def test_what_returns_is_its_pools_and_goes_before_its_names_place() -> None:
    claims = held(5, "train-cpu-2", NOW - 1)
    again = replace(node("train-cpu-2"), uid="uid-again")
    assert decided(claims, again).assignments == {"train-cpu-2": at(5)}
    moved = replace(again, pool="gpu")
    assert decided(claims, moved).assignments == {"train-cpu-2": at(0, "gpu")}


def test_what_another_nodes_podcidrs_touch_is_given_to_nobody_even_if_it_returns() -> None:
    liar = node("liar", [touching(2)])
    again = replace(node("a"), uid="uid-again")
    assert decided(held(1, "a", NOW - 1), liar, again).assignments == {"a": at(2)}
    assert decided(held(1, "a"), liar, node("a")).assignments == {"a": at(2)}
    assert decided({}, liar, node("train-cpu-1")).assignments == {"train-cpu-1": at(2)}


@pytest.mark.parametrize(
    ("cidr", "fault", "first"),
    [
        (STRANGE, "lies outside the plan of cluster train", 0),
        (touching(2), "lies across allocations of the plan of cluster train", 2),
        (touching(MOST_TOUCHED), "lies across allocations of the plan", MOST_TOUCHED),
        (touching(2 * MOST_TOUCHED), "is more than one node has, so that others get", 0),
    ],
)
def test_podcidrs_that_are_no_allocation_are_refused_and_block_so_much(
    cidr: Prefix, fault: str, first: int
) -> None:
    second = Prefix.parse("fd00:99::/120")
    both = decided({}, node("odd", [cidr, second])).refusals[0]
    assert f"podCIDR {cidr}, {second} " in both.message
    decision = decided({}, node("odd", [cidr]), node("next"))
    (refusal,) = decision.refusals
    assert (refusal.node.name, refusal.reason) == ("odd", RefusalReason.OUTSIDE)
    assert refusal.message.startswith(f"podCIDR {cidr} {fault}")
    assert refusal.message.endswith(
        "; podCIDRs never change, so drain and delete the Node and let its kubelet register it "
        "again; kube-controller-manager must run with --allocate-node-cidrs=false"
    )
    assert decision.assignments == {"next": at(first)}


def test_one_family_of_an_allocation_is_not_the_allocation() -> None:
    decision = decided({}, node("half", at(3).cidrs[:1]), node("train-cpu-3"))
    assert [one.reason for one in decision.refusals] == [RefusalReason.OUTSIDE]
    assert decision.assignments == {"train-cpu-3": at(0)}


def test_a_node_without_a_pool_or_with_an_unknown_one_is_told_the_plans() -> None:
    decision = decided({}, node("a", pool=None), node("b", pool="tpu"))
    no_label = "no label says the node pool; label it with one of the plan's: cpu, gpu"
    no_pool = "cluster train has no node pool 'tpu' in the plan; there are: cpu, gpu"
    assert refusals(decision) == [
        ("a", RefusalReason.NO_POOL, no_label),
        ("b", RefusalReason.UNKNOWN_POOL, no_pool),
    ]
    assert decision.assignments == {}


def test_a_full_pool_says_how_many_are_in_cooldown_and_what_to_do() -> None:
    claims = {
        at(number, "gpu").index: Claim(at(number, "gpu"), f"n{number}", f"uid-n{number}", NOW - 1)
        for number in range(ALLOCATIONS.capacity["gpu"])
    }
    claims |= held(0, "elsewhere", NOW - 1)
    decision = decided(claims, node("late", pool="gpu"))
    message = (
        "node pool gpu has allocations for 2 nodes and none is free (2 in cooldown for 600 s after "
        "it): raise its nodes or surge in the plan, and lock it"
    )
    assert refusals(decision) == [("late", RefusalReason.POOL_FULL, message)]
    assert "late" not in decision.assignments


def test_a_machine_without_pods_gets_nothing_and_is_not_refused() -> None:
    for cidrs in ([], [STRANGE]):
        assert decided({}, replace(node("router", cidrs), runs_pods=False)) == Decision()


def test_only_claims_whose_cooldown_begins_are_released() -> None:
    before = held(0, "a") | held(1, "b", 7.0) | held(2, "c") | held(3, "d") | held(4, "e")
    after: dict[NodeIndex, Claim | None] = {
        **held(0, "a", NOW),
        at(1).index: None,
        **held(2, "x"),
        at(3).index: None,
        **held(4, "e"),
        **held(5, "new"),
    }
    assert [claim.node for claim in released(before, Decision(claims=after))] == ["a", "c", "d"]


def test_a_claim_that_replaces_another_nodes_is_a_takeover_unless_its_name_comes_back() -> None:
    again = {
        index: replace(claim, uid="uid-again")
        for index, claim in (held(4, "e") | held(5, "f")).items()
    }
    before = held(0, "a") | held(1, "b") | held(2, "c") | held(3, "d", 7.0)
    before |= held(4, "e", 7.0) | held(5, "f")
    after: dict[NodeIndex, Claim | None] = {
        at(0).index: None,
        **held(1, "b"),
        **held(6, "new"),
        **held(2, "x"),
        **held(3, "y"),
        **again,
    }
    taken = [claim.uid for claim in takeovers(before, Decision(claims=after))]
    assert taken == ["uid-x", "uid-y", "uid-again"]


HONEST = [node(f"node-{number}", pool="gpu") for number in range(3)]


def older(name: str, *cidrs: Prefix) -> NodeView:
    return replace(node(name, cidrs, "gpu"), created="1")


@pytest.mark.parametrize(
    ("nodes", "text"),
    [(4, "10.0.0.0/23"), (4, "0.0.0.0/1"), (600, "10.0.0.0/8"), (600, "fd00:10::/40")],
)
def test_a_prefix_that_is_more_than_a_node_has_keeps_nobody_waiting(nodes: int, text: str) -> None:
    liar = older("liar", Prefix.parse(text))
    decision = decide(of_gpus(nodes), {}, [liar, *HONEST], 0.0, 100.0)
    assert decision.assignments.keys() == {view.name for view in HONEST}
    (refusal,) = decision.refusals
    assert refusal.node is liar
    assert f"podCIDR {text} is more than one node has" in refusal.message


def test_only_the_beginning_of_a_large_prefix_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Just so many indexes that more than the limit are among them, each having come twice."""
    looked: list[NodeIndex] = []
    touched = NodeAllocations.touched

    def counting(self: NodeAllocations, prefixes: Iterable[Prefix]) -> Iterator[NodeIndex]:
        for index in touched(self, prefixes):
            looked.append(index)
            yield index

    monkeypatch.setattr(NodeAllocations, "touched", counting)
    decide(of_gpus(600), {}, [older("liar", Prefix.parse("10.0.0.0/8"))], 0.0, 100.0)
    assert len(looked) == 2 * MOST_TOUCHED + 1


def test_the_plans_own_large_allocations_are_accepted() -> None:
    large = of_gpus(4, pods=500)
    (index, *_) = large.touched([Prefix.parse("10.0.0.0/8")])
    allocation = large.at(index)
    assert allocation is not None
    holder = older("holder", *allocation.cidrs)
    decision = decide(large, {}, [holder, *HONEST], 0.0, 100.0)
    assert decision.refusals == []
    assert decision.claims[index].node == "holder"


def test_what_another_program_gave_a_node_is_still_given_to_nobody_else() -> None:
    """Before the plan decided, kube-controller-manager gave each node a /24; its pods still have
    addresses of it.
    """
    some = of_gpus(60)
    first = some.at(NodeIndex("gpu", 0))
    assert first is not None
    theirs = Prefix(Family.V4, first.ranges[0].network.value >> 8 << 8, 24)
    assert 1 < len(set(some.touched([theirs]))) <= MOST_TOUCHED
    decision = decide(some, {}, [older("foreign", theirs), *HONEST], 0.0, 100.0)
    given = [block for allocation in decision.assignments.values() for block in allocation.ranges]
    assert len(decision.assignments) == len(HONEST)
    blocks = [theirs, *(block for block in given if block.family is Family.V4)]
    assert not list(overlaps(blocks, lambda prefix: prefix))
