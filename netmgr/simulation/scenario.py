"""What happens to a simulated fleet, and when: every event once, spread over the whole time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from random import Random

from netmgr.kube.allocations import NodeAllocations
from netmgr.kube.api import Object
from netmgr.kube.plan_watch import PlanWatch
from netmgr.simulation.api_server import ApiServer
from netmgr.simulation.cluster import Cluster
from netmgr.simulation.comparison import Comparison
from netmgr.simulation.controllers import CLIENT, REPLICAS, Controllers
from netmgr.simulation.machine import Machine
from netmgr.simulation.prometheus import SCRAPE_SECONDS, Prometheus
from netmgr.simulation.virtual_time import VirtualTime

HOUR, MINUTE = 3600.0, 60.0

JOB_NODES = 1000
"""A job starts on so many nodes at once, or on a third of a smaller fleet."""

REGISTER_SECONDS = 10.0
"""Within this time all Nodes register at the beginning."""

JOB_SECONDS = 5.0
"""Within this time all pods of a job start, or end."""

FILLED = 0.8
"""The share of a node's pods that there are: who comes then finds an address without cooldown."""

NAMESPACES = 20
BYTES_PER_SECOND = 20_000.0
"""What a pod sends to the internet, as the median; the busiest send a thousand times as much."""

CHURN_PER_HOUR = 0.5
"""Pods that end, and are followed by another one, on each node."""

WAVE = 0.05
"""The share of agents that are replaced at a time."""

MOMENTS = 480
"""Points of each curve."""

WEIGHED = 20
"""One of so many points measures what the leader knows: it looks at each object that there is."""

SAMPLE_READING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a simulation is, and how closely it is looked at.

    Attributes:
        pools: nodes by node pool, and how many pods each of these nodes takes.
        hours: simulated time.
        seed: of every choice.
        sample: nodes with state in files that are read each minute and scraped at every interval.
        reading_seconds: how often the others are read.
        request_seconds: what a request of a controller takes.
    """

    pools: dict[str, tuple[int, int]]
    hours: float
    seed: int = 1
    sample: int = 3
    reading_seconds: float = 4 * HOUR
    request_seconds: float = 0.01

    @property
    def nodes(self) -> int:
        """Nodes at the beginning."""
        return sum(nodes for nodes, _ in self.pools.values())


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, in seconds since the beginning."""

    began: float
    what: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of every curve."""

    seconds: float
    nodes: int
    without_ranges: int
    pods: int
    requests: int
    page: int
    series: int
    memory: int


class Scenario:
    """One run.

    Attributes:
        events: what was done.
        moments: the curves.
        comparison: what was counted where, by the machines that are gone and in the end by all.
        waves: how long each wave of the upgrade took, in seconds.
        memory: bytes of what the leader knows.
        api_away: when the API server was away, in seconds since the beginning.
    """

    def __init__(
        self, scale: Scale, allocations: NodeAllocations, template: Object, folder: Path
    ) -> None:
        self.scale = scale
        self.time = VirtualTime()
        self.server = ApiServer(self.time, scale.seed)
        self.cluster = Cluster(self.time, self.server, template, Random(scale.seed))  # noqa: S311  no secret
        plan = PlanWatch(lambda: allocations, ())
        self.controllers = Controllers(self.time, self.server, plan, scale.request_seconds)
        self.prometheus = Prometheus()
        self.cluster.pod_ended = self.prometheus.note_end
        self.events: list[Event] = []
        self.moments: list[Moment] = []
        self.comparison = Comparison()
        self.waves: list[float] = []
        self.memory = 0
        self.api_away = 0.0, 0.0
        self._random = Random(scale.seed)  # noqa: S311  no secret
        self._folder = folder
        self._pods = count()
        self._job: list[Machine] = []
        self._last_page = 0, 0
        self._end = scale.hours * HOUR

    def run(self, progress: Callable[[float], object]) -> None:
        """Let everything happen; `progress` is called with the share of time that has passed."""
        try:
            self.begin()
            for moment in range(MOMENTS):
                self.time.run(self._end * (moment + 1) / MOMENTS)
                self._note_moment()
                progress((moment + 1) / MOMENTS)
            for machine in self.cluster.machines.values():
                self.comparison.add(machine)
            self.memory = self.controllers.memory()
            self.controllers.finish()
        finally:
            self.time.close()

    def begin(self) -> None:
        """Put every event into the calendar, without any time passing."""
        # Backoffs and the ends of watches are by chance.
        random.seed(self.scale.seed)
        for _ in range(REPLICAS):
            self.controllers.start()
        self._make_fleet()
        far = min(self._end / 20, 30 * MINUTE)
        self._at(0.00, "all Nodes register", self._register_all)
        self._at(0.05, "pods start", self._start_pods)
        self._at(0.15, f"a job starts on {len(self._job)} nodes", self._start_job)
        self._at(0.30, "machines are replaced", self._replace)
        self._at(0.36, "Nodes register again", self._register_again)
        self._at(0.40, "machines are added", partial(self._add, 0.05))
        self._at(0.46, "the leader is killed", self._kill_leader)
        self._at(0.54, "the API server is away", partial(self._lose_api, min(far, 5 * MINUTE)))
        self._at(0.62, "Prometheus is away", partial(self._lose_prometheus, min(far, 10 * MINUTE)))
        self._at(0.72, "Prometheus is away for longer", partial(self._lose_prometheus, far))
        self.time.at(0.72 * self._end + far / 10, self._end_job)
        self._at(0.84, "agents are replaced in waves", self._upgrade)

    def _at(self, share: float, what: str, action: Callable[[], object]) -> None:
        def happen() -> None:
            self.events.append(Event(self.time.monotonic(), what))
            action()

        self.time.at(share * self._end, happen)

    def _make_fleet(self) -> None:
        for pool, (nodes, most_pods) in self.scale.pools.items():
            for _ in range(nodes):
                folder = self._folder if len(self.cluster.machines) < self.scale.sample else None
                self._watch(self.cluster.make(pool, most_pods, folder))
        machines = self._fleet
        # Behind the sample, and before those that are replaced.
        jobs = min(JOB_NODES, len(machines) // 3)
        self._job = machines[self.scale.sample : self.scale.sample + jobs]

    @property
    def _fleet(self) -> list[Machine]:
        return list(self.cluster.machines.values())

    def _few(self, share: float) -> list[Machine]:
        """Some of the machines that are not looked at more closely, without the job's."""
        others = self._fleet[self.scale.sample + len(self._job) :]
        return self._random.sample(others, min(len(others), self._part(share)))

    def _part(self, share: float) -> int:
        return math.ceil(share * self.scale.nodes)

    def _watch(self, machine: Machine) -> None:
        """Read its counters now and then; those of the sample often, and scrape these."""
        if machine.folder is None:
            self._every(self.scale.reading_seconds, machine, machine.read)
        else:
            self._every(SAMPLE_READING_SECONDS, machine, machine.read)
            self._every(SCRAPE_SECONDS, machine, partial(self._scrape, machine))

    def _every(self, seconds: float, machine: Machine, action: Callable[[], object]) -> None:
        def act() -> None:
            if self.cluster.machines.get(machine.name) is machine:
                if machine.agent:
                    action()
                self.time.after(seconds, act)

        self.time.after(seconds * self._random.random(), act)

    def _scrape(self, machine: Machine) -> None:
        if page := self.prometheus.scrape(machine):
            self._last_page = page.size, page.series

    def _register_all(self) -> None:
        for machine in self._fleet:
            register = partial(self.cluster.register, machine)
            self.time.after(REGISTER_SECONDS * self._random.random(), register)

    def _start_pods(self) -> None:
        of_job = set(self._job)
        for machine in self._fleet:
            if machine not in of_job:
                self._fill(machine, self._end / 50)

    def _fill(self, machine: Machine, seconds: float) -> None:
        """Start pods within this time, and then have one follow the other."""
        for _ in range(math.floor(machine.most_pods * FILLED)):
            self.time.after(seconds * self._random.random(), partial(self._start_pod, machine))
        self._every(HOUR / CHURN_PER_HOUR, machine, partial(self._churn, machine))

    def _start_pod(self, machine: Machine, namespace: str = "") -> None:
        number = next(self._pods)
        where = namespace or f"team-{number % NAMESPACES}"
        rate = BYTES_PER_SECOND * math.exp(self._random.gauss(0, 2))
        self.cluster.start_pod(machine, where, f"{where}-{number}", rate)

    def _churn(self, machine: Machine) -> None:
        if machine.pods:
            self.cluster.end_pod(machine, self._random.choice(list(machine.pods)))
            self._start_pod(machine)

    def _start_job(self) -> None:
        for machine in self._job:
            for _ in range(machine.most_pods):
                start = partial(self._start_pod, machine, "training")
                self.time.after(JOB_SECONDS * self._random.random(), start)

    def _end_job(self) -> None:
        for machine in self._job:
            for pod in list(machine.pods):
                end = partial(self.cluster.end_pod, machine, pod)
                self.time.after(JOB_SECONDS * self._random.random(), end)

    def _replace(self) -> None:
        for machine in self._few(0.01):
            for pod in list(machine.pods):
                self.cluster.end_pod(machine, pod)
            # The last scrape comes after the last pod, and before the machine is gone.
            self.time.after(SCRAPE_SECONDS, partial(self._retire, machine))

    def _retire(self, machine: Machine) -> None:
        self.comparison.add(machine)
        self.cluster.remove(machine)
        self._add_one(machine.pool, machine.most_pods)

    def _add_one(self, pool: str, most_pods: int) -> None:
        machine = self.cluster.make(pool, most_pods)
        self._watch(machine)
        self.cluster.register(machine)
        self._fill(machine, MINUTE)

    def _add(self, share: float) -> None:
        kinds = cycle((pool, most) for pool, (nodes, most) in self.scale.pools.items() if nodes)
        for pool, most_pods in islice(kinds, self._part(share)):
            add = partial(self._add_one, pool, most_pods)
            self.time.after(JOB_SECONDS * self._random.random(), add)

    def _register_again(self) -> None:
        for machine in self._few(0.01):
            self.cluster.unregister(machine)
            self.time.after(JOB_SECONDS, partial(self.cluster.register, machine))

    def _kill_leader(self) -> None:
        self.controllers.kill_leader()
        # A kubelet starts its container anew.
        self.time.after(JOB_SECONDS, self.controllers.start)
        self._add(0.005)

    def _lose_api(self, seconds: float) -> None:
        now = self.time.monotonic()
        self.api_away = now, now + seconds
        self.server.go_away()
        self.time.after(seconds, self.server.come_back)
        self._add(0.005)

    def _lose_prometheus(self, seconds: float) -> None:
        self.prometheus.go_away(self._fleet, self.time.monotonic())

        def come_back() -> None:
            self.prometheus.come_back(self._fleet, self.time.monotonic())

        self.time.after(seconds, come_back)

    def _upgrade(self) -> None:
        machines = [machine for machine in self._fleet if self.cluster.is_served(machine)]
        self._random.shuffle(machines)
        self._replace_wave(machines)

    def _replace_wave(self, machines: list[Machine]) -> None:
        wave, rest = machines[: self._part(WAVE)], machines[self._part(WAVE) :]
        for machine in wave:
            self.cluster.replace_agent(machine)
        began = self.time.monotonic()

        def go_on() -> None:
            if not all(map(self.cluster.is_served, wave)):
                self.time.after(1, go_on)
                return
            self.waves.append(self.time.monotonic() - began)
            if rest:
                self._replace_wave(rest)

        self.time.after(1, go_on)

    def _note_moment(self) -> None:
        if len(self.moments) % WEIGHED == 0:
            self.memory = self.controllers.memory()
        waiting = self.cluster.joining.values()
        asked = (n for (client, _, _), n in self.server.asked.items() if client.startswith(CLIENT))
        moment = Moment(
            self.time.monotonic(),
            len(self.cluster.machines),
            sum(one.ranges is None for one in waiting),
            sum(len(machine.pods) for machine in self.cluster.machines.values()),
            sum(asked),
            *self._last_page,
            self.memory,
        )
        self.moments.append(moment)
