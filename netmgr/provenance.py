"""What this netmgr was built from: recorded by whoever built it, else asked of git.

A wheel, and so the image and the Debian package, has the record of its build beside this module. A
checkout has none: there git is asked, each time anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from netmgr import programs
from netmgr.errors import SetupError

RECORD = Path(__file__).with_name("build.json")
"""Written by `cni/build_hook.py`; in no checkout."""

COMMIT = "NETMGR_COMMIT"
"""Variable with the commit, `-dirty` behind it if the source differs, for a build without git's
data. SOURCE_DATE_EPOCH then has the commit's time.
"""

_DIRTY = "-dirty"
_GIT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Provenance:
    """A commit, and whether the source differed from it; what is not known is None."""

    commit: str | None = None
    """40 digits."""

    committed: str | None = None
    """When it was made, by ISO 8601 in UTC."""

    dirty: bool | None = None


def read() -> Provenance:
    try:
        return Provenance(**json.loads(RECORD.read_bytes()))
    except FileNotFoundError:
        return of_checkout(RECORD.parent.parent)
    except (OSError, TypeError, ValueError):
        return Provenance()


def of_checkout(folder: Path, environment: Mapping[str, str] | None = None) -> Provenance:
    """What a source folder is: as the environment says, else git; unknown if neither knows."""
    given = os.environ if environment is None else environment
    if commit := given.get(COMMIT):
        return _of(commit, given.get("SOURCE_DATE_EPOCH", ""))
    # Not one of a repository that merely contains this folder.
    if not (folder / ".git").exists():
        return Provenance()
    # No tag may match, so that the commit itself is told, in its whole length.
    described = _git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    return _of(described, _git(folder, "log", "-1", "--format=%ct")) if described else Provenance()


def as_json(provenance: Provenance) -> str:
    return json.dumps(asdict(provenance), indent=1) + "\n"


def _of(described: str, seconds: str) -> Provenance:
    commit = described.removesuffix(_DIRTY)
    when = datetime.fromtimestamp(int(seconds), UTC).isoformat() if seconds.isdecimal() else None
    return Provenance(commit, when, described != commit)


def _git(folder: Path, *arguments: str) -> str:
    """What git answers; empty where there is no git, or it refuses."""
    try:
        command = (programs.locate("git", "git"), "-C", str(folder), *arguments)
        outcome = programs.run(command, timeout=_GIT_SECONDS)
    except (SetupError, programs.TimedOut):
        return ""
    return outcome.stdout.decode().strip() if outcome.returncode == 0 else ""
