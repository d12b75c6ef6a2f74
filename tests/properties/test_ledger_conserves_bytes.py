"""No order of traffic, foreign meddling, crashes and restarts makes the ledger lose or invent a
byte.

A model kernel counts beside the ledger. The agent of this model follows the ledger's rules
as the real one does, and dies where it is told to: before any statement, between any two
rows, or right after a commit. What it finds afterwards are the files as they then were.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from netmgr.ledger.history import By, Period
from netmgr.ledger.ledger import Ledger
from netmgr.ledger.store import LedgerStore
from netmgr.ledger.tables import Gap
from netmgr.model import Counter, PodRef, Sample, Traffic
from netmgr.prefixes import Address, Family
from tests.fakes.ledger_tools import TwoClocks, folder_in_memory

LINGER = 60.0
OWNERS = [(namespace, name) for namespace in ("team-a", "team-b") for name in ("web-0", "web-1")]
ADDRESSES = [Address(Family.V4, 1), Address(Family.V4, 2), Address(Family.V6, 3)]
PICK, TRAFFIC = st.integers(0, 5), st.sampled_from(Traffic)


class Death(BaseException):
    """The process ends here."""


class MortalStore(LedgerStore):
    """A store whose process dies `steps_left` statements or rows from now; None is for ever."""

    steps_left: int | None = None
    committed = False

    def _run(self, statement: str, rows: Iterable[tuple[object, ...]] | None = None) -> None:
        self._step()
        super()._run(statement, None if rows is None else map(self._step, rows))
        if statement == "COMMIT":
            self.committed = True
            self._step()

    def _step(self, row: tuple[object, ...] = ()) -> tuple[object, ...]:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise Death
        return row


@dataclass
class KernelCounter:
    """`base` is what of `bytes` the ledger has seen or the model has written off."""

    owner: PodRef
    bytes: int = 0
    packets: int = 0
    base: int = 0
    meddled: bool = False

    @property
    def unread(self) -> int:
        return self.bytes - self.base


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = folder_in_memory()
        self.lives = 0
        self.clock = TwoClocks()
        self.kernel: dict[Counter, KernelCounter] = {}
        self.last: dict[Counter, tuple[int, int]] = {}
        self.running: dict[Address, PodRef] = {}
        self.passed: dict[str, int] = defaultdict(int)
        self.lost: dict[str, int] = defaultdict(int)
        self.shown: dict[str, int] = defaultdict(int)
        self.gaps = dict.fromkeys(Gap, 0)
        self.revive()

    def teardown(self) -> None:
        self.store.steps_left = None
        self.hourly_rollups_sum_to_the_totals()
        self.ledger.close()
        shutil.rmtree(self.folder)

    @property
    def path(self) -> Path:
        return self.folder / f"life-{self.lives}.db"

    def revive(self) -> None:
        self.store = MortalStore(self.path)
        self.ledger = Ledger(self.store, clock=self.clock, linger_seconds=LINGER, boot_id="boot")
        self.read_at: dict[Counter, float] = {}
        self.found_at: dict[Gap, float] = {}
        self.inherited = self.ledger.read_at

    def die(self) -> None:
        former, self.lives = self.path, self.lives + 1
        for suffix in ("", "-wal"):
            shutil.copy(f"{former}{suffix}", f"{self.path}{suffix}")
        self.store.close()
        self.revive()

    def survives(self, call: Callable[[], object], done: Callable[[], None] = lambda: None) -> bool:
        """Do `call`; `done` tells the model that it is durable, whether or not the agent outlived
        it.
        """
        self.store.committed = False
        try:
            call()
        except Death:
            committed = self.store.committed
            self.die()
            if committed:
                done()
            self.recover()
            return False
        done()
        return True

    def recover(self) -> None:
        """What an agent does when it starts: finish what its former life began."""
        self.hourly_rollups_sum_to_the_totals()
        live = self.ledger.counters()
        assert all(counter in live for counter in self.kernel if counter.subject in self.running)
        unowned = [counter for counter in live if counter.subject not in self.running]
        self.read(unowned)
        self.ledger.end(unowned)
        for counter in [counter for counter in self.kernel if counter.subject not in self.running]:
            assert self.kernel.pop(counter).unread == 0

    def samples(self, counters: Iterable[Counter]) -> list[Sample]:
        found = [(counter, self.kernel[counter]) for counter in counters if counter in self.kernel]
        return [
            Sample(counter, state.bytes, state.packets, 0, 2 * state.bytes, state.bytes)
            for counter, state in found
        ]

    def read(self, counters: Iterable[Counter]) -> bool:
        samples = self.samples(counters)
        shrunk = [sample.counter for sample in samples if self.has_shrunk(sample)]
        is_new = self.is_new(Gap.RESET, shrunk)

        def told() -> None:
            self.gaps[Gap.RESET] += is_new
            self.account_for(samples)

        if survived := self.survives(lambda: self.ledger.post(samples), told):
            self.known([sample.counter for sample in samples], Gap.RESET if shrunk else None)
        return survived

    def is_new(self, gap: Gap, lost: Iterable[Counter]) -> bool:
        """Whether these are an event of their own: one was read since the last one was found."""
        unread_since = [self.read_at.get(counter, self.inherited) for counter in lost]
        return bool(unread_since) and min(unread_since) >= self.found_at.get(gap, -1)

    def known(self, counters: Iterable[Counter], gap: Gap | None = None) -> None:
        """This life of the agent knows of these counters as of now."""
        self.read_at.update(dict.fromkeys(counters, self.clock.uptime))
        if gap:
            self.found_at[gap] = self.clock.uptime

    def has_shrunk(self, sample: Sample) -> bool:
        size, packets = self.last[sample.counter]
        return sample.bytes < size or sample.packets < packets

    def account_for(self, samples: Iterable[Sample]) -> None:
        """What these readings mean, by the model's own knowledge of who meddled."""
        for sample in samples:
            state, (size, _) = self.kernel[sample.counter], self.last[sample.counter]
            if self.has_shrunk(sample):
                assert state.meddled
            elif state.meddled:
                # Grown past its old value since: nobody can tell, and that much is lost.
                self.lost[state.owner.namespace] += size
            state.base, state.meddled = sample.bytes, False
            self.last[sample.counter] = sample.bytes, sample.packets

    def write_off(self, state: KernelCounter) -> None:
        self.lost[state.owner.namespace] += state.unread

    @initialize(size=st.integers(0, 9000))
    def a_pod_has_been_busy(self, size: int) -> None:
        self.start_pod(("team-a", "web-0"), "first")
        for pick in range(3):
            self.pass_traffic(pick, Traffic.INTERNET_OUT, size, 2)
        self.read_everything()

    @rule(steps=st.integers(0, 80))
    def be_about_to_die(self, steps: int) -> None:
        self.store.steps_left = steps

    @rule()
    def die_idle(self) -> None:
        self.die()
        self.recover()

    @rule()
    def close_and_open(self) -> None:
        self.store.steps_left = None
        self.ledger.close()
        self.revive()

    @rule()
    def checkpoint(self) -> None:
        self.ledger.checkpoint()

    @precondition(lambda self: len(self.running) < len(ADDRESSES))
    @rule(owner=st.sampled_from(OWNERS), uid=st.uuids())
    def start_pod(self, owner: tuple[str, str], uid: object) -> None:
        address = next(address for address in ADDRESSES if address not in self.running)
        pod = PodRef(*owner, str(uid))
        counters = [Counter.of_pod(address, traffic) for traffic in Traffic]
        if self.survives(lambda: self.ledger.begin(counters, pod)):
            self.known(counters)
            self.running[address] = pod
            for counter in counters:
                self.kernel[counter] = KernelCounter(pod)
                self.last[counter] = 0, 0

    @precondition(lambda self: self.running)
    @rule(pick=PICK)
    def stop_pod(self, pick: int) -> None:
        address = sorted(self.running)[pick % len(self.running)]
        counters = [Counter.of_pod(address, traffic) for traffic in Traffic]
        del self.running[address]
        if self.read(counters) and self.survives(lambda: self.ledger.end(counters)):
            for counter in counters:
                self.kernel.pop(counter, None)

    @precondition(lambda self: self.running)
    @rule(pick=PICK, traffic=TRAFFIC, size=st.integers(1, 5000), packets=st.integers(1, 3))
    def pass_traffic(self, pick: int, traffic: Traffic, size: int, packets: int) -> None:
        address, pod = sorted(self.running.items())[pick % len(self.running)]
        state = self.kernel.get(Counter.of_pod(address, traffic))
        self.passed[pod.namespace] += size
        if state is None:
            self.lost[pod.namespace] += size
        else:
            state.bytes += size
            state.packets += packets

    @precondition(lambda self: self.kernel)
    @rule(pick=PICK, size=st.integers(0, 500))
    def someone_zeroes(self, pick: int, size: int) -> None:
        state = list(self.kernel.values())[pick % len(self.kernel)]
        self.write_off(state)
        state.base, state.meddled = 0, True
        state.bytes, state.packets = size, min(size, 1)
        self.passed[state.owner.namespace] += size

    @precondition(lambda self: self.kernel)
    @rule(pick=PICK)
    def someone_removes(self, pick: int) -> None:
        self.write_off(self.kernel.pop(list(self.kernel)[pick % len(self.kernel)]))

    @precondition(lambda self: len(self.kernel) < 2 * len(self.running))
    @rule()
    def reconcile(self) -> None:
        missing = [counter for counter in self.ledger.counters() if counter not in self.kernel]
        is_new = self.is_new(Gap.REMOVED, missing)

        def told() -> None:
            self.gaps[Gap.REMOVED] += is_new
            self.last.update(dict.fromkeys(missing, (0, 0)))

        if self.survives(lambda: self.ledger.restart(missing), told):
            self.known(missing, Gap.REMOVED if missing else None)
            for counter in missing:
                self.kernel[counter] = KernelCounter(self.running[counter.subject])

    @precondition(lambda self: any(state.unread or state.meddled for state in self.kernel.values()))
    @rule()
    def read_everything(self) -> None:
        if self.read(list(self.kernel)):
            self.hourly_rollups_sum_to_the_totals()
            before = self.ledger.totals()
            self.ledger.post(self.samples(self.kernel))
            assert self.ledger.totals() == before
            names = {total["namespace"] for total in before.namespaces}
            assert len(names) * len(Traffic) == len(before.namespaces)

    @rule(seconds=st.floats(0, 2 * LINGER))
    def wait(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        self.survives(self.ledger.sweep)

    @rule(hours=st.integers(-30, 30))
    def someone_sets_the_clock(self, hours: int) -> None:
        self.clock.time += 3600 * hours

    @invariant()
    def bytes_are_conserved(self) -> None:
        unread: dict[str, int] = defaultdict(int)
        for state in self.kernel.values():
            unread[state.owner.namespace] += state.unread
        totals: dict[str, int] = defaultdict(int)
        for total in self.ledger.totals().namespaces:
            totals[total["namespace"]] += total["bytes"]
        for namespace in ("team-a", "team-b"):
            expected = self.passed[namespace] - self.lost[namespace] - unread[namespace]
            assert totals[namespace] == expected, namespace
            assert totals[namespace] >= self.shown[namespace]
        self.shown = totals

    def hourly_rollups_sum_to_the_totals(self) -> None:
        """Asked at the moments that matter: opening the file anew for every step would take most of
        the time.
        """
        usage = self.ledger.usage(Period(-1_000_000, 1_000_000), [By.NAMESPACE])
        summed, totals = (
            {(row["namespace"], row["traffic"]): (row["bytes"], row["packets"]) for row in rows}
            for rows in (usage, self.ledger.totals().namespaces)
        )
        assert all(row["wire"] == 2 * row["measured"] == 2 * row["bytes"] for row in usage)
        assert summed == {key: sums for key, sums in totals.items() if sums != (0, 0)}

    @invariant()
    def every_loss_that_shows_is_reported(self) -> None:
        assert {gap["reason"]: gap["count"] for gap in self.ledger.totals().gaps} == self.gaps

    @invariant()
    def a_series_is_live_exactly_while_its_pod_runs(self) -> None:
        pods = self.ledger.totals().pods
        assert all((pod["wire"], pod["wire_unknown"]) == (2 * pod["bytes"], 0) for pod in pods)
        live = {(total["namespace"], total["pod"]) for total in pods if total["live"]}
        assert live == {(pod.namespace, pod.name) for pod in self.running.values()}


World.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestWorld = World.TestCase
