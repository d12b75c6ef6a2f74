"""Where programs of other projects are that tests need: `.ci/programs` builds each of them once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def built(module: Path, cache: str) -> Path:
    """The folder that has what `.ci/programs MODULE CACHE` builds, or would have."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    versions = (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()
    return caches / "netmgr" / cache / hashlib.sha256(versions).hexdigest()[:12]
