"""What git does in a repository of a test's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.waiting import PATIENCE


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What a command of git does there; who commits is in the environment (`conftest.py`)."""
    return subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
