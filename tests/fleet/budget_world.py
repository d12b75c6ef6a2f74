"""A fleet in virtual time under the product's allocator: downloads, messages that get lost, faults.

Everything is by one heap of events, and by one seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from exporter.reporting import EXCHANGE_SECONDS
from netmgr.backoff import Backoff
from netmgr.budgets.allocator import BudgetAllocator, ReportRefused
from netmgr.budgets.messages import Budget, BudgetAnswer, BudgetReport
from netmgr.budgets.terms import PERIOD
from netmgr.model import Traffic
from tests.fleet.budget_nodes import Download, FleetNode

DAY = 20_000
PODS = 30
"""That a node can have."""

IN, OUT = Traffic.INTERNET_IN, Traffic.INTERNET_OUT
BUDGETS = (
    ("everyone", "", IN, 1.0, 0.2),
    ("research", "everyone", IN, 0.2, 0.2),
    ("vision", "research", IN, 0.05, 0.15),
    ("batch", "everyone", IN, 0.3, 0.15),
    ("services", "everyone", IN, 0.6, 0.1),
    ("uploads", "", OUT, 0.5, 0.05),
    ("results", "uploads", OUT, 0.2, 0.05),
    ("backups", "uploads", OUT, 0.1, 0.05),
    ("mirrors", "uploads", OUT, 0.1, 0.05),
)
"""Name, outer one, direction, part of the whole rate, part of the downloads that begin in it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a fleet is like.

    Attributes:
        rate: of the outermost budget, in bits a second.
        pods: of all nodes; `active` of them download when it begins.
        pause: seconds between two downloads of a pod, on average.
        least_size, tail, largest_size: of downloads, in bytes and as Pareto's exponent.
        fastest: bits a second of a download that nothing holds back, at most.
        lost: of messages, each way.
        per_day: bytes of the budget `research`; 0 for no quota.
    """

    nodes: int = 7500
    rate: int = 100_000_000_000
    pods: int = 200_000
    active: int = 20_000
    pause: float = 1200.0
    least_size: float = 5e7
    tail: float = 1.3
    largest_size: float = 2e11
    fastest: float = 2e9
    lost: float = 0.1
    per_day: int = 0


@dataclass(slots=True)
class Measured:
    """Of one budget, second by second: what passed, and the most that was in force."""

    use: list[float] = field(default_factory=list)
    in_force: list[int] = field(default_factory=list)


class World:
    """Nodes, leaders, and the messages between them."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a seed's world is to come again
        self.shape = shape
        self.now = 0.0
        self.budgets = tuple(
            Budget(
                name,
                within,
                (name,),
                traffic,
                int(shape.rate * part),
                shape.per_day if name == "research" else 0,
            )
            for name, within, traffic, part, _ in BUDGETS
        )
        names = [budget.name for budget in self.budgets]
        self.paths: list[tuple[int, ...]] = []
        for budget in self.budgets:
            outer = self.paths[names.index(budget.within)] if budget.within else ()
            self.paths.append((names.index(budget.name), *outer))
        self.weights = [weight for *_, weight in BUDGETS]
        self.in_force = [0] * len(names)
        self.peaks = [0] * len(names)
        self.use = [0.0] * len(names)
        self._area = [0.0] * len(names)
        self._moved = [0.0] * len(names)
        self.seconds = {name: Measured() for name in names}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._due: dict[str, float] = {}
        self.nodes = [
            FleetNode(f"node-{number}", self.budgets, self._move, self._ended)
            for number in range(shape.nodes)
        ]
        self.objects = {node.name: PODS for node in self.nodes}
        self.kept: dict[str, dict[int, int]] = {}
        self.day = DAY
        self.leaders: list[BudgetAllocator] = []
        self.reports = 0
        self.recorded: deque[tuple[BudgetAllocator, FleetNode, BudgetReport]] = deque(
            maxlen=4 * shape.nodes
        )
        self.route: Callable[[FleetNode], BudgetAllocator | None] = lambda _: self.leaders[-1]
        self.active = 0
        for node in self.nodes:
            node.backoff = Backoff(first=1, chance=self.random.random)
            node.drift = 1 + self.random.uniform(-2e-4, 2e-4)
            node.booted = node.looked = node.began = -self.random.uniform(0, 1e6)
            node.looked = node.began = 0.0
            node.apply(0.0)
            self.at(self.random.uniform(0, PERIOD), lambda node=node: self._report(node))
        self.lead()
        self.at(1.0, self._second)
        for _ in range(shape.active):
            self.download(*self._anyone())
        self._arrive()

    def lead(self, *, day: int | None = None) -> BudgetAllocator:
        """A new leader takes over; the former ones go on, if anybody asks them."""
        epoch = len(self.leaders) + 1
        leader = BudgetAllocator(epoch, self.now, self.day if day is None else day, self.kept)
        leader.set_budgets(self.budgets, "1", self.now, enforce=True)
        leader.set_nodes(self.objects, self.now)
        self.leaders.append(leader)
        self._keep()
        return leader

    def set_nodes(self, objects: dict[str, int]) -> None:
        self.objects = objects
        for leader in self.leaders:
            leader.set_nodes(objects, self.now)

    def reboot(self, node: FleetNode) -> None:
        node.start(self.now)
        self._follow(node)

    def lose(self, node: FleetNode) -> None:
        node.lose_everything(self.now)
        self._follow(node)

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, happens))

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, happens = heapq.heappop(heap)
            happens()
        self.now = until

    def _move(self, now: float, place: int, in_force: int, use: float) -> None:
        if in_force:
            self.in_force[place] += in_force
            self.peaks[place] = max(self.peaks[place], self.in_force[place])
        if use:
            self._area[place] += self.use[place] * (now - self._moved[place])
            self._moved[place] = now
            self.use[place] += use

    def _ended(self, downloads: int) -> None:
        self.active -= downloads

    def _second(self) -> None:
        for leader in self.leaders:
            leader.tick(self.now, self.day)
        self._keep()
        for place, measured in enumerate(self.seconds.values()):
            self._move(self.now, place, 0, 1e-9)
            measured.use.append(self._area[place])
            measured.in_force.append(self.peaks[place])
            self._area[place], self.peaks[place] = 0.0, self.in_force[place]
        self.at(self.now + 1, self._second)

    def _keep(self) -> None:
        # A former leader's write fails: it is conditional on what it read.
        self.kept = self.leaders[-1].ceilings()
        self.leaders[-1].keep(self.kept)

    def _anyone(self) -> tuple[FleetNode, int]:
        place = self.random.choices(range(len(self.weights)), self.weights)[0]
        return self.random.choice(self.nodes), place

    def _arrive(self) -> None:
        idle = self.shape.pods - self.active
        self.at(self.now + self.random.expovariate(max(1, idle) / self.shape.pause), self._next)

    def _next(self) -> None:
        self.download(*self._anyone())
        self._arrive()

    def download(self, node: FleetNode, place: int, size: float | None = None) -> Download:
        shape = self.shape
        if size is None:
            size = min(shape.least_size * self.random.paretovariate(shape.tail), shape.largest_size)
        demand = shape.fastest * self.random.choice((0.05, 0.2, 1.0))
        download = Download(self.paths[place], demand, size)
        node.begin(download, self.now)
        self.active += 1
        self._follow(node)
        return download

    def _follow(self, node: FleetNode) -> None:
        """Look again at a node when something changes there by itself."""
        due = node.changes(self.now)
        if self._due.get(node.name) == due:
            return
        self._due[node.name] = due
        if due < math.inf:
            self.at(due, lambda: self._look(node, due))

    def _look(self, node: FleetNode, due: float) -> None:
        if self._due[node.name] == due:
            self._due[node.name] = math.inf
            node.look(self.now)
            self._follow(node)

    def _latency(self) -> float:
        return (
            self.random.expovariate(100)
            if self.random.random() < 0.99
            else 8 * self.random.random()
        )

    def _report(self, node: FleetNode) -> None:
        report = node.reported(self.now)
        self._follow(node)
        node.exchange = report
        if node.is_reachable and self.random.random() >= self.shape.lost:
            leader = self.route(node)
            self.at(self.now + self._latency(), lambda: self.arrive(leader, node, report))
        self.at(self.now + EXCHANGE_SECONDS, lambda: self._end(node, report, None))

    def arrive(self, leader: BudgetAllocator | None, node: FleetNode, report: BudgetReport) -> None:
        """A report arrives at a leader, perhaps once more."""
        if leader is None:
            return
        self.reports += 1
        self.recorded.append((leader, node, report))
        try:
            answer = leader.answer(node.name, report, self.now)
        except ReportRefused:
            answer = None
        if node.is_reachable and self.random.random() >= self.shape.lost:
            self.at(self.now + self._latency(), lambda: self._end(node, report, answer))

    def _end(self, node: FleetNode, report: BudgetReport, answer: BudgetAnswer | None) -> None:
        """An exchange ends; what arrives later finds its connection closed."""
        if node.exchange is not report:
            return
        node.exchange = None
        if answer:
            node.receive(answer, self.now)
            self._follow(node)
            node.backoff.reset()
        pause = PERIOD * self.random.uniform(0.9, 1.1) if answer else node.backoff.next()
        self.at(self.now + pause, lambda: self._report(node))

    def most_in_force(self) -> Iterator[tuple[str, float]]:
        """Of each budget's rate, the most that was in force at any time."""
        for budget in self.budgets:
            yield budget.name, max(self.seconds[budget.name].in_force) / budget.rate

    def most_of_a_day(self) -> dict[tuple[str, int], float]:
        """Of each budget's quota, what passed on a day."""
        passed: dict[tuple[str, int], float] = {}
        for node in self.nodes:
            node.pass_until(self.now)
            for (place, day), size in node.by_day.items():
                key = self.budgets[place].name, day
                passed[key] = passed.get(key, 0.0) + size / self.budgets[place].per_day
        return passed
