"""Starts other programs: never through a shell, always with a time limit or a handle."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from netmgr.errors import SetupError

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs are looked up: administrators' folders too, which a user's PATH may lack."""

Running: TypeAlias = subprocess.Popen[bytes]
"""A program that was started and is ended, or waited for, through this handle."""

TimedOut = subprocess.TimeoutExpired
"""What `run` raises when a program took too long and was killed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended."""

    returncode: int
    stdout: bytes
    stderr: bytes


def locate(name: str, package: str) -> str:
    """Full path of a program.

    Raises:
        SetupError: it is not installed; the message names the Debian package that has it.
    """
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
    """Run a program and return how it ended; the caller decides what a non-zero exit means.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds and was killed.
    """
    done = subprocess.run(
        command, input=stdin, capture_output=True, env=env, cwd=cwd, timeout=timeout, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def start(  # noqa: PLR0913 (all but the command are by name, and each is one choice of Popen)
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    user: int | None = None,
    group: int | None = None,
    new_session: bool = False,
) -> Running:
    """Start a program that runs beside us; the caller ends it by the handle it gets.

    With `new_session`, what a terminal sends to its foreground (Ctrl-C, hang-up) does not reach it.
    """
    return subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        user=user,
        group=group,
        # Without an empty list the program would keep root's supplementary groups.
        extra_groups=[] if user is not None else None,
        start_new_session=new_session,
    )
