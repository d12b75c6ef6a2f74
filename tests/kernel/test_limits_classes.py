"""Limits of classes of traffic, beside those of the internet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.flows import attain, attains, flows
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.alone, pytest.mark.slow]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    # Limits are nftables' whatever counts.
    room = cluster(pods=6)
    others = [str(prefix) for prefix in room.nodes[1].ranges]
    limit = {"pods": "*/slow", "internet-out": "20M", "classes": {"others-out": "30M"}}
    settings = {
        "limits": [limit],
        "accounting": {"classes": [{"name": "others", "prefixes": others}]},
    }
    name = f"classed-{os.getpid()}"
    room = replace(room, pods=())
    with World(room, backend=Backend.NFTABLES, name=name, settings=settings) as made:
        yield made


def test_each_class_has_its_own_limit(world: World) -> None:
    first, second = world.nodes
    slow, beside, other = first.add("slow"), first.add("beside"), second.add("other")
    for family in Family:
        there, here = other.address(family), beside.address(family)
        with (
            flows(slow.netns, other.netns, there) as to_class,
            flows(slow.netns, world.internet, INTERNET[family]) as to_internet,
        ):
            assert attains(to_class, 30)
            assert attains(to_internet, 20)
        # Neither what comes from the class, nor what is in no class.
        with flows(slow.netns, other.netns, there, to_server=False) as from_class:
            assert attain(lambda unlimited: unlimited > 200, from_class)
        with flows(slow.netns, beside.netns, here) as inside:
            assert attain(lambda unlimited: unlimited > 200, inside)
    shown = {one["traffic"]: one["rate"] for one in first.snapshot()["limits"]}
    assert shown == {"internet-out": 20_000_000, "others-out": 30_000_000}
