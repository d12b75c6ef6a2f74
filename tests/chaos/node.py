"""A node, its pods, what was done to them, and what has to be true of them after each step."""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from netmgr.prefixes import Address
from tests.chaos.books import Blind, Books, Faults
from tests.chaos.foreign import Foreign
from tests.chaos.invariants import Invariants
from tests.chaos.kernel import Kernel
from tests.chaos.traffic import Conversation
from tests.failpoints.order import FailPoints
from tests.kernel.conforming import Caller
from tests.kernel.spending import run
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import Pod
from tests.lab.world import World
from tests.wall_clock import WallClock

REPAIR_SECONDS = 20.0
LONGEST_VERB = 15.0
"""Seconds that a request of a runtime may take, whatever is broken."""
POLL_SECONDS = 0.01
SYNC_SECONDS = 10.0
"""How old the totals may be that the disk has."""
INTERVAL = 0.3
"""Seconds between two readings, and between two reconciles."""
COOLDOWN = 10
"""Seconds for which nobody gets a released address."""
SETTINGS: dict[str, Any] = {
    "reconcile_seconds": INTERVAL,
    "pool": {"cooldown_seconds": COOLDOWN, "conntrack_wait_seconds": 0},
    "accounting": {"reading_seconds": INTERVAL, "min_reading_seconds": 0, "linger_seconds": 86400},
    "limits": [
        {
            "pods": "*/*",
            "internet-out": "100M",
            "internet-in": "100M",
            "connections": {"at-once": 10_000, "new-per-second": 2000},
        }
    ],
}
NAMESPACES = ("research", "training", "evals")


@dataclass
class Chaos:
    """One node under faults."""

    world: World
    node: LabNode
    chance: random.Random
    clock: WallClock
    seed: str = ""
    pods: dict[str, Sandbox] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    alters_rules: bool = False
    """Whether this step alters rules, so that they and their counters may be others afterwards."""
    has_whole_state: bool = True
    """Whether the state is what the agent wrote last."""
    has_whole_limits: bool = True
    """Whether the limits are what the agent made of them."""
    released: dict[str, float] = field(default_factory=dict)
    """When each address was given back at the earliest."""
    done: Counter[str] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)
    born: int = 0
    copied_at: float | None = None
    copied_gap: tuple[int, float] = (0, 0.0)

    def __post_init__(self) -> None:
        self.kernel = Kernel(self.node, self.world.backend)
        self.conversation = Conversation(self.world, random.Random(self.chance.random()))  # noqa: S311  as above
        self.caller = Caller(self.world, self.node)
        self.foreign = Foreign(self.caller, self.kernel)
        self.points = FailPoints(self.node.directory / "failpoints")
        self.node.stop_agent()
        self.start()
        self.node.wait_until_ready()
        self.invariants = Invariants(self.node, self.kernel, self.foreign, self.verb)
        self.rules = self.kernel.rules()
        self.repairs: dict[str, int] | None = None
        self._totals: deque[tuple[float, int]] = deque(maxlen=100)
        self.books = Books(self.node, self.conversation, INTERVAL)
        self.conversation.resume()

    @property
    def log(self) -> Path:
        """Of the agent that was broken last."""
        return self.node.directory / "agent.log"

    def close(self) -> None:
        self.conversation.close()

    def step(self, act: Callable[[Chaos], None]) -> None:
        """Do one thing, and hold every invariant afterwards."""
        self.begin(act.__name__)
        act(self)
        self.hold()

    def begin(self, name: str) -> None:
        self.history.append(name)
        self.done[name] += 1
        self.faults, self.alters_rules = Faults(), False
        self.has_whole_state = self.has_whole_limits = True
        self._former = self._holders()
        # Applying twice changes nothing (invariant 7): since the last step nothing was altered.
        if self.repairs is not None:
            now = self._repairs()
            assert now == self.repairs, f"repaired without a need: {self.repairs}, {now}"

    def figures(self, seconds: float) -> str:
        """What a run did, in two lines."""
        names = dict.fromkeys(one.partition(" ")[0] for one in self.history)
        acts = {name: self.done[name] for name in names}
        verbs = {verb: self.done[verb] for verb in ("ADD", "DEL", "CHECK")}
        return (
            f"{self.world.backend}: {len(self.history)} steps of {len(acts)} kinds in "
            f"{seconds:.0f} s, {self.done['kills']} kills, {self.done['fail points']} at a step, "
            f"{self.born} pods, requests {verbs}, {self.books.bytes:,} bytes, "
            f"{self.books.lost:,} in gaps {self.books.gaps}\n{acts}"
        )

    # --- pods -----------------------------------------------------------------------------------

    def one(self) -> str | None:
        return self.chance.choice(list(self.pods)) if self.pods else None

    def name(self) -> str:
        self.born += 1
        return f"pod-{self.born}"

    def add(self, name: str = "") -> Sandbox:
        name = name or self.name()
        with self.verb("ADD"):
            sandbox = self.node.add(name, self.chance.choice(NAMESPACES))
        self.welcome(sandbox)
        return sandbox

    def attach(self, path: Path) -> None:
        """Run a pod in a namespace that is there."""
        pod = Pod(self.name(), self.node.name, self.chance.choice(NAMESPACES))
        sandbox = Sandbox(pod, uuid.uuid4().hex, str(uuid.uuid4()), path)
        result = self.node.runtime.execute("ADD", sandbox)
        addresses = (one["address"].partition("/")[0] for one in result["ips"])
        attached = replace(sandbox, addresses=tuple(map(Address.parse, addresses)))
        self.node.runtime._remember(attached, result)
        self.welcome(attached)

    def welcome(self, sandbox: Sandbox) -> None:
        """A pod is there, and talks from now on."""
        for address in map(str, sandbox.addresses):
            rested = time.monotonic() - self.released.get(address, float("-inf"))
            assert rested >= COOLDOWN, f"{address} is another pod's after {rested:.1f} s"
        self.pods[sandbox.pod.name] = sandbox
        self.books.begin(sandbox.pod.name)
        self.conversation.begin(sandbox.pod.name, sandbox)

    def forget(self, name: str) -> Sandbox:
        """A pod is about to go, whatever way."""
        self.conversation.end(name)
        return self.give_back(name)

    def give_back(self, name: str) -> Sandbox:
        """As `forget`, while it goes on talking."""
        sandbox = self.pods.pop(name)
        self.released.update(dict.fromkeys(map(str, sandbox.addresses), time.monotonic()))
        return sandbox

    def delete(self, name: str) -> None:
        sandbox = self.forget(name)
        with self.verb("DEL"):
            self.node.runtime.delete(sandbox)

    @contextmanager
    def verb(self, verb: str) -> Iterator[None]:
        """A request of a runtime, which is answered in time."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.done[verb] += 1
            assert took < LONGEST_VERB, f"{verb} took {took:.1f} s"

    # --- the agent ------------------------------------------------------------------------------

    def start(self, module: str = "netmgr") -> None:
        """Start the agent; with the module of fail points it can be killed at any step."""
        environment = {**self.clock.environment, **self.points.environment}
        self.node.start_agent(module, environment)

    def kill(self) -> None:
        """Kill the agent, and look at what it leaves."""
        self.node.kill_agent()
        self.repairs = None
        self.done["kills"] += 1
        if self.has_whole_state:
            self.invariants.judge_remains(has_whole_limits=self.has_whole_limits)

    @property
    def state(self) -> Path:
        return self.node.directory / "state"

    # --- faults ---------------------------------------------------------------------------------

    @contextmanager
    def blinding(self, since: float | None = None) -> Iterator[None]:
        """Something that counts is broken in this block; it ends when the rules are whole."""
        self.alters_rules = True
        began = self.read() if since is None else since
        try:
            yield
        finally:
            self.wait_until_counting()
            self.faults.blinds.append(Blind(began, time.monotonic()))

    def read(self) -> float:
        """Have the agent read, which may be late by itself; the moment before."""
        before = time.monotonic()
        self.node.snapshot()
        return before

    def wait_until_counting(self) -> None:
        deadline = time.monotonic() + REPAIR_SECONDS
        while self.invariants.miscounting(self.pods):
            assert time.monotonic() < deadline, "the rules are not repaired"
            time.sleep(POLL_SECONDS)

    @contextmanager
    def uplink_restored(self) -> Iterator[None]:
        """The uplink loses addresses and routes; the machine's own programs make them again."""
        with self.kernel.uplink_restored():
            yield
        self.foreign.lead()

    def keep_copy(self) -> None:
        """Keep a copy of the state, while no agent runs."""
        shutil.rmtree(self.backup, ignore_errors=True)
        shutil.copytree(self.state, self.backup)
        self.copied_at = time.monotonic()
        self.copied_gap = self.books.older

    def restore_copy(self, name: str) -> None:
        """Put a copy of the files of this name back, while no agent runs; all with no name."""
        assert self.copied_at is not None
        if name in ("", "ledger"):
            self.faults.books_since = self.copied_at
            self.faults.older_before = self.copied_gap
        for path in self.state.glob(f"{name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.backup.glob(f"{name}*"):
            shutil.copytree(path, self.state / path.name) if path.is_dir() else shutil.copy(
                path, self.state
            )

    @property
    def backup(self) -> Path:
        return self.node.directory / "backup"

    def run(self, *command: str) -> str:
        """A program in the node's network, which must succeed."""
        return self.kernel.run(*command)

    def attempt(self, *command: str) -> None:
        """A program in the node's network, which may find nothing to do."""
        run(self.node, *command)

    def pause(self, longest: float = INTERVAL) -> None:
        time.sleep(self.chance.uniform(0, longest))

    # --- invariants -----------------------------------------------------------------------------

    def hold(self) -> None:
        """Every invariant, at the latest `REPAIR_SECONDS` after the agent is ready."""
        self.node.wait_until_ready(REPAIR_SECONDS)
        deadline = time.monotonic() + REPAIR_SECONDS
        while wrong := self.invariants.wrong(self.pods):
            assert time.monotonic() < deadline, wrong
            time.sleep(0.05)
        self._judge_counters()
        self.conversation.pause()
        if (name := self.one()) is not None:
            self.conversation.stream(name)
        self.books.settle(self.faults)
        self._judge_disk()
        self.repairs = self._repairs()
        self.conversation.resume()

    def _judge_counters(self) -> None:
        """Unchanged rules are never rewritten, and counters never fall (invariant 3)."""
        rules, before = self.kernel.rules(), self.rules
        if not self.alters_rules:
            assert rules.handles == before.handles, "rules were written again without a need"
            changed = dict(self._holders().items() ^ self._former.items())
            fell = {
                name: (size, rules.counts[name])
                for name, size in before.counts.items()
                if rules.counts.get(name, size) < size and name.split()[-1] not in changed
            }
            assert not fell, f"counters fell: {fell}"
        self.rules = rules

    def _holders(self) -> dict[str, str]:
        """Whose each address is."""
        return {str(a): name for name, pod in self.pods.items() for a in pod.addresses}

    def _judge_disk(self) -> None:
        """A power cut takes the totals back by some seconds, and no further."""
        synced, now = self.invariants.synced(), time.monotonic()
        if self.faults.books_since is not None:
            self._totals.clear()
        # An agent that is busy syncs less often (`agent/core/scheduler.py`).
        older = [total for at, total in self._totals if now - at > SYNC_SECONDS]
        assert synced >= max(older, default=0), f"{synced} bytes are synced, not {max(older)}"
        found = self.node.snapshot()["namespaces"]
        self._totals.append((now, sum(one["bytes"] for one in found)))

    def _repairs(self) -> dict[str, int]:
        return {one["reason"]: one["count"] for one in self.node.snapshot()["drift_repaired"]}
