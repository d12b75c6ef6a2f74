"""An agent whose wall clock is wrong, or is set while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.model import Traffic
from netmgr.prefixes import Family
from tests.lab import comparison
from tests.lab.capture import Tally
from tests.lab.exchange import datagrams
from tests.lab.nodes import LabNode
from tests.lab.topology import cluster
from tests.lab.traffic import Column
from tests.lab.world import World
from tests.waiting import eventually
from tests.wall_clock import HOUR, WallClock

pytestmark = [pytest.mark.root, pytest.mark.slow]

COOLDOWN = 6.0


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


@pytest.fixture
def world(clock: WallClock, lab_name: str) -> Iterator[World]:
    """Agents and exporters with this clock; launchers have the machine's."""
    settings = {"reconcile_seconds": 0.5, "pool": {"cooldown_seconds": COOLDOWN}}
    topology = replace(cluster(pods=4), pods=())
    with World(topology, name=lab_name, settings=settings) as made:
        node = made.node("node-1")
        node.stop_agent()
        node.start_agent(environment=clock.environment)
        node.wait_until_ready()
        yield made


def in_cooldown(node: LabNode) -> int:
    return sum(state["cooldown"] for state in node.snapshot()["pool"])


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("restarts", [False, True], ids=["runs-on", "restarts"])
def test_leases_cooldowns_and_counts_do_not_follow_the_wall_clock(
    world: World, clock: WallClock, *, step: int, restarts: bool
) -> None:
    node = world.node("node-1")
    speaker, ended = node.add("speaker"), node.add("ended")
    internet = world.outside(Family.V4)
    talking = speaker.end(Family.V4)

    def counted() -> set[tuple[Traffic, Tally]]:
        found = comparison.parse(node.scrape())
        return {(way, found[Column("research", "speaker", way)]) for way in WAYS}

    datagrams(talking, internet, [1000] * 10, [500] * 10)
    eventually(lambda: counted() == expected(10))
    node.runtime.delete(ended)
    released = time.monotonic()
    clock.set(step)
    if restarts:
        node.stop_agent()
        node.start_agent(environment=clock.environment)
        node.wait_until_ready()
    datagrams(talking, internet, [1000] * 10, [500] * 10)
    other = node.add("other")
    assert not set(other.addresses) & {*ended.addresses, *speaker.addresses}
    still = in_cooldown(node)
    # A busy machine may take longer for all this than a cooldown lasts.
    assert still == len(ended.addresses) or time.monotonic() - released > COOLDOWN
    eventually(lambda: counted() == expected(20))
    eventually(lambda: in_cooldown(node) == 0)
    assert time.monotonic() - released >= COOLDOWN
    node.runtime.check(speaker)
    clock.set(0)
    datagrams(talking, internet, [1000] * 10, [500] * 10)
    eventually(lambda: counted() == expected(30))
    assert all(gap["seconds"] < HOUR / 2 for gap in node.snapshot()["gaps"])


WAYS = (Traffic.INTERNET_OUT, Traffic.INTERNET_IN)


def expected(datagrams_each_way: int) -> set[tuple[Traffic, Tally]]:
    return {
        (way, Tally(bytes=datagrams_each_way * size, packets=datagrams_each_way))
        for way, size in zip(WAYS, (1028, 528), strict=True)
    }
