"""A hub router's rules: applying and reading them against the number of spokes.

Spokes have a prefix and a Service range of each family. No packet has been dropped yet: a pair's
counter is made by its first packet, so a router where every pair has one reads for longer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from netmgr.documents.node import NodeDocument
from netmgr.kernel import netns
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from tests.bench.report import Effort, Figure
from tests.builders import NODE_KEYS
from tests.lab.wiring import inside

SECONDS = 0.1


def measure(effort: Effort) -> Iterator[Figure]:
    """What the agent does when it starts, at each reading, and when it looks for drift."""
    for spokes in effort.spokes:
        rounds = [_measured(spokes) for _ in range(effort.rounds)]
        for what in rounds[0]:
            took = [one[what] for one in rounds]
            yield Figure.of(f"{what}, router of {spokes} spokes", took, "s", min, budget=SECONDS)


@contextmanager
def _namespace() -> Iterator[None]:
    """Have the calling thread run in a network namespace of its own."""
    path = Path(f"/run/netns/bench-router-{os.getpid()}")
    netns.create(path)
    try:
        with inside(path):
            yield
    finally:
        netns.delete(path)


def _measured(spokes: int) -> dict[str, float]:
    with _namespace():
        rules = Rules(NftablesBackend(), Policy.of(_document(spokes)))
        try:
            began = time.perf_counter()
            rules.apply(rules.plan([]))
            applied = time.perf_counter() - began
            pairs = rules.drops().between
            assert len(pairs) == spokes * (spokes - 1)
            return {
                "planning and applying rules": applied,
                "reading what was dropped": _timed(rules.drops),
                "reading counters": _timed(rules.read),
                "looking for drift": _timed(lambda: rules.plan([])),
            }
        finally:
            rules.close()


def _document(spokes: int) -> NodeDocument:
    hub = {"name": "hub", "prefixes": ["10.0.0.0/16", "fd00::/48"]}
    sites = [hub, *map(_spoke, range(1, spokes + 1))]
    router = {"name": "router", "addresses": ["10.0.255.1"]}
    keys = {"node": router, "role": "hub-router", "site": "hub", "sites": sites}
    return NodeDocument.model_validate({**NODE_KEYS, **keys})


def _spoke(number: int) -> dict[str, object]:
    return {
        "name": f"spoke-{number}",
        "prefixes": [f"10.{number}.0.0/16", f"fd00:{number:x}::/48"],
        "services": [f"100.64.{number}.0/24", f"fd64:{number:x}::/120"],
    }


def _timed(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
