"""Budgets of thousands of nodes in virtual time, by the allocator that the controller has."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from statistics import fmean, quantiles

from netmgr.budgets.messages import BudgetReport, BudgetUse
from netmgr.budgets.terms import LEASE, OUTSTANDING
from tests.bench.report import Figure
from tests.fleet.budget_faults import FAULTS, LASTS
from tests.fleet.budget_nodes import Download
from tests.fleet.budget_world import PODS, Shape, World
from tests.fleet.effort import Effort

SEED = 36
WHOLE = Shape()
WHOLE_DAY = 1 + 1e-9
"""The most of a day's bytes, which are added up as floats here."""
SHORT = "everyone", "vision"
"""Budgets that are too small for what pods want: the outermost, and the innermost."""


def measure(effort: Effort) -> Iterator[Figure]:
    """What holds without faults, then with each pair of them; seeds are SEED and those after it."""
    part = effort.lent / WHOLE.nodes
    yield from _short(World(SEED, scaled(part)), effort)
    yield from _fresh(World(SEED, scaled(part, active=2000, pause=30_000)))
    yield from _liars(part / 10)
    yield from _pairs(effort)


def scaled(part: float, active: int = 30_000, pause: float = 1200.0, per_day: int = 0) -> Shape:
    """A part of the fleet, with its part of everything."""
    return Shape(
        round(WHOLE.nodes * part),
        int(WHOLE.rate * part),
        int(WHOLE.pods * part),
        int(active * part),
        pause,
        per_day=per_day,
    )


def _short(world: World, effort: Effort) -> Iterator[Figure]:
    of = f"{len(world.nodes):,} nodes"
    world.run(120)
    began = time.process_time()
    world.run(120 + effort.settled_seconds)
    spent = time.process_time() - began
    for name in SHORT:
        use = _use(world, name, 120)
        yield Figure(
            f"use of `{name}` when it is short, {of}, seed {SEED}",
            fmean(use),
            "",
            budget=0.93,
            more_is_better=True,
        )
        yield Figure("  seconds of it, 99 in 100 below", quantiles(use, n=100)[-1], "", budget=1.0)
        yield Figure("  the fullest second", max(use), "", budget=1.05)
    yield Figure("  processor for a second of all that", spent / effort.settled_seconds, "s")

    before = world.now
    for node in world.nodes[: len(world.nodes) // 2]:
        for _ in range(4):
            world.download(node, 0, 2e10)
    world.run(before + 40)
    yield Figure(
        "Jain's index 45 s after half of the nodes begin four downloads each",
        jain(world, 0, 5),
        "",
        budget=0.95,
        more_is_better=True,
    )

    before = int(world.now)
    world.lead()
    world.run(before + 60)
    dip = min(_use(world, "everyone", before))
    yield Figure(
        "  the emptiest second of a leader's change", dip, "", budget=0.9, more_is_better=True
    )

    route, world.route = world.route, lambda _: None
    before = int(world.now)
    world.run(before + LEASE + 180)
    yield Figure(
        "  without a server for 3 minutes, the two after",
        fmean(_use(world, "everyone", before + 180)),
        "",
    )
    world.route = route


def _use(world: World, name: str, since: int) -> list[float]:
    measured = world.seconds[name].use
    rate = next(budget.rate for budget in world.budgets if budget.name == name)
    return [use / rate for use in measured[since:]]


def jain(world: World, place: int, seconds: float) -> float:
    """Jain's index of what the downloads that this budget holds back get."""
    for node in world.nodes:
        node.look(world.now)
    before = {
        download: download.total
        for node in world.nodes
        for download in node.downloads
        if download.path[0] == place
    }
    world.run(world.now + seconds)
    rates = []
    for node in world.nodes:
        node.look(world.now)
        rates += [
            download.total - before[download]
            for download in node.downloads
            if download in before and download.bound == place
        ]
    return sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates))


def _fresh(world: World) -> Iterator[Figure]:
    world.run(90)
    began, took = world.now, []
    idle = [node for node in world.nodes if not node.downloads]
    idle = idle[: math.ceil(len(world.nodes) / 375)]
    waiting: dict[Download, float] = {}
    for node in idle:
        download = world.download(node, 0, 1e13)
        download.demand = 1e9
        node.share(world.now)
        waiting[download] = began
    while waiting and world.now < began + 120:
        world.run(world.now + 0.5)
        for download in [each for each in waiting if each.rate >= 0.95 * each.demand]:
            del waiting[download]
            took.append(world.now - began)
    took += [math.inf] * len(waiting)
    yield Figure(
        "a download of 1 Gbit/s on an idle node at full speed, of 20 at once the median",
        sorted(took)[len(took) // 2],
        "s",
        budget=30,
    )
    yield Figure("  the slowest", max(took), "s", budget=30)
    yield Figure("  use of the budget meanwhile", max(_use(world, "everyone", int(began))), "")


def _liars(part: float) -> Iterator[Figure]:
    """One node in 750 says that 100,000 pods wait there."""
    world = World(SEED, scaled(part))
    liars = world.nodes[::750]
    for node in liars:
        _lie(node)
    world.run(180)
    level = world.leaders[-1].rates["everyone"].level
    most = max(node.in_force[0] for node in liars)
    yield Figure(
        "what a node gets that says 100,000 pods wait", most / (PODS * level), "", budget=1.25
    )
    others = fmean(_use(world, "everyone", 120))
    yield Figure("  use of the budget then", others, "")


def _lie(node: object) -> None:
    told = node.reported

    def reported(now: float) -> BudgetReport:
        report = told(now)
        uses = {
            name: BudgetUse(use.held, 10**11, 100_000, 10**11, use.day, use.bytes, use.allowance)
            for name, use in report.uses.items()
        }
        node.report = BudgetReport(
            report.epoch, report.boot, report.sequence, report.version, uses, report.age
        )
        return node.report

    node.reported = reported


def _pairs(effort: Effort) -> Iterator[Figure]:
    part = effort.paired / WHOLE.nodes
    worst, fullest, number = ("", 0.0), 0.0, 0
    for seed, (first, second) in enumerate(combinations_with_replacement(FAULTS, 2)):
        if seed % effort.pairs:
            continue
        for active, pause in ((30_000, 1200.0), (3000, 6000.0)):
            shape = scaled(part, active, pause, int(WHOLE.rate * part * 0.2 * 100 / 8))
            most, full = under(
                World(SEED + seed, shape), (first, second), (0, 10, 60, 125)[seed % 4]
            )
            worst = max(worst, (f"{first} and {second}", most), key=lambda pair: pair[1])
            fullest = max(fullest, full)
            number += 1
    of = f"{number} runs with pairs of {len(FAULTS)} faults, {effort.paired} nodes"
    yield Figure(f"the most in force, {of}", worst[1], "", budget=OUTSTANDING)
    yield Figure("  of a day's bytes", fullest, "", budget=WHOLE_DAY)


def under(world: World, faults: Sequence[str], gap: float) -> tuple[float, float]:
    """The most in force of any budget, and the most that passed of any day's quota."""
    world.run(90)
    for measured in world.seconds.values():
        measured.in_force.clear()
    for fault in dict.fromkeys(faults):
        FAULTS[fault](world)
        world.run(world.now + gap)
    world.run(world.now + LASTS + 100)
    return (
        max(most for _, most in world.most_in_force()),
        max(world.most_of_a_day().values(), default=0.0),
    )
