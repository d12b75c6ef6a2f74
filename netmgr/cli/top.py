"""`netmgr node top`: who uses the internet right now, by two readings of the agent's socket."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, cast

import typer

from netmgr.api.snapshot import Snapshot
from netmgr.cli.asking import ask
from netmgr.cli.options import Socket
from netmgr.cli.output import size
from netmgr.cli.terminal import console, undone_when_interrupted
from netmgr.errors import NetmgrError
from netmgr.printable import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NODE = ("", "")  # no pod is without a name
_DIRECTIONS = ("internet-in", "internet-out")
_PATIENCE_SECONDS = 2.0

Name: TypeAlias = tuple[str, str]
"""Namespace and pod, or NODE for the node as a whole."""
Readings: TypeAlias = Iterator[tuple[Snapshot, Snapshot] | NetmgrError]
"""Each reading behind the one before it, or why there is none."""
Draw: TypeAlias = Callable[[Snapshot, Snapshot], "Table"]


class Sort(StrEnum):
    """Which pods come first: those with the most, or the first of the alphabet."""

    TOTAL = "total"
    IN = "in"
    OUT = "out"
    CONNECTIONS = "connections"
    NAME = "name"


class PodUsage(NamedTuple):
    """What a pod or the node uses of the internet, in both directions.

    `rates` are bytes per second, empty where two readings do not tell; `totals` are bytes. The
    agent says `connections` of the pods that began the most.
    """

    rates: list[float]
    totals: list[int]
    connections: int | None = None

    def amount(self, sort: Sort) -> float:
        """What the pods are sorted by, the highest first."""
        received, sent = self.rates or (0, 0)
        # The agent names those with the most: all others have fewer.
        begun = -1 if self.connections is None else self.connections
        amounts = {Sort.IN: received, Sort.OUT: sent, Sort.CONNECTIONS: begun, Sort.NAME: 0}
        return amounts.get(sort, received + sent)


def measured(before: Snapshot, now: Snapshot) -> dict[Name, PodUsage]:
    """What the node and each of its pods use."""
    seconds = now["taken_at"] - before["taken_at"]
    former = _totals(before)
    begun = now["tracking"]["pods"] if "tracking" in now else ()
    connections = {(pod["namespace"], pod["pod"]): pod["connections"] for pod in begun}
    usages = {}
    for name, totals in _totals(now).items():
        # A pod that is new began at 0 bytes.
        pairs = zip(totals, former.get(name, (0, 0)), strict=True)
        # A ledger that was lost counts from 0 again, and a clock may be set back.
        rates = [max(0, new - old) / seconds for new, old in pairs] if seconds > 0 else []
        usages[name] = PodUsage(rates, totals, connections.get(name))
    return usages


def _totals(snapshot: Snapshot) -> dict[Name, list[int]]:
    totals: dict[Name, list[int]] = {NODE: [0, 0]}
    named = ((NODE, total) for total in snapshot["node_totals"])
    of_pods = (((total["namespace"], total["pod"]), total) for total in snapshot["pods"])
    for name, total in (*named, *of_pods):
        both = totals.setdefault(name, [0, 0])
        if total["traffic"] in _DIRECTIONS:
            both[_DIRECTIONS.index(total["traffic"])] = total["bytes"]
    return totals


def ordered(usages: dict[Name, PodUsage], sort: Sort, namespace: str | None) -> list[Name]:
    """The pods to show, of one namespace if it is given, in their order."""
    pods = (name for name in usages if name != NODE and namespace in (None, name[0]))
    return sorted(pods, key=lambda name: (-usages[name].amount(sort), name))


def table(node: str, usages: dict[Name, PodUsage], pods: list[Name]) -> Table:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("namespace/pod", overflow="fold")  # on a narrow terminal
    for heading in ("in/s", "out/s", "in", "out", "conns"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for name in (NODE, *pods):
        usage = usages[name]
        # A name must carry neither escape sequences to the terminal nor markup to rich.
        drawn.add_row(
            Text(plain(f"node {node}" if name == NODE else "/".join(name))),
            # Without rates, the string is unpacked: a question mark for each column.
            *(map(size, usage.rates) if usage.rates else "??"),
            *map(size, usage.totals),
            "" if usage.connections is None else f"{usage.connections:,}",
        )
    return drawn


def top(
    *,
    socket: Socket = None,
    sort: Annotated[Sort, typer.Option("--sort", "-s", help="What comes first.")] = Sort.TOTAL,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only pods of this namespace.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between readings.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Number of readings; 0: until Ctrl-C.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="One table, as in a pipe.")] = False,
) -> None:
    """Show which pods use the internet right now, and what each has used in all.

    A terminal shows one table that changes, as high as its screen. In a pipe each reading is one.
    """

    def draw(before: Snapshot, now: Snapshot) -> Table:
        usages = measured(before, now)
        return table(now["node"], usages, ordered(usages, sort, namespace))

    screen = console()
    is_live = sys.stdout.isatty() and not screen.is_dumb_terminal and not once
    readings = _readings(socket, interval, 1 if once else count)
    with suppress(KeyboardInterrupt):
        (_live if is_live else _print)(screen, readings, draw)


def _readings(socket: Path | None, interval: float, count: int) -> Readings:
    """Read so many times, or without an end for 0."""

    def read() -> Snapshot:
        return cast(Snapshot, ask(socket, "snapshot", timeout=_PATIENCE_SECONDS))

    # Only the first may end the command: an agent that is being replaced is soon back.
    before, left = read(), count or sys.maxsize
    while left:
        time.sleep(interval)
        try:
            now = read()
        except NetmgrError as error:
            yield error
        else:
            yield before, now
            before, left = now, left - 1


def _print(screen: Console, readings: Readings, draw: Draw) -> None:
    for reading in readings:
        if isinstance(reading, NetmgrError):
            typer.echo(f"netmgr: {reading.message}", err=True)
        else:
            screen.print(draw(*reading))


def _live(screen: Console, readings: Readings, draw: Draw) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    # While the agent does not answer, the last table stays, below the reason.
    shown: Text | Table = Text("measuring")
    # A signal is an exception, so that the terminal is left as it was.
    ended = undone_when_interrupted(endings=(signal.SIGTERM, signal.SIGHUP))
    with ended, Live(shown, console=screen, screen=True, auto_refresh=False) as live:
        for reading in readings:
            if isinstance(reading, NetmgrError):
                fault = Text(f"no answer, figures are old: {plain(reading.message)}")
                live.update(Group(fault, shown), refresh=True)
            else:
                shown = draw(*reading)
                live.update(shown, refresh=True)
