"""Faults of a fleet of budgets: each begins at some time and is over `LASTS` seconds later."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from netmgr.budgets.allocator import BudgetAllocator
from netmgr.budgets.terms import GRACE, HOLD, LEASE
from tests.fleet.budget_nodes import FleetNode
from tests.fleet.budget_world import DAY, World

LASTS = LEASE + GRACE - HOLD
"""Seconds; every lease ends meanwhile, and who misses an answer then takes its safe rate."""

Fault = Callable[[World], None]


def some(world: World, part: float) -> list[FleetNode]:
    return [node for node in world.nodes if world.random.random() < part]


def later(world: World, seconds: float, happens: Callable[[], None]) -> None:
    world.at(world.now + seconds, happens)


def leader_change(world: World) -> None:
    world.lead()


def lease_end(world: World) -> None:
    """No server answers."""
    route = world.route
    world.route = lambda _: None
    later(world, LASTS, lambda: setattr(world, "route", route))


def partition(world: World) -> None:
    """Half of the nodes are cut off, those with more downloads: what they leave is a lot."""
    by_use = sorted(world.nodes, key=lambda node: len(node.downloads), reverse=True)
    _cut(world, by_use[: len(by_use) // 2])


def partition_of_idle(world: World) -> None:
    """Half of the nodes are cut off, those with fewer downloads: safe is more than they had."""
    by_use = sorted(world.nodes, key=lambda node: len(node.downloads))
    _cut(world, by_use[: len(by_use) // 2])


def _cut(world: World, nodes: list[FleetNode]) -> None:
    for node in nodes:
        node.is_reachable = False
    later(world, LASTS, lambda: [setattr(node, "is_reachable", True) for node in nodes])


def restart_of_everything(world: World) -> None:
    """Every machine boots within half a minute, and another leader takes over."""
    for node in world.nodes:
        later(world, world.random.uniform(0, 30), lambda node=node: world.reboot(node))
    later(world, world.random.uniform(0, 30), world.lead)


def restart_of_the_idle(world: World) -> None:
    """Those that have least boot at once."""
    by_use = sorted(world.nodes, key=lambda node: len(node.downloads))
    for node in by_use[: 2 * len(by_use) // 3]:
        world.reboot(node)


def flapping(world: World) -> None:
    """A third of the nodes comes and goes."""
    until = world.now + LASTS

    def flap(node: FleetNode) -> None:
        node.is_reachable = world.now > until or not node.is_reachable
        if world.now <= until:
            later(world, world.random.uniform(3, 40), lambda: flap(node))

    for node in some(world, 0.33):
        flap(node)


def clocks(world: World) -> None:
    """A leader whose clock is a day ahead, then one whose clock is two days behind."""
    world.lead(day=DAY + 1)
    later(world, 40, lambda: world.lead(day=DAY - 1))


def lost_file(world: World) -> None:
    """Nodes lose their file and their counts."""
    for node in some(world, 0.3):
        world.lose(node)


def deleted_node(world: World) -> None:
    """Node objects are deleted; the machines run on, and register again."""
    gone = {node.name for node in some(world, 0.1)}
    world.set_nodes({name: pods for name, pods in world.objects.items() if name not in gone})
    before = {node.name: 30 for node in world.nodes}
    later(world, LASTS, lambda: world.set_nodes(before))


def replay(world: World) -> None:
    """Old reports arrive again; TLS keeps them from another server than theirs."""
    until = world.now + LASTS
    recorded = list(world.recorded)

    def again() -> None:
        world.arrive(*world.random.choice(recorded))
        if world.now < until:
            later(world, world.random.expovariate(len(world.nodes) / 20), again)

    if recorded:
        again()


def two_leaders(world: World) -> None:
    """The former leader goes on for half of the nodes, for longer than any election lets it."""
    former, before = world.leaders[-1], world.route
    world.lead()
    with_it = {node.name for node in some(world, 0.5)}

    def route(node: FleetNode) -> BudgetAllocator | None:
        return former if node.name in with_it else before(node)

    world.route = route
    later(world, LEASE / 2, lambda: setattr(world, "route", before))


FAULTS: Mapping[str, Fault] = {
    fault.__name__.replace("_", " "): fault
    for fault in (
        leader_change,
        lease_end,
        partition,
        partition_of_idle,
        restart_of_everything,
        restart_of_the_idle,
        flapping,
        clocks,
        lost_file,
        deleted_node,
        replay,
        two_leaders,
    )
}
