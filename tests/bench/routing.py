"""A hub router's rules: planning and applying them, against the number of spokes.

Spokes have a prefix and a Service range of each family.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from netmgr.documents.node import NodeDocument
from netmgr.rules.engine import Rules
from netmgr.rules.nftables import NftablesBackend
from netmgr.rules.policy import Policy
from tests.bench.report import Effort, Figure
from tests.builders import NODE_KEYS
from tests.lab import named_netns
from tests.lab.wiring import inside


def measure(effort: Effort) -> Iterator[Figure]:
    """What the agent does when it starts, in a network namespace of its own."""
    for spokes in effort.spokes:
        took = [_applied(spokes) for _ in range(effort.rounds)]
        what = f"planning and applying rules, router of {spokes} spokes"
        yield Figure.of(what, took, "s", min, budget=0.1)


def _applied(spokes: int) -> float:
    path = Path(f"/run/netns/bench-router-{os.getpid()}")
    named_netns.create(path)
    try:
        with inside(path), closing(Rules(NftablesBackend(), Policy.of(_document(spokes)))) as rules:
            began = time.perf_counter()
            rules.apply(rules.plan([]))
            took = time.perf_counter() - began
            assert len(rules.drops().between) == spokes * (spokes - 1)
            return took
    finally:
        named_netns.delete(path)


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
