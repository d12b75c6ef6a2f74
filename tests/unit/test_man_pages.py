"""Man pages: every command has one, with all of its options, and man shows it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from netmgr.cli.main import COMMANDS
from netmgr.cli.manual import pages, whole, write
from netmgr.errors import Exit


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    write(folder)
    return folder


def named(command: Any, name: str) -> dict[str, Any]:
    """Every command below one, by the name of its page."""
    found = {name: command}
    for inner in getattr(command, "commands", {}).values():
        found |= named(inner, f"{name}-{inner.name}")
    return found


def shown(*files: Path) -> str:
    """What `man` would show of them; nothing may be wrong with any."""
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", *files],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert not done.stderr
    return done.stdout


def _words(param: Any) -> list[str]:
    """How an option, or an argument, is written."""
    is_argument = param.param_type_name == "argument"
    return [param.metavar or param.name] if is_argument else [*param.opts, *param.secondary_opts]


def test_every_command_has_a_page(written: Path) -> None:
    commands = named(whole(), "netmgr")
    assert {f"netmgr-{name}" for name in COMMANDS} < commands.keys()
    assert {"netmgr-plan-dry-run-upgrade", "netmgr-lab-exec"} < commands.keys()
    assert {f"{name}.1" for name in commands} == {path.name for path in written.iterdir()}


@pytest.mark.programs
def test_man_shows_every_page_with_all_options(written: Path) -> None:
    shown(*written.iterdir())  # at once: a program for each would take seconds
    commands = named(whole(), "netmgr")
    for name in ("netmgr-cni-install", "netmgr-plan-grow", "netmgr-controller"):
        text = shown(written / f"{name}.1")
        for param in commands[name].params:
            assert all(each in text for each in _words(param)), name


def test_a_page_has_all_that_help_has(written: Path) -> None:
    for name, command in named(whole(), "netmgr").items():
        source = (written / f"{name}.1").read_text("ascii").replace("\\-", "-")
        source = source.replace("\\[u2026]", "…")
        for param in command.params:
            assert all(each in source for each in _words(param)), name
            if param.envvar:
                assert f"\\fB{param.envvar}\\fR" in source
        for inner in getattr(command, "commands", {}):
            assert f"\\fB{name}-{inner}(1)\\fR" in source


@pytest.mark.programs
def test_a_page_reads_as_others_do(written: Path) -> None:
    text = shown(written / "netmgr-plan-lock.1")
    titles = re.findall(r"^([A-Z ]+)$", text, flags=re.MULTILINE)
    assert titles == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"),
        *("ENVIRONMENT", "EXIT STATUS", "SEE ALSO"),
    ]
    # From groff 1.24 on, spaces are wider where that makes a line end at the margin.
    lock = " ".join(text.split())
    assert "netmgr-plan-lock - Allocate prefixes, show the diff, ask, and write" in lock
    assert "EXIT STATUS 0 Done, or nothing to do" in lock
    assert "2 Changes: there is something to write" in lock
    daemon = " ".join(shown(written / "netmgr-agent.1").split())
    assert f"{Exit.FAULT.value} A fault of netmgr's own" in daemon


def test_text_is_no_request_to_roff() -> None:
    root = whole()
    agent = root.commands["agent"]
    agent.help = "Do it.\n\n.so /etc/shadow\n\n'\\\" and a-b, c\\d, über `x-y`.\n"
    (page,) = (text for name, text in pages(root) if name == "netmgr-agent")
    description = page.partition(".SH DESCRIPTION\n")[2].partition(".SH")[0]
    assert description == (
        "Do it.\n.PP\n\\&.so /etc/shadow\n.PP\n"
        '\\(aq\\e" and a\\-b, c\\ed, \\[u00FC]ber \\fBx\\-y\\fR\\&.\n'
    )
