"""Virtual time: who runs when, and how threads end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from netmgr.errors import ConfigError
from tests.fakes.virtual_time import EPOCH, VirtualTime

# That of the thread whose error ends the run, which comes with whatever test is next.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

DAY = 86_400.0


@pytest.fixture
def time() -> Iterator[VirtualTime]:
    made = VirtualTime()
    yield made
    made.close()


def test_a_day_passes_at_once_and_everything_happens_at_its_time(time: VirtualTime) -> None:
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, time.monotonic()))

    def live() -> None:
        while True:
            time.sleep(DAY / 3)
            note("thread")

    time.start_for("tested", live, "tested")
    time.at(DAY / 2, partial(note, "planned"))
    time.run(DAY)
    assert seen == [
        ("thread", DAY / 3),
        ("planned", DAY / 2),
        ("thread", 2 * DAY / 3),
        ("thread", DAY),
    ]
    assert time.now() == EPOCH + DAY


def test_no_time_passes_while_a_thread_works(time: VirtualTime) -> None:
    seen: list[float] = []

    def work() -> None:
        before = time.monotonic()
        sum(range(100_000))
        seen.append(time.monotonic() - before)

    for _ in range(3):
        time.start_for("tested", work, "tested")
    time.run(1)
    assert seen == [0, 0, 0]


def test_an_event_ends_a_wait_when_it_is_set_and_a_deadline_otherwise(time: VirtualTime) -> None:
    event, seen = threading.Event(), []

    def wait(seconds: float | None) -> None:
        seen.append((time.wait(event, seconds), time.monotonic()))

    time.start_for("tested", partial(wait, 2), "short")
    time.start_for("tested", partial(wait, 20), "long")
    time.start_for("tested", partial(wait, None), "endless")
    time.at(10, event.set)
    time.run(100)
    assert seen == [(False, 2), (True, 10), (True, 10)]


def test_work_is_done_so_many_at_a_time_and_in_order(time: VirtualTime) -> None:
    running: list[int] = []
    most, results = 0, []

    def work(item: int) -> int:
        nonlocal most
        running.append(item)
        most = max(most, len(running))
        time.sleep(1)
        running.remove(item)
        return 10 * item

    time.start_for("tested", lambda: results.append(time.map(4, work, range(10))), "tested")
    time.run(2.9)
    assert not results
    time.run(3)
    assert results == [[10 * item for item in range(10)]]
    assert most == 4


def test_the_first_error_is_raised_and_what_has_not_begun_is_left_out(time: VirtualTime) -> None:
    begun: list[int] = []
    caught: list[str] = []

    def work(item: int) -> None:
        begun.append(item)
        time.sleep(1)
        if item in (1, 2):
            raise ConfigError(f"item {item}")

    def run() -> None:
        try:
            time.map(3, work, range(100))
        except ConfigError as error:
            caught.append(error.message)

    time.start_for("tested", run, "tested")
    time.run(10)
    assert caught == ["item 1"]
    assert len(begun) < 10


def test_killed_threads_end_where_they_wait_with_all_that_they_started(time: VirtualTime) -> None:
    ended: list[str] = []

    def live(name: str) -> None:
        try:
            time.sleep(DAY)
        finally:
            ended.append(name)

    def parent() -> None:
        time.start(partial(live, "child"), "child")
        live("parent")

    time.start_for("one", parent, "one")
    time.start_for("other", partial(live, "other"), "other")
    time.at(5, partial(time.kill, "one"))
    time.run(10)
    assert sorted(ended) == ["child", "parent"]
    time.run(2 * DAY)
    assert sorted(ended) == ["child", "other", "parent"]
    assert not [each for each in threading.enumerate() if each.name in ("one", "child", "other")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_a_thread_ends_the_run(time: VirtualTime) -> None:
    def fail() -> None:
        time.sleep(3)
        raise ZeroDivisionError("a bug")

    time.start_for("tested", fail, "tested")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        time.run(10)
    assert time.monotonic() == 3
