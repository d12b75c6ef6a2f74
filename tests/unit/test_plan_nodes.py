"""What a controller asks of a lock: a node by its number, its blocks, and whose a block is."""

from __future__ import annotations

from netmgr.plan import machines
from netmgr.plan.lock import LockDocument
from netmgr.plan.machines import PlannedNode
from netmgr.prefixes import overlaps


def nodes_of(lock: LockDocument) -> list[PlannedNode]:
    """Every node that fits into the node pool: more than the plan asks for today."""
    numbers = range(lock.clusters["training"].node_pools["gpu"].capacity)
    found = [machines.node(lock, "training", "gpu", number) for number in numbers]
    return [node for node in found if node is not None]


def test_a_node_pool_has_its_capacity_of_nodes_whose_blocks_are_their_own(
    rendered_lock: LockDocument,
) -> None:
    nodes = nodes_of(rendered_lock)
    assert len(nodes) == rendered_lock.clusters["training"].node_pools["gpu"].capacity > 7500
    assert [node.index for node in nodes] == list(range(len(nodes)))
    assert machines.node(rendered_lock, "training", "gpu", len(nodes)) is None
    assert list(overlaps([block for node in nodes for block in node.blocks])) == []


def test_a_node_is_found_by_any_of_its_blocks(rendered_lock: LockDocument) -> None:
    for node in nodes_of(rendered_lock)[::500]:
        assert [machines.node_owning(rendered_lock, block.network) for block in node.blocks] == [
            node
        ] * len(node.blocks)


def test_a_pool_that_the_lock_has_not_has_no_nodes(rendered_lock: LockDocument) -> None:
    assert machines.node(rendered_lock, "training", "cpu", 0) is None
    assert machines.node(rendered_lock, "elsewhere", "cpu", 0) is None
