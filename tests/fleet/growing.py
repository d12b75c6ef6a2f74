"""How what a fleet costs grows with its nodes: simulated hours with every event."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from netmgr.simulation.report import Report, report
from netmgr.simulation.scenario import REGISTER_SECONDS
from tests.bench.growth import figures
from tests.bench.report import Figure
from tests.fleet.effort import Effort
from tests.unit.fleets import run


def measure(effort: Effort) -> Iterator[Figure]:
    """Exponents of what grows with the number of nodes."""
    costs: dict[str, dict[int, float]] = defaultdict(dict)
    for nodes in effort.sizes:
        began = time.process_time()
        with TemporaryDirectory() as folder:
            found = run(Path(folder), nodes)
        assert found.comparison.agrees, found.comparison.differing[:10]
        shown = report(found)
        costs["controllers' processor time"][nodes] = 1000 * shown["controller_seconds"]
        costs["size of what the leader knows"][nodes] = shown["controller_memory"] / 1000
        # Nodes that register faster than the server takes writes wait for each other: the wait
        # alone is next to nothing for few Nodes, and has no exponent.
        costs["from the first registration until all Nodes have ranges"][nodes] = 1000 * (
            REGISTER_SECONDS + shown["joined"][0]["ranges_longest"]
        )
        costs["the simulation's processor time"][nodes] = 1000 * (time.process_time() - began)
        costs["requests of controllers but for the Lease"][nodes] = _requests(shown)
    yield from figures(costs, "nodes")


def _requests(shown: Report) -> int:
    (controllers,) = (one for one in shown["requests"] if one["client"] == "controllers")
    return sum(n for what, n in controllers["by_verb"].items() if not what.endswith(" leases"))
