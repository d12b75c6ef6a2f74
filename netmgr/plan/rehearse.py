"""An upgrade before it is started, and the number of pods a node should have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from netmgr.errors import ConfigError
from netmgr.plan.bill import Line, bill
from netmgr.plan.demand import Blocks, blocks
from netmgr.plan.document import Addressing, NodePool, PlanDocument, Surge
from netmgr.plan.grow import cluster_of, with_pool
from netmgr.plan.limits import CloudLimits
from netmgr.plan.lock import LockDocument
from netmgr.prefixes import Family


@dataclass(frozen=True, slots=True)
class Step:
    """The upgrade of one node pool: `nodes` and `surge` nodes at once, and the lock's `places`."""

    pool: str
    nodes: int
    surge: int
    places: int

    @property
    def peak(self) -> int:
        """Nodes that exist at the same time."""
        return self.nodes + self.surge

    @property
    def short(self) -> int:
        """Places that are missing."""
        return max(0, self.peak - self.places)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What an upgrade meets: node pools one after the other, and limits that it passes."""

    steps: tuple[Step, ...]
    over: tuple[Line, ...]

    @property
    def succeeds(self) -> bool:
        """Whether the upgrade comes to its end."""
        return not self.over and not any(step.short for step in self.steps)


def rehearse_upgrade(
    plan: PlanDocument, lock: LockDocument, limits: CloudLimits, name: str, *, surge: int, only: str | None = None
) -> Rehearsal:
    """Upgrade every node pool of a cluster, or `only` one, with `surge` nodes beside the others.

    Raises:
        ConfigError: there is no such cluster or node pool.
    """
    cluster = cluster_of(plan, name)
    if only is not None and only not in cluster.node_pools:
        raise ConfigError(f"{name} has no node pool {only!r}; it has {', '.join(cluster.node_pools)}")
    held = lock.clusters[name]
    steps = []
    over: dict[tuple[str, str], Line] = {}
    for pool, spec in cluster.node_pools.items():
        if only not in (None, pool):
            continue
        steps.append(Step(pool, spec.nodes, surge, held.node_pools[pool].capacity))
        during = with_pool(_calm(plan), name, pool, spec.model_copy(update={"surge": Surge(nodes=surge)}))
        over |= {(line.what, line.subject): line for line in _passed(during, lock, limits)}
    return Rehearsal(tuple(steps), tuple(over.values()))


def _calm(plan: PlanDocument) -> PlanDocument:
    """The plan while nothing is being upgraded."""
    for name, cluster in plan.clusters.items():
        for pool, spec in cluster.node_pools.items():
            plan = with_pool(plan, name, pool, spec.model_copy(update={"surge": Surge()}))
    return plan


def _passed(plan: PlanDocument, lock: LockDocument, limits: CloudLimits) -> Iterator[Line]:
    return (line for line in bill(plan, lock, limits) if line.status == "over" and not line.is_advice)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to cut a node pool's subnet: up to `pods` pods a node, `nodes` nodes in the subnets that are locked."""

    pool: str
    blocks: int
    pods: int
    nodes: int
    mappings: int
    is_now: bool
    fits: bool


def max_pods(plan: PlanDocument, lock: LockDocument, limits: CloudLimits, name: str) -> tuple[Choice, ...]:
    """For each node pool of a cluster: pods a node by number of blocks, from one to twice as many as now.

    Every address of a block is a pod's, because the node's own stands in another subnet (AKS,
    where it does not, offers 16 N - 1).

    Raises:
        ConfigError: there is no such cluster.
    """
    cluster = cluster_of(plan, name)
    return tuple(
        choice for pool, spec in cluster.node_pools.items() for choice in _choices(pool, spec, lock, limits, name)
    )


def _choices(pool: str, spec: NodePool, lock: LockDocument, limits: CloudLimits, name: str) -> Iterator[Choice]:
    now = blocks(spec, Family.V4)
    counts = range(1, 2 * now.count + 1)
    if spec.addressing is Addressing.SINGLE:
        counts = range(now.count, now.count + 1)
    for count in counts:
        cut = Blocks(now.family, now.length, count)
        fitting = sum(
            (segment.v4.pods.size // cut.size - sum(cut.skipped(limits))) // count
            for segment in lock.clusters[name].node_pools[pool].segments
        )
        nic = limits.limits.addresses_per_nic
        fits = fitting >= spec.needed and (nic is None or count + 1 <= nic)
        yield Choice(pool, count, count * cut.size, fitting, 1 + count, count == now.count, fits)
