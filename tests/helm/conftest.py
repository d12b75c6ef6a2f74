"""A whole release, built once for the tests that need one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import netmgr

ROOT = Path(__file__).parents[2]
IMAGE = f"registry.example.com/team/netmgr:{netmgr.__version__}"


def git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", folder, *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tagged clone of this checkout's commit, released: `dist/release` has everything."""
    folder = tmp_path_factory.mktemp("clone")
    git(folder, "clone", "--quiet", str(ROOT), ".")
    settings = folder / "pyproject.toml"
    text = settings.read_text()
    text = re.sub(r'(?m)^image = ""', f'image = "{IMAGE.rpartition(":")[0]}"', text)
    text = re.sub(r'(?m)^documentation = ""', 'documentation = "https://docs.example.com"', text)
    settings.write_text(text)
    git(folder, "commit", "--quiet", "--all", "--message", "release")
    git(folder, "tag", f"v{netmgr.__version__}")
    subprocess.run([sys.executable, folder / ".ci" / "release"], check=True)
    return folder
