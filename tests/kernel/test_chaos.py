"""Machines under random faults: pods keep their network, and each byte is counted or in a gap.

A few steps in `make test-all`, thousands in `make chaos`. NETMGR_CHAOS_SEED replays a run: the same
faults in the same order, though threads and processes meet at other moments. NETMGR_CHAOS_ACTS
names the only acts to do. What has to be true after each step, and how long a gap may be, is in
`tests/chaos/node.py` and `tests/chaos/books.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from types import ModuleType

import pytest

from netmgr.documents.node import Backend
from tests.chaos import acts_agent, acts_files, acts_kernel, acts_runtime, hub
from tests.chaos.node import SETTINGS, Chaos
from tests.chaos.reports import reported
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.lab import planned
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.wall_clock import WallClock

# Alone: requests and repairs have bounds of time.
pytestmark = [
    *(pytest.mark.root, pytest.mark.slow, pytest.mark.alone),
    pytest.mark.timeout(24 * 3600),
]

STEPS = int(os.environ.get("NETMGR_CHAOS_STEPS", "16"))
SEED = int(os.environ.get("NETMGR_CHAOS_SEED", "1"))
ONLY = os.environ.get("NETMGR_CHAOS_ACTS", "").split()
BACKENDS = [Backend.NFTABLES, Backend.IPTABLES_LEGACY]
LONG = STEPS > 100
FIGURES_EACH = 100
"""Steps after which a long run says how far it is."""
FEW_PODS = 3
STEPS_OF_A_NODE_FOR_ONE = 3
"""A step of the hub takes as long as so many of a node."""


def acts_of(*modules: ModuleType) -> list[Callable[..., None]]:
    """Every public function of these modules does one thing to a node, or to a hub's machine."""
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


ACTS = acts_of(acts_runtime, acts_agent, acts_kernel, acts_files)
OF_A_HUB = acts_of(hub)


@pytest.fixture(params=[*EVERY_WAY_OF_COUNTING, *([Backend.IPTABLES_NFT] if LONG else [])], ids=str)
def chaos(request: pytest.FixtureRequest, lab_name: str, tmp_path: Path) -> Iterator[Chaos]:
    room = replace(cluster(nodes=1, pods=50), pods=())
    clock = WallClock(tmp_path)
    with World(
        room, backend=request.param, name=lab_name, settings=SETTINGS, exporters=False
    ) as world:
        chance = random.Random(SEED)  # noqa: S311  a seed has to replay it
        made = Chaos(world, world.node("node-1"), chance, clock)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(params=BACKENDS if LONG else BACKENDS[:1], ids=str)
def spokes(request: pytest.FixtureRequest, lab_name: str) -> Iterator[hub.Hub]:
    topology, settings = planned.network(2, 1, 1), hub.SETTINGS
    with World(
        topology, backend=request.param, name=lab_name, settings=settings, exporters=False
    ) as world:
        made = hub.Hub(world, random.Random(SEED))  # noqa: S311  a seed has to replay it
        try:
            yield made
        finally:
            made.close()


def choose(chaos: Chaos) -> Callable[[Chaos], None]:
    """Any act; while there are few pods, more of them come."""
    known = [act for act in ACTS if act.__name__ in ONLY] or ACTS
    few = FEW_PODS - len(chaos.pods)
    return acts_runtime.come if chaos.chance.random() < few / 4 else chaos.chance.choice(known)


def test_whatever_happens_pods_keep_their_network_and_no_byte_goes_in_silence(
    chaos: Chaos, capsys: pytest.CaptureFixture[str]
) -> None:
    with reported(chaos, capsys, f"NETMGR_CHAOS_SEED={SEED}") as say:
        for number in range(1, STEPS + 1):
            chaos.step(choose(chaos))
            if number % FIGURES_EACH == 0:
                say()


def test_whatever_happens_to_one_machine_spokes_stay_apart_and_the_hub_reaches_all(
    spokes: hub.Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    with reported(spokes, capsys, f"NETMGR_CHAOS_SEED={SEED}") as say:
        known = [act for act in OF_A_HUB if act.__name__ in ONLY] or OF_A_HUB
        for number in range(1, (STEPS // STEPS_OF_A_NODE_FOR_ONE or 1) + 1):
            spokes.step(spokes.chance.choice(known))
            if number % FIGURES_EACH == 0:
                say()
