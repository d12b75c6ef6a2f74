"""A terminal: a pseudoterminal with a program on it, and what a person would see there."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyte

PATIENCE_SECONDS = 30.0


class Terminal:
    """Runs a program as a shell would, in the foreground of a terminal of its own."""

    def __init__(
        self,
        command: Sequence[str],
        columns: int = 80,
        lines: int = 24,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._own, theirs = os.openpty()
        self.device = os.dup(theirs)
        self.raw = b""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.resize(columns, lines)
        self.settings_before = termios.tcgetattr(theirs)
        self.program = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  no threads yet
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait()
        os.close(self._own)
        os.close(self.device)

    def resize(self, columns: int, lines: int) -> None:
        """As when a window is drawn larger; the kernel sends SIGWINCH."""
        self._screen.resize(lines, columns)
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    @property
    def lines(self) -> list[str]:
        """What is on the screen, trailing blanks left out."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.device)

    def read(self, seconds: float = 0.1) -> None:
        """Show what the program writes in this time."""
        if select.select([self._own], [], [], seconds)[0]:
            written = os.read(self._own, 1 << 16)
            self.raw += written
            self._stream.feed(written)

    def settle(self, seconds: float = 0.5) -> None:
        """Wait until the program has written nothing for so long: a frame comes in pieces."""
        before = -1
        while before < len(self.raw):
            before = len(self.raw)
            self.read(seconds)

    def until(self, seen: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for something to be on the screen, or to be so."""
        deadline = time.monotonic() + seconds
        while not seen():
            assert time.monotonic() < deadline, f"not seen within {seconds} s:\n{self.text}"
            self.read()

    def ended(self) -> int:
        """The exit status; negative for a signal."""
        self.until(lambda: self.program.poll() is not None)
        self.read(0)
        status = self.program.returncode
        assert status is not None
        return status
