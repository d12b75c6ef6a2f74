"""Planning: a whole process beside netaddr and the standard library, and how often a cluster can
grow where it is.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median

from netmgr.documents import loader
from netmgr.plan.allocate.space import Space, length_for, subtract
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix
from tests.bench.planning_peers import LIBRARIES
from tests.bench.report import SOURCE, Effort, Figure

FASTER = 0.1
POOL = Prefix.parse("10.0.0.0/8")
SITES, DOUBLINGS, FIRST = 20, 10, 16


def measure(effort: Effort) -> Iterator[Figure]:
    """`plan lock` as a process and alone, then the simulation of growth."""
    shape = f"{effort.shape[0]} clusters x {effort.shape[1]:,} nodes"
    with tempfile.TemporaryDirectory() as folder:
        plan, lock = Path(folder, "plan.yaml"), Path(folder, "plan.lock.yaml")
        plan.write_text(document(*effort.shape))
        took = []
        for _ in range(effort.starts):
            lock.unlink(missing_ok=True)
            took.append(_run(["netmgr", "plan", "lock", "-f", str(plan), "--yes"]))
        for library in LIBRARIES:
            # It takes seconds: once is enough.
            job = [library, *map(str, effort.shape), str(Path(folder, library))]
            peer = _run(["tests.bench.planning_peers", *job])
            yield Figure.of(f"plan lock, {shape}", took, "s", median, (library, [peer]), FASTER)
    parsed = loader.parse(document(*effort.shape), "plan.yaml", PlanDocument)
    limits = load_limits(parsed.cloud).agreed(parsed.limits)
    # Once unmeasured: its first run imports modules.
    make_lock(parsed, None, limits)
    ours = _timed(lambda: make_lock(parsed, None, limits))
    for library, allocate in LIBRARIES.items():
        theirs = _timed(partial(allocate, *effort.shape))
        yield Figure(f"lock alone, {shape}", 1e3 * ours, "ms", 1e3 * theirs, library, FASTER)
    yield from _growth(effort.seeds)


def document(clusters: int, nodes: int) -> str:
    """A plan of that shape: two /28 blocks a node, no surge."""
    pools = f"{{gpu: {{nodes: {nodes}, pods_per_node: 32, surge: 0}}}}"
    lines = [
        "apiVersion: netmgr.io/v1alpha1",
        "kind: NetworkPlan",
        "name: bench",
        "pools: {nodes: [10.0.0.0/8], services: [172.16.0.0/12]}",
        # As far as a thousand clusters exceed the cloud's limits, these are raised.
        "limits:",
        "  mappings_per_peered_group: 1000000",
        "  peerings_per_network: 10000",
        "  route_tables: 100000",
        "  routes_per_table: 100000",
        "clusters:",
        *(
            f"  c{number}: {{node_pools: {pools}, services: {{length: 24}}}}"
            for number in range(clusters)
        ),
    ]
    return "\n".join(lines)


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _run(command: Sequence[str]) -> float:
    run = [sys.executable, "-m", *command]
    return _timed(lambda: subprocess.run(run, cwd=SOURCE, stdout=subprocess.DEVNULL, check=True))


Choice = Callable[[Space, int, random.Random], Prefix | None]


def first_fit(space: Space, length: int, _: random.Random) -> Prefix | None:
    """The lowest free address."""
    fitting = [block for block in space.blocks() if block.length <= length]
    return min(fitting)._replace(length=length) if fitting else None


def at_random(space: Space, length: int, source: random.Random) -> Prefix | None:
    """Any free place of the size, each as likely as any other."""
    fitting = [block for block in space.blocks() if block.length <= length]
    if not fitting:
        return None
    block = source.choices(fitting, [block.size for block in fitting])[0]
    step = 1 << (space.family.width - length)
    return Prefix(block.family, block.value + step * source.randrange(block.size // step), length)


CHOICES: dict[str, Choice] = {
    # What netmgr does for growth that nobody declared.
    "netmgr": lambda space, length, _: space.sparse(length),
    "first fit": first_fit,
    # The smallest free block.
    "best fit": lambda space, length, _: space.packed(length),
    "random": at_random,
}


class Sites:
    """Sites in one pool that double, each where it stands when it can, else with another prefix."""

    def __init__(self, choose: Choice, source: random.Random) -> None:
        self._choose = choose
        self._source = source
        self._space = Space(Family.V4, [POOL])
        self.sites: list[list[Prefix]] = [[] for _ in range(SITES)]
        for site in self.sites:
            self._add(site, FIRST)

    def double(self, site: list[Prefix]) -> bool:
        """Double one site; returns whether it could where it stands."""
        more = sum(held.size for held in site)
        for held in sorted(site, key=lambda held: held.length):
            length = length_for(held.size + more, Family.V4)
            grown = self._space.grown(held, length) if held.length else None
            if grown is not None:
                for part in subtract(grown, held):
                    self._space.take(part)
                site[site.index(held)] = grown
                return True
        self._add(site, length_for(more, Family.V4))
        return False

    def _add(self, site: list[Prefix], length: int) -> None:
        if (prefix := self._choose(self._space, length, self._source)) is not None:
            self._space.take(prefix)
            site.append(prefix)


def in_place(choose: Choice, seed: int) -> float:
    """Share of random doublings that succeed in place, in the same order for every choice."""
    order = random.Random(seed)  # noqa: S311  a simulation, to be repeated
    sites = Sites(choose, random.Random(f"choices {seed}"))  # noqa: S311  as above
    return mean(sites.double(order.choice(sites.sites)) for _ in range(DOUBLINGS))


def _growth(seeds: int) -> Iterator[Figure]:
    shares = {
        name: 100 * mean(in_place(choose, seed) for seed in range(seeds))
        for name, choose in CHOICES.items()
    }
    ours = shares.pop("netmgr")
    for name, share in shares.items():
        what = f"growth in place, {SITES} sites, {DOUBLINGS} doublings, {seeds} seeds"
        compared = share or None  # none at all leaves nothing to divide by
        what += "" if compared else f" ({name}: 0 %)"
        yield Figure(what, ours, "%", compared, name, budget=1, more_is_better=True)
