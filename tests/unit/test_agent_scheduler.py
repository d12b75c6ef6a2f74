"""Recurring work: when it is due, when it waits, that a failure ends nothing, and that an old
reading beats none.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from netmgr.agent.cni.repairs import Repairs
from netmgr.agent.core.components import Health
from netmgr.agent.core.scheduler import LONG_SECONDS, Latest, Scheduler, Task, spaced, throttled
from netmgr.errors import KernelError, TryAgainLater
from tests.waiting import PATIENCE


def run_until(done: threading.Event, *tasks: Task) -> None:
    scheduler = Scheduler("test", tasks)
    scheduler.start()
    assert done.wait(PATIENCE * 3)
    scheduler.stop()


def test_tasks_are_due_at_once_and_then_at_their_intervals() -> None:
    often, seldom, done = [], [], threading.Event()

    def count() -> None:
        often.append(time.monotonic())
        if len(often) == 5:
            done.set()

    # Before the first run: it may begin a moment before it counts.
    began = time.monotonic()
    run_until(done, Task(count, 0.02), Task(lambda: seldom.append(1), 600))
    assert seldom == [1]
    assert often[4] - began >= 4 * 0.02


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    made = os.pipe2(os.O_NONBLOCK)
    yield made
    for end in made:
        os.close(end)


def test_news_on_a_file_descriptor_are_taken_up_without_waiting_for_an_interval(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    heard = threading.Event()

    def hear() -> None:
        os.read(reading, 100)
        heard.set()

    scheduler = Scheduler("test", [Task(lambda: None, 600), Task(hear, wakes=reading)])
    scheduler.start()
    os.write(writing, b"news")
    assert heard.wait(PATIENCE)
    scheduler.stop()


class Poll:
    """A poll(2) that says how long it was to wait, and ends the thread after so many times."""

    def __init__(self, times: int) -> None:
        self.timeouts: list[float | None] = []
        self._times, self._registered = times, list[int]()

    def register(self, descriptor: int, events: int) -> None:
        assert events == select.POLLIN
        self._registered.append(descriptor)

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        # The pipe by which a scheduler is stopped comes first.
        is_over = len(self.timeouts) == self._times
        return [(self._registered[0], select.POLLIN)] if is_over else []


def waits(monkeypatch: pytest.MonkeyPatch, *tasks: Task, times: int) -> list[float | None]:
    """The first timeouts, in milliseconds, with which a scheduler of these tasks waits, on a clock
    that stands still.
    """
    poll = Poll(times)
    with monkeypatch.context() as patched:
        patched.setattr(select, "poll", lambda: poll)
        patched.setattr(time, "monotonic", lambda: 100.0)
        scheduler = Scheduler("test", tasks)
        scheduler.start()
        scheduler.stop()
    return poll.timeouts


def test_it_waits_for_the_next_task_that_is_due_and_for_ever_if_none_has_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    soon, later = Task(lambda: None, 600, delay=50), Task(lambda: None, 600, delay=70)
    assert waits(monkeypatch, later, soon, times=1) == [50_000]
    assert waits(monkeypatch, Task(lambda: None), times=1) == [None]
    assert waits(monkeypatch, Task(lambda: None, 600), times=2) == [0, 600_000]


@pytest.mark.parametrize(("spent", "wait"), [(LONG_SECONDS, 1), (3.0, 30)])
def test_only_processor_time_that_a_task_itself_took_is_what_throttles_it(
    monkeypatch: pytest.MonkeyPatch, spent: float, wait: float
) -> None:
    readings = iter([100.0, 100.0 + spent])
    monkeypatch.setattr(time, "thread_time", lambda: next(readings))
    found = waits(monkeypatch, Task(lambda: None, 1), times=2)
    assert found[1] == pytest.approx(wait * 1000)


def test_work_is_throttled_from_a_bound_on_to_its_share_of_the_time() -> None:
    assert throttled(1.0, LONG_SECONDS, 0.05) == 1.0
    assert throttled(1.0, 0.5, 0.05) == 10.0
    assert throttled(60.0, 0.5, 0.05) == 60.0


class Processor:
    """The time, which sleeping and work move, and what of it was work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.spent = 0.0
        monkeypatch.setattr(time, "sleep", self.wait)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", lambda: self.spent)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.spent += seconds


@pytest.mark.parametrize(("cost", "pause"), [(0.001, 0.01), (0.05, 0.45), (3.0, 0.5)])
def test_what_others_cause_pauses_for_its_share_of_a_processor_within_bounds(
    monkeypatch: pytest.MonkeyPatch, cost: float, pause: float
) -> None:
    processor = Processor(monkeypatch)
    begins = []

    def act() -> None:
        begins.append(processor.now)
        processor.work(cost)
        raise KernelError("look")

    action = spaced(act, 0.01, 0.5)
    for idle in (0.0, 0.0, 10.0):
        processor.wait(idle)
        with pytest.raises(KernelError):
            action()
    assert begins == pytest.approx([0.01, 0.01 + cost + pause, 10.02 + 2 * cost + pause])


def test_a_pod_that_changes_its_mac_all_the_time_costs_a_tenth_of_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processor = Processor(monkeypatch)
    neighbours = SimpleNamespace(host_links_of=lambda ends: (processor.work(0.05), ends))
    repairs = object.__new__(Repairs)
    repairs._agent = SimpleNamespace(document=SimpleNamespace(reconcile_seconds=1))
    repairs._dataplane = SimpleNamespace(neighbours=neighbours)
    repairs._losses = SimpleNamespace(fileno=lambda: 0, read=set)
    repairs._down = set()
    (woken,) = (task for task in repairs.tasks() if task.wakes is not None)
    for _ in range(100):
        woken.action()
    assert processor.spent / processor.now < 0.11


def test_what_was_woken_goes_before_what_is_due_and_a_thread_has_its_name(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    done: list[object] = []
    ended = threading.Event()

    def due() -> None:
        thread = threading.current_thread()
        done.append(("due", thread.name, thread.daemon))
        ended.set()

    def woken() -> None:
        os.read(reading, 100)
        done.append("woken")

    os.write(writing, b"news")
    run_until(ended, Task(due, 600), Task(woken, wakes=reading))
    assert done == ["woken", ("due", "test", True)]


def test_a_failure_is_reported_until_the_attempt_succeeds_and_a_repair_is_counted() -> None:
    health = Health()

    def fail() -> list[str]:
        raise TryAgainLater("the lock is held")

    health.repair("rules", fail)
    assert health.failing == {"rules": "the lock is held"}
    health.repair("rules", lambda: ["a chain was missing", "a set was missing"])
    assert health.failing == {}
    assert health.repairs() == [{"reason": "rules", "count": 2}]


def test_a_task_may_say_when_it_is_due_again():
    begins: list[float] = []
    done = threading.Event()

    def work() -> float:
        begins.append(time.monotonic())
        if len(begins) == 2:
            done.set()
        return 0.05

    started = time.monotonic()
    run_until(done, Task(work, 600, delay=0.05))
    assert begins[0] - started >= 0.05
    assert begins[1] - begins[0] >= 0.05


@dataclass
class Kernel:
    """Counts how often it is read, on a clock that only reading moves."""

    cost: float = 0.0
    time: float = 100.0
    readings: int = 0
    fault: KernelError | None = field(default=None)

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def read(self) -> int:
        self.readings += 1
        self.time += self.cost
        if self.fault:
            raise self.fault
        return self.readings


def test_a_reading_serves_everybody_until_it_is_too_old_and_longer_if_it_took_long() -> None:
    for cost, still, too_old in ((0.0, 0.4, 0.1), (3.0, 50, 10)):
        kernel = Kernel(cost=cost)
        latest = Latest(kernel.read, kernel, 0.5, 0)
        assert latest.value() == 1
        kernel.time += still
        assert latest.value() == 1
        kernel.time += too_old
        assert [latest.value(), latest.value()] == [2, 2]


def test_where_the_kernel_cannot_be_read_the_last_reading_stands() -> None:
    kernel = Kernel(fault=KernelError("list counters"))
    latest = Latest(kernel.read, kernel, 0.0, 0)
    assert latest.value() == 0
    kernel.fault = None
    assert latest.value() == 2
    kernel.fault = KernelError("list counters")
    assert latest.value() == 2
