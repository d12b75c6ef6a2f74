"""A wall clock of its own for a program, to be set while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOUR = 3600


class WallClock:
    """A clock that differs from the machine's; `environment` gives it to a program."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        source, library = Path(__file__).with_suffix(".c"), folder / "wall_clock.so"
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *options, "-o", library, source], check=True)
        self._file = folder / "offset"
        self.set(offset)
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._file)}
        assert self._is_in_use(), "the library does not set Python's clock"

    def set(self, offset: int) -> None:
        """Set it to so many seconds after the machine's clock."""
        new = self._file.with_suffix(".new")
        new.write_text(str(offset))
        new.replace(self._file)

    def _is_in_use(self) -> bool:
        command = [sys.executable, "-c", "import time; print(time.time() - time.monotonic())"]
        before = float(subprocess.check_output(command))
        there = self._file.read_text()
        self.set(HOUR)
        after = float(subprocess.check_output(command, env=self.environment))
        self.set(int(there))
        # A program may be stopped for a while between its two looks.
        return after - before > HOUR / 2
