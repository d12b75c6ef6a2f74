"""Clusters of unlike sizes that grow until the pool is nearly full: extra prefixes and refusals,
beside first fit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean

from netmgr.plan.allocate.demand import blocks, hosts_length, pods_length
from netmgr.plan.allocate.space import Space, length_for
from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import PlanRefused
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix
from tests.bench.report import Figure
from tests.builders import PLAN_KEYS

POOL = Prefix.parse("10.0.0.0/11")
CLUSTERS, LARGEST = 20, 2000
AZURE = load_limits(Cloud.AZURE)
Nodes = dict[str, int]


def document(nodes: Nodes, declared: Nodes) -> PlanDocument:
    """A plan of these clusters, 31 pods a node; `declared` says how far some will grow."""
    clusters = {
        name: {
            "services": {"length": 24},
            "grow_to": max(declared[name], count) if name in declared else None,
            "node_pools": {"gpu": {"nodes": count, "pods_per_node": 31, "surge": 0}},
        }
        for name, count in nodes.items()
    }
    pools = {"nodes": [str(POOL)], "services": ["172.16.0.0/12"]}
    head = {**PLAN_KEYS, "name": "growth"}
    return PlanDocument.model_validate({**head, "pools": pools, "clusters": clusters})


@dataclass
class FirstFit:
    """The same subnets, each demand in the lowest free block that holds it."""

    space: Space = field(default_factory=lambda: Space(Family.V4, [POOL]))
    inner: dict[str, Space] = field(default_factory=dict)
    capacity: Nodes = field(default_factory=dict)
    prefixes: int = 0

    def grow(self, name: str, nodes: int) -> bool:
        """Whether there is room."""
        more = nodes - self.capacity.get(name, 0)
        cut = blocks(document({name: nodes}, {}).clusters[name].node_pools["gpu"], Family.V4)
        lengths = sorted((hosts_length(more, Family.V4, AZURE), pods_length(more, cut, AZURE)))
        inner = self.inner.get(name, Space(Family.V4))
        trial = inner.copy()
        if not _take(trial, lengths):
            needed = length_for(sum(1 << (32 - length) for length in lengths), Family.V4)
            fitting = [block for block in self.space.blocks() if block.length <= needed]
            if not fitting:
                return False
            added = min(fitting)._replace(length=needed)
            self.space.take(added)
            self.prefixes += 1
            trial = inner.copy()
            trial.give(added)
            _take(trial, lengths)
        self.inner[name], self.capacity[name] = trial, nodes
        return True


def _take(space: Space, lengths: list[int]) -> bool:
    for length in lengths:
        place = space.packed(length)
        if place is None:
            return False
        space.take(place)
    return True


def compared(
    factor: float, seed: int, growths: int, *, declared: bool
) -> tuple[int, int, int, int]:
    """Extra prefixes and refusals of netmgr, then of first fit, for the same events."""
    source = random.Random(seed)  # noqa: S311  a simulation, to be repeated
    ours = {f"c{number}": LARGEST // (number + 1) for number in range(CLUSTERS)}
    theirs, goal = dict(ours), dict(ours)
    events = [source.choice(sorted(ours)) for _ in range(growths)]
    for name in events if declared else ():
        goal[name] = int(goal[name] * factor) + 1
    growth = goal if declared else {}
    lock, peer = make_lock(document(ours, growth), None, AZURE), FirstFit()
    for name, count in ours.items():
        peer.grow(name, count)
    refused = [0, 0]
    for name in events:
        larger = {**ours, name: int(ours[name] * factor) + 1}
        try:
            lock, ours = make_lock(document(larger, growth), lock, AZURE), larger
        except PlanRefused:
            refused[0] += 1
        wanted = int(theirs[name] * factor) + 1
        if peer.grow(name, wanted):
            theirs[name] = wanted
        else:
            refused[1] += 1
    extra = sum(len(held.prefixes) - 1 for held in lock.clusters.values())
    return extra, refused[0], peer.prefixes - CLUSTERS, refused[1]


def measure(seeds: int, growths: int) -> Iterator[Figure]:
    """Growth by a factor of 2 and 1.3, declared beforehand or not."""
    for factor in (2, 1.3):
        for declared in (False, True):
            found = [compared(factor, seed, growths, declared=declared) for seed in range(seeds)]
            extra, refused, their_extra, their_refused = (
                mean(figures) for figures in zip(*found, strict=True)
            )
            what = (
                f"x{factor} growth, {'declared' if declared else 'not declared'}, {growths} "
                f"events, {seeds} seeds"
            )
            prefixes, granted = (
                f"prefixes of {CLUSTERS} clusters, {what}",
                f"growth granted, {what}",
            )
            yield Figure(
                prefixes, CLUSTERS + extra, "", CLUSTERS + their_extra, "first fit", budget=1
            )
            mine, theirs = growths - refused, growths - their_refused
            yield Figure(granted, mine, "", theirs, "first fit", budget=1, more_is_better=True)
