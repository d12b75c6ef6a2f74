"""Where programs of other projects are that tests need: `.ci/programs` builds each of them once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

SUMS = Path(__file__).with_name("go.sum")
"""The checksums of all modules."""


def built(module: Path, cache: str) -> Path:
    """The folder that has what `.ci/programs MODULE CACHE` builds, or would have."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = (module / "go.mod").read_bytes() + SUMS.read_bytes()
    return caches / "netmgr" / cache / hashlib.sha256(versions).hexdigest()[:12]
