"""How full a pool gets, and what growth costs, beside first fit, best fit and random places.

The peers share nothing with netmgr but what is asked for: each subnet is a power of two of
addresses, put where their rule says, in a list of what is taken. They know no sites, reserves,
widening, or division of a demand.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from netmgr.plan.clouds.cloud import Cloud
from netmgr.plan.document import PlanDocument
from netmgr.plan.files import load_limits
from netmgr.plan.lock import LockDocument, PlanRefused
from netmgr.plan.locking import make_lock
from netmgr.prefixes import Family, Prefix, merge
from tests.builders import PLAN_KEYS

LIMITS = load_limits(Cloud.NONE)
POOL = Prefix.parse("10.0.0.0/12")
BLOCK, BLOCKS, NAT, HUB = 16, 2, 16, (16, 16)
"""Addresses of a block, blocks of a node, and addresses of the NAT hosts' and the hub's subnets."""

Pools = dict[str, int]
"""Nodes by node pool."""


def plan(clusters: Mapping[str, Pools], grow_to: Mapping[str, int]) -> PlanDocument:
    """Its nodes have two /28 each, without surge."""
    keys = {"pods_per_node": BLOCKS * BLOCK, "surge": 0}
    return PlanDocument.model_validate(
        {
            **PLAN_KEYS,
            "name": "bench",
            "cloud": "none",
            "pools": {"nodes": [str(POOL)], "services": ["172.16.0.0/12"]},
            "hub": {"researchers": 10, "routers": 1},
            "clusters": {
                name: {
                    "services": {"length": 24},
                    "grow_to": grow_to.get(name),
                    "node_pools": {pool: {"nodes": nodes, **keys} for pool, nodes in pools.items()},
                }
                for name, pools in clusters.items()
            },
        }
    )


def locked(
    clusters: Mapping[str, Pools],
    before: LockDocument | None = None,
    grow_to: Mapping[str, int] | None = None,
) -> LockDocument | None:
    """The lock, or None if it is refused."""
    try:
        return make_lock(plan(clusters, grow_to or {}), before, LIMITS)
    except PlanRefused:
        return None


def subnet(nodes: int) -> int:
    """Addresses of the subnet for so many nodes, with its first and last."""
    hosts = -(-(1 + nodes) // BLOCK) * BLOCK
    return 1 << (hosts + nodes * BLOCKS * BLOCK).bit_length()


def held(size: int) -> int:
    """Nodes that fit into a subnet."""
    return next(nodes for nodes in range(size // (BLOCKS * BLOCK), -1, -1) if subnet(nodes) <= size)


def sizes(pools: Pools) -> list[int]:
    return sorted([*map(subnet, pools.values()), NAT], reverse=True)


def share(clusters: Sequence[Pools]) -> float:
    """Of the pool, what the subnets of these clusters take."""
    return sum(chain.from_iterable(map(sizes, clusters))) / POOL.size


Hole = tuple[int, int, int]
"""First place of a size in a gap, how many there are, and the gap's addresses."""
Rule = Callable[[list[Hole], int, random.Random], int]


def at_random(holes: list[Hole], size: int, source: random.Random) -> int:
    first, places, _ = source.choices(holes, [places for _, places, _ in holes])[0]
    return first + size * source.randrange(places)


RULES: dict[str, Rule] = {
    "first fit": lambda holes, *_: holes[0][0],
    "best fit": lambda holes, *_: min(holes, key=lambda hole: hole[2])[0],
    "random": at_random,
}


@dataclass
class Peer:
    """An allocator that puts each subnet by itself."""

    rule: Rule
    source: random.Random
    taken: list[tuple[int, int]] = field(default_factory=list)
    subnets: dict[str, list[Prefix]] = field(default_factory=dict)

    def add(self, name: str, wanted: Sequence[int]) -> bool:
        """Put all of these sizes, or none; returns whether there was room."""
        before, own = list(self.taken), []
        for size in wanted:
            if not (holes := list(self._holes(size))):
                self.taken = before
                return False
            first = self.rule(holes, size, self.source)
            self.taken = sorted([*self.taken, (first, first + size)])
            own.append(Prefix(Family.V4, first, Family.V4.width - size.bit_length() + 1))
        self.subnets.setdefault(name, []).extend(own)
        return True

    def _holes(self, size: int) -> Iterator[Hole]:
        ends = [POOL.value, *(end for _, end in self.taken)]
        for low, high in zip(
            ends, [*(first for first, _ in self.taken), POOL.last + 1], strict=True
        ):
            first = -(-low // size) * size
            if first + size <= high:
                yield first, (high - first) // size, high - low

    @property
    def prefixes(self) -> int:
        return sum(len(merge(own)) for name, own in self.subnets.items() if name)


def peer(rule: str, seed: int) -> Peer:
    """One that has the hub already, whose name is empty."""
    made = Peer(RULES[rule], random.Random(seed))  # noqa: S311  a simulation, to be repeated
    assert made.add("", HUB)
    return made


def fill(clusters: Sequence[Pools]) -> float:
    """Share of the pool that a fresh plan of the first so many clusters takes, before a refusal."""
    few, many = 0, len(clusters) + 1
    while many - few > 1:
        count = (few + many) // 2
        fits = locked({f"c{number}": pools for number, pools in enumerate(clusters[:count])})
        few, many = (count, many) if fits else (few, count)
    return share(clusters[:few])


def fill_step_by_step(clusters: Sequence[Pools]) -> float:
    """The same, each cluster added to the lock of those before it."""
    lock: LockDocument | None = None
    several: dict[str, Pools] = {}
    for number, pools in enumerate(clusters):
        lock = locked({**several, f"c{number}": pools}, lock)
        if lock is None:
            break
        several[f"c{number}"] = pools
    return share(list(several.values()))


def fill_of_peer(clusters: Sequence[Pools], rule: str = "first fit") -> float:
    """What a peer takes of the pool, cluster by cluster."""
    made = peer(rule, 0)
    count = 0
    while count < len(clusters) and made.add(str(count), sizes(clusters[count])):
        count += 1
    return share(clusters[:count])


def equal(count: int) -> list[Pools]:
    return [{"gpu": 110}] * count


def mixed(count: int, seed: int) -> list[Pools]:
    """Clusters of 20 to 1,600 nodes, most with a small second node pool."""
    source = random.Random(seed)  # noqa: S311  as above
    clusters = []
    for _ in range(count):
        nodes = source.choice([20, 50, 110, 200, 400, 800])
        pools = {"gpu": nodes + source.randrange(nodes)}
        if source.random() < 0.6:
            pools["system"] = source.randrange(3, 30)
        clusters.append(pools)
    return clusters


@dataclass
class Outcome:
    """Prefixes that growth added, and growth that was refused."""

    extra: int = 0
    refused: int = 0


def year(seed: int, load: float, events: int, *, declared: bool) -> dict[str, Outcome]:
    """Random growth of clusters that take a share of the pool at first, by allocator."""
    source = random.Random(seed)  # noqa: S311  as above
    every = mixed(400, seed)
    count = next(number for number in range(400) if share(every[:number]) >= load)
    now = {f"c{number}": dict(pools) for number, pools in enumerate(every[:count])}
    grow_to = {
        name: int(sum(pools.values()) * source.choice([1, 1.5, 2, 3]))
        for name, pools in now.items()
        if declared
    }
    lock = locked(now, None, grow_to)
    peers = {rule: peer(rule, seed) for rule in RULES}
    outcomes = {name: Outcome() for name in ("netmgr", *RULES)}
    for name in sorted(now, key=lambda name: -sum(sizes(now[name]))):
        for made in peers.values():
            made.add(name, sizes(now[name]))
    places = {
        (rule, name, pool): held(subnet(nodes))
        for rule in RULES
        for name, pools in now.items()
        for pool, nodes in pools.items()
    }
    wanted = {key: now[key[1]][key[2]] for key in places}
    assert lock is not None
    began = {rule: made.prefixes for rule, made in peers.items()} | {"netmgr": _prefixes(lock)}
    for _ in range(events):
        name = source.choice(sorted(now))
        pool = source.choice(sorted(now[name]))
        more = max(1, int(now[name][pool] * source.choice([0.1, 0.3, 1, 1])))
        grown = {**now, name: {**now[name], pool: now[name][pool] + more}}
        if declared:
            grow_to[name] = max(grow_to[name], sum(grown[name].values()))
        if (after := locked(grown, lock, grow_to)) is None:
            outcomes["netmgr"].refused += 1
        else:
            lock, now = after, grown
        for rule, made in peers.items():
            key = (rule, name, pool)
            missing = wanted[key] + more - places[key]
            if missing > 0 and not made.add(name, [subnet(missing)]):
                outcomes[rule].refused += 1
                continue
            places[key] += held(subnet(missing)) if missing > 0 else 0
            wanted[key] += more
    for rule, made in peers.items():
        outcomes[rule].extra = made.prefixes - began[rule]
    outcomes["netmgr"].extra = _prefixes(lock) - began["netmgr"]
    return outcomes


def _prefixes(lock: LockDocument) -> int:
    return sum(len(cluster.prefixes) for cluster in lock.clusters.values())
