"""Starts other programs: never through a shell, always with a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from netmgr.errors import SetupError

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked up: administrators' folders too, which a user's PATH may lack."""

TimedOut = subprocess.TimeoutExpired
"""What `run` raises when a program took too long and was killed."""

Outcome: TypeAlias = subprocess.CompletedProcess[bytes]


def locate(name: str, package: str) -> str:
    """Full path of a program; SetupError with its Debian package if it is not installed."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise SetupError(f"{name} is not installed; get it with: apt-get install {package}")
    return path


def run(
    command: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60,
) -> Outcome:
    """Run a program and return how it ended; the caller decides what a non-zero exit means."""
    return subprocess.run(
        command, input=stdin, capture_output=True, env=env, cwd=cwd, timeout=timeout, check=False
    )


def python(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a module of netmgr's or beside it, in a Python of its own."""
    # From where this process has netmgr, which need not be on Python's own path.
    home = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
    # -P: the working directory must not provide modules to a daemon.
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, "PYTHONPATH": path}


class Beside:
    """A program that runs beside this process until its outcome is wanted."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)

    def outcome(self, timeout: float = 60) -> Outcome:
        """How it ended; TimedOut if it took longer still, and was killed."""
        with self._process:
            try:
                output, _ = self._process.communicate(timeout=timeout)
            except TimedOut:
                self._process.kill()
                raise
        return Outcome(self._process.args, self._process.returncode, output)
