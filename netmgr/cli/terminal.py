"""What terminals have and pipes do not: a width, progress, and interrupts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import typer

from netmgr.errors import SIGNAL_EXIT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Until after the finalizer that an exception was dropped in.
RAISED_AGAIN_SECONDS = 0.01
UNLIMITED = 1 << 16
"""Columns of what has no width: more than any line of ours."""


def width() -> int:
    """Columns at which help wraps: COLUMNS, or the terminal's; without a terminal, no limit."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        # A terminal that does not know its size reports 0.
        return os.get_terminal_size(sys.stdout.fileno()).columns or UNLIMITED
    except (OSError, ValueError):  # no terminal, or nothing with a file descriptor
        return UNLIMITED


def console(*, stderr: bool = False) -> Console:
    """Rich's console, without its default of 80 columns for pipes."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = UNLIMITED
    return made


def progress() -> Progress:
    """A line of progress on standard error, where that is a terminal; erased at the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    own = console(stderr=True)
    # Others write what is shown while it waits: it is no markup.
    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=own, transient=True, disable=not own.is_terminal)


@contextmanager
def undone_when_interrupted(
    cleanup: str = "", endings: Iterable[signal.Signals] = ENDINGS
) -> Iterator[None]:
    """Turn the first of these signals into an exception, so that what is half done is undone.

    Later ones are ignored. `cleanup` says what is done about it.
    """

    def leave(number: int, _: FrameType | None) -> None:
        for ending in before:
            # A second Ctrl-C is common, and would leave half of it behind.
            signal.signal(ending, signal.SIG_IGN)
        if cleanup:
            typer.echo(f"\nInterrupted: {cleanup}", err=True)
        raise SystemExit(SIGNAL_EXIT + number)

    def look_at_dropped(dropped: sys.UnraisableHookArgs) -> None:
        # Python drops what is raised within a finalizer or a weak reference's callback.
        interruption = dropped.exc_value
        if isinstance(interruption, SystemExit):

            def raise_again(*_: object) -> None:
                raise interruption

            signal.signal(signal.SIGALRM, raise_again)
            signal.setitimer(signal.ITIMER_REAL, RAISED_AGAIN_SECONDS)
        else:
            hook(dropped)

    before = {number: signal.signal(number, leave) for number in endings}
    hook, sys.unraisablehook = sys.unraisablehook, look_at_dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
