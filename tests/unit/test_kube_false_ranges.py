"""A Node whose podCIDRs are false, as a kubelet may register it, and what it keeps from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from netmgr.kube.allocations import NodeAllocations, NodeIndex
from netmgr.kube.assigning import MOST_TOUCHED, NodeView, decide
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix, overlaps
from tests.builders import PLAN_KEYS

HONEST = [NodeView(f"node-{number}", f"uid-{number}", "2", "gpu") for number in range(3)]


def allocations(nodes: int, pods: int = 14) -> NodeAllocations:
    document = PlanDocument.model_validate(
        {
            **PLAN_KEYS,
            "name": "test",
            "cloud": "none",
            "pools": {"nodes": ["10.0.0.0/8", "fd00:10::/40"], "services": ["172.16.0.0/12"]},
            "clusters": {
                "train": {
                    "node_pools": {"gpu": {"nodes": nodes, "surge": 0, "pods_per_node": pods}}
                }
            },
        }
    )
    return NodeAllocations(make_lock(document, None, load_limits(document.cloud)), "train")


@pytest.mark.parametrize(
    ("nodes", "text"),
    [(size, text) for size in (4, 600) for text in ("10.0.0.0/8", "0.0.0.0/1", "10.0.0.0/23")]
    + [(600, "fd00:10::/40")],
)
def test_a_prefix_that_is_more_than_a_node_has_keeps_nobody_waiting(nodes: int, text: str) -> None:
    liar = NodeView("liar", "uid-liar", "1", "gpu", (Prefix.parse(text),))
    decision = decide(allocations(nodes), {}, [liar, *HONEST], 0.0, 100.0)
    assert decision.assignments.keys() == {node.name for node in HONEST}
    (refusal,) = decision.refusals
    assert refusal.node is liar
    assert (
        f"podCIDR {text} is more than one node has" in refusal.message
        or "outside the plan" in refusal.message
    )


def test_of_a_prefix_that_touches_the_whole_plan_only_the_beginning_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Just so many indexes that more than the limit are among them, each having come twice."""
    looked: list[NodeIndex] = []
    touched = NodeAllocations.touched

    def counting(self: NodeAllocations, prefixes: Iterable[Prefix]) -> Iterator[NodeIndex]:
        for index in touched(self, prefixes):
            looked.append(index)
            yield index

    monkeypatch.setattr(NodeAllocations, "touched", counting)
    liar = NodeView("liar", "uid-liar", "1", "gpu", (Prefix.parse("10.0.0.0/8"),))
    decide(allocations(600), {}, [liar], 0.0, 100.0)
    assert len(looked) == 2 * MOST_TOUCHED + 1


def test_the_plans_own_large_allocations_are_accepted() -> None:
    large = allocations(4, pods=500)
    (found, *_) = large.touched([Prefix.parse("10.0.0.0/8")])
    allocation = large.at(found)
    assert allocation is not None
    holder = NodeView("holder", "uid-holder", "1", "gpu", allocation.cidrs)
    decision = decide(large, {}, [holder, *HONEST], 0.0, 100.0)
    assert decision.refusals == []
    assert decision.claims[found].node == "holder"


def test_what_another_program_gave_a_node_is_still_given_to_nobody_else() -> None:
    """Before the plan decided, kube-controller-manager gave each node a /24; its pods still have
    addresses of it.
    """
    some = allocations(60)
    first = some.at(NodeIndex("gpu", 0))
    assert first is not None
    theirs = Prefix(Family.V4, first.ranges[0].network.value >> 8 << 8, 24)
    assert 1 < len(set(some.touched([theirs]))) <= MOST_TOUCHED
    foreign = NodeView("foreign", "uid-foreign", "1", "gpu", (theirs,))
    decision = decide(some, {}, [foreign, *HONEST], 0.0, 100.0)
    given = [block for allocation in decision.assignments.values() for block in allocation.ranges]
    assert len(decision.assignments) == len(HONEST)
    assert not list(overlaps([theirs, *(block for block in given if block.family is Family.V4)]))
