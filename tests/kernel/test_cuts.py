"""Every pair of adjacent durable steps of an agent is cut, and the next agent puts all right.

The steps are recorded from the product as it runs (`tests/failpoints`), so the list of cuts is
never written down. What the scenarios reach of the source is in `tests/golden/durable-steps`, which
`tests/unit/test_durable_steps.py` compares with a scan of the source.

`make test-all` cuts a few steps of one scenario (NETMGR_CUTS_SEED). `make cuts` cuts all of all of
them; NETMGR_CUTS=N cuts N of each, 0 only records, and NETMGR_CUTS_OF names the only scenarios.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from tests.chaos.node import SETTINGS
from tests.chaos.reports import reported
from tests.failpoints import order, sites
from tests.failpoints.bench import Bench, NotReached, Scenario
from tests.failpoints.order import Order
from tests.failpoints.scenarios import RANGES, SCENARIOS
from tests.failpoints.steps import ROOT, Step
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.lab.topology import cluster
from tests.lab.world import World
from tests.wall_clock import WallClock

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(24 * 3600)]

CUTS = os.environ.get("NETMGR_CUTS", "")
OF_A_SAMPLE = 2
GOLDEN = ROOT / "tests" / "golden" / "durable-steps"
SEED = int(os.environ.get("NETMGR_CUTS_SEED", "1"))
ONLY = os.environ.get("NETMGR_CUTS_OF", "").split()
TRIES = 2
"""How often a cut is tried whose steps did not follow each other again."""
TRIES_ALONE = 3
"""How often its second step alone is tried after that, whatever it comes after."""
ONE_MISSED_OF = 10
"""Of so many pairs of all scenarios one may never come again: a timer's step came by chance."""


@pytest.fixture(params=EVERY_WAY_OF_COUNTING, ids=str)
def bench(request: pytest.FixtureRequest, lab_name: str, tmp_path: Path) -> Iterator[Bench]:
    room, settings = replace(cluster(nodes=1, pods=20), pods=()), {**SETTINGS, "ranges": [*RANGES]}
    with World(
        room, backend=request.param, name=lab_name, settings=settings, exporters=False
    ) as world:
        chance = random.Random(SEED)  # noqa: S311  a seed has to replay it
        made = Bench(world, world.node("node-1"), chance, WallClock(tmp_path))
        try:
            with made.host_pods():
                yield made
        finally:
            made.close()


def test_an_agent_killed_between_any_two_durable_steps_loses_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = bench.world.backend
    scenarios = [one for one in SCENARIOS if backend in one.backends]
    scenarios = [one for one in scenarios if one.name in ONLY] or scenarios
    if not CUTS and not ONLY:
        scenarios = [bench.chance.choice(scenarios)]
    known: set[order.Pair] = set()
    every: list[Step] = []
    wanted, missed = 0, list[tuple[str, Order]]()
    with reported(bench, capsys, f"NETMGR_CUTS_SEED={SEED}"):
        for scenario in scenarios:
            steps = bench.record(scenario)
            every += steps
            cuts = order.cuts(steps, known if scenario.shares else ())
            known |= cuts.keys()
            chosen = choose(bench, list(cuts.values()))
            uncut = [one for one in chosen if not cut(bench, scenario, one)]
            wanted += len(chosen)
            missed += [(scenario.name, one) for one in uncut]
            with capsys.disabled():
                sys.stdout.write(
                    f"\n{backend} {scenario.name}: {len(steps)} steps, "
                    f"{len(chosen) - len(uncut)} of {len(cuts)} pairs cut"
                )
                sys.stdout.flush()
        assert len(missed) <= wanted // ONE_MISSED_OF, f"not taken again: {missed}"
        if len(scenarios) > 1 and not ONLY:
            compare(backend, sites.reached(sites.sites(), every))


def choose(bench: Bench, cuts: list[Order]) -> list[Order]:
    most = len(cuts) if CUTS == "all" else int(CUTS or OF_A_SAMPLE)
    return bench.chance.sample(cuts, min(most, len(cuts)))


def compare(backend: Backend, reached: set[str]) -> None:
    """What scenarios reach of the source is what is written down; or write it down."""
    path = GOLDEN / f"{backend}.txt"
    if os.environ.get("NETMGR_UPDATE_GOLDEN") == "1":
        path.write_text("".join(f"{one}\n" for one in sorted(reached)))
    assert set(path.read_text().splitlines()) == reached, "run again with NETMGR_UPDATE_GOLDEN=1"


def cut(bench: Bench, scenario: Scenario, one: Order) -> bool:
    """Cut a pair of steps, or in the end its second one, whatever it comes after.

    What threads do beside each other is another pair each time. Returns whether it was cut.
    """
    for attempt in [one] * TRIES + [replace(one, behind=None)] * TRIES_ALONE:
        try:
            bench.cut(scenario, attempt)
        except NotReached:
            continue
        else:
            return True
    return False
