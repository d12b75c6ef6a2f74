"""Starts other programs: never through a shell, always with a time limit."""

from __future__ import annotations

import shutil
import subprocess
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
