"""`python -m tests.failpoints …` is `netmgr …` that can be killed at any durable step.

It looks at the order (`order.py`) before each step, so that it runs on until it has one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from netmgr.__main__ import main
from tests.failpoints import order, steps
from tests.failpoints.order import When
from tests.failpoints.steps import Step


class Failing:
    """Carries out the order for this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._order = order.NONE
        self._version: object = None
        self._taken, self._former = 0, ""
        # What is written here is no step of the product's.
        self._write, self._open = os.write, os.open

    @contextmanager
    def __call__(self, step: Step) -> Iterator[None]:
        with self._lock:
            self._look()
            is_counted = self._order.counts(step.site, self._former)
            self._taken, self._former = self._taken + is_counted, step.site
            is_it = is_counted and self._taken == self._order.number
            if self._order.records:
                self._note(order.to_line(step))
        if is_it and self._order.when is When.BEFORE:
            self._die(step)
        yield
        if is_it:
            self._die(step)

    def _look(self) -> None:
        path = self._folder / order.FILE
        version = order.version_of(path)
        if version != self._version:
            self._version, self._order = version, order.read(path)
            self._taken, self._former = 0, ""

    def _note(self, line: bytes, name: str = order.STEPS) -> None:
        descriptor = self._open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._write(descriptor, line)
        os.close(descriptor)

    def _die(self, step: Step) -> None:
        self._note(order.to_line(step), order.KILLED)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


sys.dont_write_bytecode = True
steps.watch(Failing(Path(os.environ[order.FOLDER])))
main()
