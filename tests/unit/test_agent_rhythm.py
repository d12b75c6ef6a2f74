"""Recurring work: when it is due, when it waits, and that a failure ends nothing."""

from __future__ import annotations

import os
import threading
import time

from netmgr.agent.rhythm import LARGEST_SHARE, LONG_SECONDS, Rhythm, Steps
from netmgr.agent.telemetry import Telemetry
from netmgr.errors import TryAgainLater

PATIENCE = 10.0


def test_steps_are_due_at_once_and_then_at_their_intervals() -> None:
    often, seldom, done = [], [], threading.Event()

    def count() -> None:
        often.append(time.monotonic())
        if len(often) == 5:
            done.set()

    rhythm = Rhythm("test", ((0.02, count), (600, lambda: seldom.append(1))))
    rhythm.start()
    assert done.wait(PATIENCE)
    rhythm.stop()
    assert seldom == [1]
    assert often[4] - often[0] >= 4 * 0.02


def test_news_on_a_file_descriptor_are_taken_up_without_waiting_for_an_interval() -> None:
    reading, writing = os.pipe2(os.O_NONBLOCK)
    heard = threading.Event()

    def hear() -> None:
        os.read(reading, 100)
        heard.set()

    rhythm = Rhythm("test", ((600, lambda: None),), {reading: hear})
    rhythm.start()
    os.write(writing, b"news")
    assert heard.wait(PATIENCE)
    rhythm.stop()
    os.close(reading)
    os.close(writing)


def test_a_step_that_takes_long_leaves_the_processor_to_others() -> None:
    begins: list[float] = []
    done = threading.Event()

    def work() -> None:
        begins.append(time.monotonic())
        if len(begins) == 2:
            done.set()
            return
        while time.thread_time() - start < LONG_SECONDS * 1.1:
            pass

    start = 0.0
    rhythm = Rhythm("test", ((0.01, work),))
    rhythm.start()
    assert done.wait(PATIENCE * 3)
    rhythm.stop()
    assert begins[1] - begins[0] >= LONG_SECONDS / LARGEST_SHARE


def test_a_failure_is_told_until_the_step_succeeds_and_a_repair_is_counted() -> None:
    telemetry = Telemetry()
    steps = Steps(telemetry)

    def fail() -> list[str]:
        raise TryAgainLater("the lock is held")

    steps.repair("rules", fail)
    assert telemetry.failing == {"rules": "the lock is held"}
    steps.repair("rules", lambda: ["a chain was missing", "a set was missing"])
    assert telemetry.failing == {}
    assert telemetry.repairs() == [{"reason": "rules", "count": 2}]
