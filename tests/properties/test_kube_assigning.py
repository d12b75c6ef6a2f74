"""However Nodes come, go, return and are written, and however many controllers are at it: no range
is two Nodes'.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from netmgr.errors import StateError
from netmgr.kube.controller.allocations import Claim, NodeAllocation, NodeAllocations, NodeIndex
from netmgr.kube.controller.assigning import Decision, decide, released, takeovers
from netmgr.kube.controller.claim_store import SHARD, read, shard_name, write
from netmgr.kube.controller.nodes import NodeView
from netmgr.kube.controller.plan_watch import moved
from netmgr.plan.document import PlanDocument
from netmgr.prefixes import Prefix, overlaps
from tests.builders import plan_of
from tests.locks import lock_for

QUARANTINE = 100.0
LIKELY = 0.7
NODE_POOLS = {
    "gpu": {"nodes": 5, "surge": 0, "pods_per_node": 40},
    "cpu": {"nodes": 3, "surge": 0, "pods_per_node": 16},
}


def allocations_of(node_pools: dict[str, dict[str, int]]) -> NodeAllocations:
    pools = {"nodes": ["10.0.0.0/8", "fd00:10::/40"], "services": ["172.16.0.0/12"]}
    plan = plan_of({"train": {"node_pools": node_pools}}, cloud="none", pools=pools)
    return NodeAllocations(lock_for(PlanDocument.model_validate(plan)), "train")


ALLOCATIONS = allocations_of(NODE_POOLS)
NAMES = ["train-gpu-0", "train-gpu-4", "train-cpu-1", *(f"vmss{number}" for number in range(6))]
OF_A_NODE = ALLOCATIONS.at(NodeIndex("cpu", 1)).ranges[0]
ACROSS = Prefix(OF_A_NODE.family, OF_A_NODE.value >> 5 << 5, 27)
STRANGE = [Prefix.parse("192.168.0.0/24"), ACROSS]


class Controller:
    """One controller's idea of the claims, which may be out of date."""

    def __init__(self, machine: Cluster) -> None:
        self.machine = machine
        self.claims: dict[NodeIndex, Claim] = {}
        self.versions: dict[str, int] = {}
        self.nodes: list[NodeView] = []

    def load(self) -> None:
        self.claims = dict(self.machine.claims)
        self.versions = dict(self.machine.versions)


class Cluster:
    """An API server with Nodes and claims, and two controllers that both think they lead."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.nodes: dict[str, NodeView] = {}
        self.claims: dict[NodeIndex, Claim] = {}
        self.versions: dict[str, int] = {}
        self.now = 0.0
        self.uids = 0
        self.gone: dict[tuple[Prefix, ...], tuple[str, float]] = {}
        self.controllers = [Controller(self), Controller(self)]

    def step(self) -> None:
        """Something happens."""
        steps = {
            self.node_comes: 4,
            self.node_goes: 2,
            self.time_passes: 1,
            self.a_controller_works: 6,
        }
        self.chance.choices(list(steps), list(steps.values()))[0]()

    def node_comes(self) -> None:
        name = self.chance.choice(NAMES)
        pool = self.chance.choice(["cpu", "cpu", "cpu", "gpu", "none", None])
        if name not in self.nodes:
            self.uids += 1
            self.nodes[name] = NodeView(name, f"uid-{self.uids}", f"{self.chance.random()}", pool)

    def found_already(self) -> None:
        """Before any controller ran, something else gave these; it must be switched off since."""
        for cidrs in (ALLOCATIONS.at(NodeIndex("cpu", 0)), ALLOCATIONS.at(NodeIndex("gpu", 3))):
            self.node_comes()
            name = self.chance.choice(list(self.nodes))
            if cidrs and not self.nodes[name].cidrs:
                given = self.chance.choice([cidrs.cidrs, *((block,) for block in STRANGE)])
                self.nodes[name] = replace(self.nodes[name], cidrs=given)
        cidrs = [cidr for node in self.nodes.values() for cidr in node.cidrs]
        if list(overlaps(cidrs, lambda cidr: cidr)):
            self.nodes.clear()

    def node_goes(self) -> None:
        node = self.nodes.pop(self.chance.choice(NAMES), None)
        if node and node.cidrs and any(claim.uid == node.uid for claim in self.claims.values()):
            self.gone[node.cidrs] = (node.name, self.now)

    def time_passes(self) -> None:
        self.now += self.chance.choice([1.0, 40.0, QUARANTINE])

    def a_controller_works(self) -> None:
        """It may not have heard of the last changes, nor read what the other wrote, and be killed
        before it tells.
        """
        controller = self.chance.choice(self.controllers)
        if not controller.nodes or self.chance.random() < LIKELY:
            controller.nodes = list(self.nodes.values())
        if self.chance.random() > LIKELY:
            controller.load()
        decision = decide(ALLOCATIONS, controller.claims, controller.nodes, self.now, QUARANTINE)
        if not self.is_current(controller, decision) or not self.write(controller, decision):
            return
        uids = {node.name: node.uid for node in controller.nodes}
        for name, allocation in decision.assignments.items():
            if self.chance.random() < LIKELY:
                self.tell(name, uids[name], allocation)

    def is_current(self, controller: Controller, decision: Decision) -> bool:
        """A controller asks for Nodes before it believes that they are gone, or take over."""
        known, there = (
            {node.uid for node in nodes} for nodes in (controller.nodes, self.nodes.values())
        )
        gone = {claim.uid for claim in released(controller.claims, decision)} - known
        takers = {claim.uid for claim in takeovers(controller.claims, decision)}
        return not gone & there and takers <= there

    def write(self, controller: Controller, decision: Decision) -> bool:
        shards: dict[str, dict[NodeIndex, Claim | None]] = {}
        for index, claim in decision.claims.items():
            shards.setdefault(shard_name("train", index), {})[index] = claim
        for name, entries in shards.items():
            if controller.versions.get(name, 0) != self.versions.get(name, 0):
                controller.load()  # refused: somebody wrote first
                return False
            self.versions[name] = controller.versions[name] = self.versions.get(name, 0) + 1
            for index, claim in entries.items():
                for claims in (self.claims, controller.claims):
                    claims.pop(index, None) if claim is None else claims.update({index: claim})
        return True

    def tell(self, name: str, uid: str, allocation: NodeAllocation) -> None:
        """As the server takes it: bound to the UID, and podCIDRs never change."""
        node = self.nodes.get(name)
        if node and node.uid == uid and node.cidrs in ((), allocation.cidrs):
            self.check_cooldown(node, allocation)
            self.nodes[name] = replace(
                node, cidrs=allocation.cidrs, annotation=allocation.annotation
            )

    def check_cooldown(self, node: NodeView, allocation: NodeAllocation) -> None:
        name, since = self.gone.get(allocation.cidrs, (node.name, 0.0))
        assert node.cidrs or name == node.name or self.now >= since + QUARANTINE, (
            "it is in cooldown"
        )


@given(seed=st.integers(0, 1 << 32))
@example(seed=3824601)  # a Node that is gone, and still listed, ends the cooldown of its successor
@settings(max_examples=200)
def test_no_range_is_ever_two_nodes(seed: int) -> None:
    cluster = Cluster(random.Random(seed))  # noqa: S311  cases, not secrets
    cluster.found_already()
    for _ in range(80):
        cluster.step()
        cidrs = [cidr for node in cluster.nodes.values() for cidr in node.cidrs]
        assert not list(overlaps(cidrs, lambda cidr: cidr))


def views(number: int, pool: str = "gpu") -> Iterator[NodeView]:
    return (NodeView(f"n{i}", f"u{i}", f"{i:03}", pool) for i in range(number))


def test_claims_are_read_as_they_were_written() -> None:
    decision = decide(ALLOCATIONS, {}, list(views(3)), 0, QUARANTINE)
    for index, claim in decision.claims.items():
        assert claim
        for written in (claim, replace(claim, released=1234.5)):
            assert list(read(index.pool, {str(index.number): write(written)})) == [written]


@pytest.mark.parametrize(
    "value",
    [
        *("", "{", "{}", "[1]"),
        '{"node": "a", "uid": "u", "ranges": ["10.0.0.1/8"]}',
        '{"node": "a", "uid": "u", "ranges": [5]}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "9999-12-31T23:59:59-23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": "0001-01-01T00:00:00+23:59"}',
        '{"node": "a", "uid": "u", "ranges": [], "released": 5}',
    ],
)
def test_a_claim_that_is_none_is_refused_by_its_key(value: str) -> None:
    with pytest.raises(StateError, match="claim 7 of node pool gpu cannot be read"):
        list(read("gpu", {"7": value}))


def test_a_shard_of_the_longest_names_fits_an_object() -> None:
    allocation = ALLOCATIONS.at(NodeIndex("gpu", 0))
    assert allocation
    longest = Claim(allocation, "n" * 253, "u" * 36, 1e9)
    assert SHARD * (len(write(longest)) + 10) < 1 << 18


def test_a_plan_that_moves_or_forgets_an_allocation_is_refused_and_one_that_grows_is_not() -> None:
    decision = decide(ALLOCATIONS, {}, [*views(2), NodeView("c", "uc", "9", "cpu")], 0, QUARANTINE)
    claims = {index: claim for index, claim in decision.claims.items() if claim}
    assert not list(moved(ALLOCATIONS, claims))
    smaller = {"gpu": {"nodes": 5, "surge": 0, "pods_per_node": 10}}
    moves = list(moved(allocations_of(smaller), claims))
    assert any("Node n1 (gpu/1)" in move for move in moves)
    assert any("Node c (cpu/0)" in move and "says nothing" in move for move in moves)
