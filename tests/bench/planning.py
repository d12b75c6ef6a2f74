"""Planning: whole processes beside netaddr and the standard library, and how often a cluster can
grow where it is.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median

from netmgr.documents import loader
from netmgr.plan.allocate.space import Space, length_for, subtract
from netmgr.plan.check.checks import check_plan
from netmgr.plan.check.usage import limit_usage
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import digest_of
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix
from tests.bench import planning_growth
from tests.bench.planning_peers import Ipaddress, Netaddr, Texts, site_length
from tests.bench.report import Effort, Figure

SOURCE = Path(__file__).resolve().parents[2]
FASTER = 0.1
SITES = 20
FIRST = 16
POOL = Prefix.parse("10.0.0.0/8")


def measure(effort: Effort) -> Iterator[Figure]:
    """`plan lock` and `plan check` for every shape, then the simulation of growth."""
    for clusters, nodes in effort.shapes:
        yield from _processes(clusters, nodes, effort.starts)
    for clusters, nodes in effort.shapes:
        yield from _alone(clusters, nodes)
    for doublings in effort.doublings:
        yield from _growth(doublings, effort.seeds)
    yield from planning_growth.measure(effort.growth_seeds, effort.growths)


def _processes(clusters: int, nodes: int, times: int) -> Iterator[Figure]:
    """Every command as a process of its own; the peers, which take seconds, once."""
    shape = f"{clusters} clusters x {nodes:,} nodes"
    with tempfile.TemporaryDirectory() as folder:
        plan, lock = Path(folder, "plan.yaml"), Path(folder, "plan.lock.yaml")
        plan.write_text(document(clusters, nodes), encoding="utf-8")
        took: dict[str, list[float]] = {"lock": [], "check": []}
        for _ in range(times):
            lock.unlink(missing_ok=True)
            for command, more in (("lock", ["--yes"]), ("check", [])):
                took[command].append(_run(["netmgr", "plan", command, "-f", str(plan), *more]))
        for command, values in took.items():
            what = f"plan {command}, {shape}"
            yield Figure.of(what, values, "s", median, budget=1)
            for library in ("netaddr", "ipaddress"):
                job = [library, command, str(clusters), str(nodes), str(Path(folder, library))]
                peer = _run(["tests.bench.planning_peers", *job])
                yield Figure.of(what, values, "s", median, (library, [peer]), FASTER)


def _alone(clusters: int, nodes: int) -> Iterator[Figure]:
    """Choosing and checking alone, in this process: no interpreter to start, nothing to read or
    write.
    """
    shape = f"{clusters} clusters x {nodes:,} nodes"
    plan = loader.parse(document(clusters, nodes), "plan.yaml", PlanDocument)
    limits = load_limits(plan.cloud).agreed(plan.limits)
    lock = make_lock(plan, None, limits)
    ours = {
        "lock": _timed(lambda: make_lock(plan, None, limits)),
        "check": _timed(
            lambda: (
                lock.plan_digest == digest_of(plan),
                check_plan(plan, lock, limits),
                limit_usage(plan, lock, limits),
            )
        ),
    }
    for library, peer in (("netaddr", Netaddr()), ("ipaddress", Ipaddress())):
        given: Texts = {}
        theirs = {
            "lock": _timed(partial(peer.lock, given, clusters, nodes, site_length(nodes))),
            "check": _timed(partial(peer.check, given)),
        }
        for command, value in ours.items():
            yield Figure(
                f"{command} alone, {shape}",
                1e3 * value,
                "ms",
                1e3 * theirs[command],
                library,
                budget=FASTER,
            )


def _timed(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def document(clusters: int, nodes: int) -> str:
    """A plan of that shape: two /28 blocks a node, no surge."""
    pool = (
        f"{{node_pools: {{gpu: {{nodes: {nodes}, pods_per_node: 32, surge: 0}}}}, services: "
        "{length: 18}}"
    )
    return "\n".join(
        [
            "apiVersion: netmgr.io/v1alpha1",
            "kind: NetworkPlan",
            "name: bench",
            "pools: {nodes: [10.0.0.0/8], services: [172.16.0.0/12]}",
            "limits: {mappings_per_peered_group: 1000000}",
            "clusters:",
            *(f"  c{number}: {pool}" for number in range(clusters)),
        ]
    )


def _run(command: Sequence[str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *command], cwd=SOURCE, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - began


Choice = Callable[[Space, int, random.Random], Prefix | None]


def sparse(space: Space, length: int, source: random.Random) -> Prefix | None:
    """What netmgr does for growth that nobody declared."""
    del source
    return space.sparse(length)


def first_fit(space: Space, length: int, source: random.Random) -> Prefix | None:
    """The lowest free address."""
    del source
    fitting = [block for block in space.blocks() if block.length <= length]
    return min(fitting)._replace(length=length) if fitting else None


def best_fit(space: Space, length: int, source: random.Random) -> Prefix | None:
    """The smallest free block."""
    del source
    return space.packed(length)


def at_random(space: Space, length: int, source: random.Random) -> Prefix | None:
    """Any free place of the size, each as likely as any other."""
    fitting = [block for block in space.blocks() if block.length <= length]
    if not fitting:
        return None
    block = source.choices(fitting, [block.size for block in fitting])[0]
    step = 1 << (space.family.width - length)
    return Prefix(block.family, block.value + step * source.randrange(block.size // step), length)


CHOICES: dict[str, Choice] = {
    "netmgr": sparse,
    "first fit": first_fit,
    "best fit": best_fit,
    "random": at_random,
}


@dataclass
class World:
    """Sites in one pool that double, each where it stands when it can, else with another prefix."""

    choose: Choice
    source: random.Random
    space: Space = field(default_factory=lambda: Space(Family.V4, [POOL]))
    sites: list[list[Prefix]] = field(default_factory=list)

    def settle(self) -> None:
        """One more site."""
        self.sites.append([])
        self._add(self.sites[-1], FIRST)

    def double(self, site: list[Prefix]) -> bool:
        """Double one site; returns whether it could where it stands."""
        more = sum(held.size for held in site)
        for held in sorted(site, key=lambda held: held.length):
            grown = (
                self.space.grown(held, length_for(held.size + more, Family.V4))
                if held.length
                else None
            )
            if grown is not None:
                for part in subtract(grown, held):
                    self.space.take(part)
                site[site.index(held)] = grown
                return True
        self._add(site, length_for(more, Family.V4))
        return False

    def _add(self, site: list[Prefix], length: int) -> None:
        if (found := self.choose(self.space, length, self.source)) is not None:
            self.space.take(found)
            site.append(found)


def in_place(choose: Choice, doublings: int, seed: int) -> float:
    """Share of random doublings that succeed in place, with the same order of sites for every
    choice.
    """
    order = random.Random(seed)  # noqa: S311  a simulation, to be repeated
    world = World(choose, random.Random(f"choices {seed}"))  # noqa: S311  as above
    for _ in range(SITES):
        world.settle()
    return mean(world.double(order.choice(world.sites)) for _ in range(doublings))


def _growth(doublings: int, seeds: int) -> Iterator[Figure]:
    shares = {
        name: 100 * mean(in_place(c, doublings, seed) for seed in range(seeds))
        for name, c in CHOICES.items()
    }
    ours = shares.pop("netmgr")
    for name, share in shares.items():
        what = f"growth in place, {SITES} sites, {doublings} doublings, {seeds} seeds"
        compared = share or None  # none at all leaves nothing to divide by
        what += "" if compared else f" ({name}: 0 %)"
        yield Figure(what, ours, "%", compared, name, budget=1, more_is_better=True)
