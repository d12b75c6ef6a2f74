"""The helm that `make artifacts` builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.built import built

MODULE = Path(__file__).with_name("programs")


def helm() -> Path:
    """Where it is.

    Raises:
        FileNotFoundError: it was not built.
    """
    found = built(MODULE, "helm") / "helm"
    if not found.exists():
        raise FileNotFoundError(f"{found}: `make artifacts` builds it once")
    return found


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What helm answers, whether it succeeds or fails."""
    return subprocess.run(
        [helm(), *arguments], check=False, capture_output=True, text=True, timeout=120
    )
