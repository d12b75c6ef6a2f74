"""Sessions in the pages print what the pages say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, commands

SESSIONS: dict[Path, list[Block]] = {}
for _block in blocks():
    if _block.language == "console":
        SESSIONS.setdefault(_block.page, []).append(_block)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_session_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    # What `netmgr` is on the reader's PATH, and .venv/bin and the lab in a clone.
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    environment = dict(os.environ, PATH=f"{sys.prefix}/bin:{os.environ['PATH']}", NO_COLOR="1")
    failures = []
    for block in SESSIONS[page]:
        for command in commands(block):
            done = subprocess.run(
                ["bash", "-c", command.line],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=120,
            )
            if not command.is_printed_by(done.stdout):
                failures.append(f"{block.name}: $ {command.line}\n{done.stdout}")
    assert not failures, "\n".join(failures)
