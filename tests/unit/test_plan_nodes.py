"""What a controller asks of a lock: a pool's places, a place's blocks, and a block's place."""

from __future__ import annotations

from netmgr.plan import machines
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import overlaps


def test_every_place_of_a_pool_is_told_in_the_order_of_numbers(rendered_lock: LockDocument) -> None:
    places = list(machines.planned_nodes(rendered_lock, "training", "gpu"))
    assert len(places) == rendered_lock.clusters["training"].node_pools["gpu"].capacity > 7500
    assert [place.index for place in places] == list(range(len(places)))
    assert list(overlaps([block for place in places for block in place.blocks])) == []


def test_a_place_is_found_by_its_number_and_by_any_of_its_blocks(
    rendered_lock: LockDocument,
) -> None:
    for place in list(machines.planned_nodes(rendered_lock, "training", "gpu"))[::500]:
        assert machines.node(rendered_lock, "training", "gpu", place.index) == place
        assert [machines.node_owning(rendered_lock, block.network) for block in place.blocks] == [
            place
        ] * len(place.blocks)


def test_a_pool_that_is_not_in_use_has_no_places(rendered_lock: LockDocument) -> None:
    assert list(machines.planned_nodes(rendered_lock, "training", "cpu")) == []
    assert list(machines.planned_nodes(rendered_lock, "elsewhere", "cpu")) == []
    gone = rendered_lock.clusters["evals"].model_copy(update={"tombstone": True})
    lock = rendered_lock.model_copy(update={"clusters": {"evals": gone}})
    assert list(machines.planned_nodes(lock, "evals", "cpu")) == []
