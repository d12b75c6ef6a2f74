"""What the guards look at: the files of the repository, those not committed yet included."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PICTURES = (".png",)
"""Endings of files that hold no text."""
FUZZED = "tests/fuzz/corpus/"
"""Inputs of fuzz targets: bytes, most of them no text."""


@pytest.fixture(scope="session")
def top() -> Path:
    return TOP


@pytest.fixture(scope="session")
def files() -> list[str]:
    """Paths relative to the top, without what .gitignore names."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in listing.stdout.splitlines() if (TOP / name).is_file())


@pytest.fixture(scope="session")
def texts(files: list[str]) -> dict[str, str]:
    written = [
        name for name in files if not name.endswith(PICTURES) and not name.startswith(FUZZED)
    ]
    return {name: (TOP / name).read_text() for name in written}


@pytest.fixture(scope="session")
def modules(texts: dict[str, str]) -> dict[str, ast.Module]:
    """Syntax trees of every Python file, tests included."""
    return {name: ast.parse(text) for name, text in texts.items() if name.endswith(".py")}


@pytest.fixture(scope="session")
def product(modules: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Syntax trees of what is shipped."""
    return {
        name: tree
        for name, tree in modules.items()
        if name.startswith(("netmgr/", "cni/", "exporter/"))
    }
