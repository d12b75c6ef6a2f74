"""Asks the agent again and again, and shows what it says: on a live screen, or as plain tables."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import typer

from netmgr.api.snapshot import Snapshot
from netmgr.cli.output import show
from netmgr.cli.top import plain, screen
from netmgr.cli.top.columns import ASCII, UNICODE
from netmgr.cli.top.rates import Meter, Reading, Share
from netmgr.cli.top.screen import Look, Status
from netmgr.cli.top.view import View
from netmgr.errors import NetmgrError

Ask = Callable[[], Snapshot]
"""The agent's snapshot; raises NetmgrError."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line says.

    Attributes:
        interval: seconds between readings.
        count: of readings; 0: without an end.
        rows: of a plain table, at most.
        max_series: as the exporter's.
    """

    interval: float
    count: int
    rows: int
    max_series: int


def is_terminal() -> bool:
    """Whether a live screen can be shown and keys can be read."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Watching:
    """One run of the command.

    Raises:
        NetmgrError: the agent does not answer the first question.
    """

    def __init__(self, ask: Ask, choice: Choice, view: View) -> None:
        self._ask = ask
        self._choice = choice
        self._view = view
        self._meter = Meter(ask(), choice.interval, self._series)
        self._reading: Reading | None = None
        self._shown: Reading | None = None
        self._fault = ""
        self._left = choice.count or sys.maxsize

    def print(self) -> None:
        """A table for each reading."""
        while self._left > 0:
            time.sleep(self._choice.interval)
            self._measure()
            if self._fault:
                typer.echo(f"netmgr: {self._fault}", err=True)
            elif self._reading:
                show(*plain.parts(self._reading, self._view, self._choice.rows))

    def live(self) -> None:
        """The screen, until a key or the last reading ends it."""
        from netmgr.cli.top.terminal import Terminal

        is_utf8 = "utf" in sys.stdout.encoding.lower()
        look = Look(UNICODE if is_utf8 else ASCII, not os.environ.get("NO_COLOR"))
        due = time.monotonic() + self._choice.interval
        with Terminal() as terminal:
            while self._left > 0 and not self._view.is_ended:
                status = Status(self._choice.interval, self._fault)
                shown = screen.frame(self._shown, self._view, status, terminal.size(), look)
                terminal.draw(shown.lines)
                self._view = replace(self._view, first=shown.first)
                for key in terminal.wait(max(0.0, due - time.monotonic())):
                    self._view = self._view.pressed(key, shown.page)
                if time.monotonic() >= due:
                    self._measure()
                    # Readings are not made up for, as after Ctrl-Z.
                    due = max(due + self._choice.interval, time.monotonic())
                if not self._view.is_paused:
                    self._shown = self._reading

    def _measure(self) -> None:
        try:
            self._reading = self._meter.read(self._ask())
        except NetmgrError as error:
            self._meter.miss()
            self._fault = error.message
        else:
            self._fault = ""
            self._left -= 1

    def _series(self, snapshot: Snapshot) -> Iterator[Share]:
        """How many series the exporter makes of a snapshot, and how many it may."""
        from exporter.collector import NONSENSE, Collector

        # An agent of another release may say what this exporter does not understand.
        with suppress(*NONSENSE):
            if most := self._choice.max_series:
                yield Share("series", Collector(lambda: snapshot).series(snapshot), most)
