"""Sessions in the pages print what the pages say."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, commands
from tests.waiting import PATIENCE, ask_until

SESSIONS: dict[Path, list[Block]] = {}
for _block in blocks():
    if _block.language == "console":
        SESSIONS.setdefault(_block.page, []).append(_block)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(900)  # a lab of a dozen programs, started one after the other
@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.stem)
def test_a_session_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    # What `netmgr` is on the reader's PATH, and .venv/bin and the lab in a clone.
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    failures, slept = [], False
    for block in SESSIONS[page]:
        for command in commands(block):
            # On a busy machine it takes longer than a page's `sleep` until something comes about,
            # and longer than a question waits until an agent answers.
            may_be_early = slept or " netmgr node " in command.line
            ask = partial(run, command.line, tmp_path)
            printed = ask_until(command.is_printed_by, ask, PATIENCE * may_be_early)
            slept = command.line.startswith("sleep ")
            if not command.is_printed_by(printed):
                failures.append(f"{block.name}: $ {command.line}\n{printed}")
    assert not failures, "\n".join(failures)


def run(line: str, folder: Path) -> str:
    """All that a command prints."""
    environment = dict(os.environ, PATH=f"{sys.prefix}/bin:{os.environ['PATH']}", NO_COLOR="1")
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout
