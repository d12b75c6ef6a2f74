"""The locks pin everything by hash, name no index, and agree with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCKS = ("build", "runtime", "dev", "launcher-compiler", "go", "fuzz", "mutants", "docs")
ENTRY = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;]+)(?: ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def _read(top: Path, lock: str) -> dict[str, str]:
    """Pinned version by package; a line of any other form is an error."""
    pins: dict[str, str] = {}
    hashed: set[str] = set()
    current = ""
    for line in (top / ".ci" / f"{lock}.lock").read_text().splitlines():
        if entry := ENTRY.match(line):
            current = entry["name"]
            pins[current] = entry["version"]
        elif HASH.match(line):
            hashed.add(current)
        else:
            assert line.startswith("#"), f"{lock}.lock: {line!r} is neither a pin nor a hash"
    assert hashed == pins.keys()
    return pins


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_by_hash_and_names_no_place(top: Path, lock: str) -> None:
    text = (top / ".ci" / f"{lock}.lock").read_text()
    assert _read(top, lock)
    assert "://" not in text
    assert "index" not in text


def _wanted(top: Path) -> dict[str, list[str]]:
    document = tomllib.loads((top / "pyproject.toml").read_text())
    runtime = document["project"]["dependencies"]
    return {
        "runtime": runtime,
        "dev": [*runtime, *document["project"]["optional-dependencies"]["dev"]],
        "build": [*document["dependency-groups"]["build"], *document["build-system"]["requires"]],
    }


@pytest.mark.parametrize("lock", ["build", "runtime", "dev"])
def test_a_lock_pins_what_pyproject_allows(top: Path, lock: str) -> None:
    pins = _read(top, lock)
    for requirement in map(Requirement, _wanted(top)[lock]):
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement} is not in {lock}.lock: make lock"
        assert requirement.specifier.contains(pinned), (
            f"{lock}.lock pins {pinned}, not {requirement}: make lock"
        )


def test_the_locks_agree_with_each_other(top: Path) -> None:
    everything = _read(top, "dev")
    for lock in ("build", "runtime"):
        pins = _read(top, lock)
        assert pins == pins | {
            name: version for name, version in everything.items() if name in pins
        }
