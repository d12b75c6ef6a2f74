"""What commands print fits a terminal, whatever its width, and is whole and plain in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from netmgr import programs
from netmgr.cli.main import command_line
from tests import commands
from tests.builders import SMALL_PLAN
from tests.waiting import PATIENCE

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
ESCAPE = "\x1b["
INSTALL = ("cni", "install", "--help")


def environment(**more: str) -> dict[str, str]:
    """This process's, without what says something about a terminal."""
    said = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    kept = {name: value for name, value in os.environ.items() if name not in said}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm", **more}


def piped(*arguments: str, cwd: Path = ROOT, **more: str) -> str:
    command = [sys.executable, "-m", "netmgr", *arguments]
    outcome = programs.run(command, cwd=cwd, env=environment(**more))
    return (outcome.stdout + outcome.stderr).decode()


def on_terminal(columns: int, *arguments: str, cwd: Path = ROOT, **more: str) -> str:
    """What a terminal of that width is sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "netmgr", *arguments],
        cwd=cwd,
        env=environment(**more),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        said = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # EIO: nobody has the other end any more
        return b""


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_help_in_a_pipe_has_every_option_on_one_line() -> None:
    lines = piped(*INSTALL).splitlines()
    (wait,) = [line for line in lines if "--wait" in line]
    assert wait.endswith("being replaced, 0 to 10 [default: 10]")
    assert all(line.startswith(("  -", "Options", "Usage", "  Install")) for line in lines if line)


@pytest.mark.parametrize("columns", [60, 100])
def test_help_takes_the_terminals_width_or_the_one_that_columns_says(columns: int) -> None:
    assert columns - 40 < widest(on_terminal(columns, *INSTALL)) <= columns
    assert columns - 40 < widest(piped(*INSTALL, COLUMNS=str(columns))) <= columns
    assert widest(on_terminal(200, *INSTALL, COLUMNS=str(columns))) <= columns


def test_no_summary_of_a_command_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for path, group in commands.walk(command_line()):
        if isinstance(group, TyperGroup):
            with typer.Context(group, info_name=path) as context:
                assert "..." not in group.get_help(context).partition("\n\n")[2]


def test_a_commands_summary_in_a_list_is_the_first_sentence_of_its_help() -> None:
    for path, group in commands.walk(command_line()):
        for name, (_, summary) in getattr(group, "entries", {}).items() if path != "netmgr" else ():
            assert group.commands[name].short_help == summary, f"{path} {name}"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan.yaml").write_text(SMALL_PLAN)
    assert "Wrote" in piped("plan", "lock", "--yes", cwd=folder)
    return folder


def test_colours_are_for_terminals_and_for_those_who_want_them(plan: Path) -> None:
    command = ("plan", "check")
    assert ESCAPE in on_terminal(100, *command, cwd=plan)
    assert ESCAPE not in on_terminal(100, *command, cwd=plan, NO_COLOR="1")
    assert ESCAPE not in piped(*command, cwd=plan)


def test_a_tree_in_a_pipe_is_whole(plan: Path) -> None:
    tree = piped("plan", "show", "--tree", cwd=plan)
    assert ESCAPE not in tree
    assert widest(tree) > 80
    # Every line is an entry: a wrapped one would begin with blanks alone.
    entries = ("├", "└", "s")
    assert all(line.strip("│ ").startswith(entries) for line in tree.splitlines())
    assert widest(piped("plan", "show", "--tree", cwd=plan, COLUMNS="60")) <= 60


INTERRUPTED_IN_A_FINALIZER = """
import os, signal, time
from netmgr.cli.terminal import undone_when_interrupted

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

with undone_when_interrupted("undoing"):
    try:
        Finalized()
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        print("undone")
"""


def test_an_interruption_that_python_drops_in_a_finalizer_is_raised_after_it() -> None:
    outcome = programs.run(
        [sys.executable, "-c", INTERRUPTED_IN_A_FINALIZER], cwd=ROOT, timeout=PATIENCE
    )
    assert (outcome.returncode, outcome.stdout) == (128 + signal.SIGTERM, b"undone\n")
    assert outcome.stderr == b"\nInterrupted: undoing\n"
