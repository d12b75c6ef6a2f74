"""A terminal that shows one screen and passes on keys, and is as it was when that ends.

However it ends: by a key, Ctrl-C, a fault, or a signal that ends the process. While the process
is stopped (Ctrl-Z) the terminal is the shell's.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

from netmgr.cli.top.screen import Size
from netmgr.cli.top.view import (
    BACKSPACE,
    DOWN,
    END,
    ENTER,
    ESCAPE,
    HOME,
    PAGE_DOWN,
    PAGE_UP,
    UP,
)

# xterm's sequences, which every terminal of today knows: alternate screen, cursor, wrapping.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TOP, _ERASE = "\x1b[H", "\x1b[K"

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_NAMES = {
    "\x1b[A": UP,
    "\x1bOA": UP,
    "\x1b[B": DOWN,
    "\x1bOB": DOWN,
    "\x1b[5~": PAGE_UP,
    "\x1b[6~": PAGE_DOWN,
    "\x1b[H": HOME,
    "\x1bOH": HOME,
    "\x1b[1~": HOME,
    "\x1b[F": END,
    "\x1bOF": END,
    "\x1b[4~": END,
    "\x1b": ESCAPE,
    "\r": ENTER,
    "\n": ENTER,
    "\x7f": BACKSPACE,
    "\b": BACKSPACE,
}
_FALLBACK = os.terminal_size((80, 24))


class Terminal:
    """The terminal that standard input and output are.

    Raises:
        OSError: it went away.
    """

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout.fileno()
        self._encoding = sys.stdout.encoding
        self._shown: list[str] = []
        self._settings: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._settings = termios.tcgetattr(self._input)
        try:
            signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            for number in _ENDING:
                self._handle(number, _end)
            self._handle(signal.SIGWINCH, self._redraw)
            self._handle(signal.SIGTSTP, self._stop)
            self._take()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # From here on nothing may interrupt.
        for number in (signal.SIGINT, *self._handlers):
            self._handle(number, signal.SIG_IGN)
        self._give_back()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    def size(self) -> Size:
        """Of now."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._output)
            # A pseudoterminal that nobody gave a size has 0.
            return Size(columns or _FALLBACK.columns, lines or _FALLBACK.lines)
        return Size(*_FALLBACK)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, unless they are there already."""
        if list(lines) != self._shown:
            # Erased before it is written: after its last letter the cursor is still on that.
            self._write(_TOP + "\r\n".join(f"{_ERASE}{line}" for line in lines))
            self._shown = list(lines)

    def wait(self, seconds: float) -> list[str]:
        """Keys, as soon as there are any; none after `seconds`, or when there is another size.

        Raises:
            EOFError: the terminal was closed.
        """
        ready, _, _ = select.select([self._input, self._woken], [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 1024)
        if self._input not in ready:
            return []
        typed = os.read(self._input, 1024)
        if not typed:
            raise EOFError
        return [_NAMES.get(key, key) for key in _KEY.findall(typed.decode(errors="ignore"))]

    def _handle(self, number: signal.Signals, handler: Any) -> None:  # noqa: ANN401  as signal.signal
        before = signal.signal(number, handler)
        self._handlers.setdefault(number, before)

    def _take(self) -> None:
        # Keys come at once and unseen; signals by key stay.
        tty.setcbreak(self._input)
        self._write(_ENTER)
        self._shown = []

    def _give_back(self) -> None:
        # The terminal may be gone.
        with suppress(OSError, termios.error):
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._settings)

    def _write(self, text: str) -> None:
        # Not through sys.stdout, which a handler of a signal must not enter a second time.
        rest = text.encode(self._encoding, "replace")
        while rest:
            rest = rest[os.write(self._output, rest) :]

    def _redraw(self, _number: int, _frame: FrameType | None) -> None:
        self._shown = []

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on after SIGCONT.
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
