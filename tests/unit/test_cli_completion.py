"""Completion as bash, zsh and fish have it: commands, options and values, and never an error."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.completion import words
from netmgr.cli.main import COMMANDS, command_line, main
from tests.builders import SMALL_PLAN
from tests.fakes.agent_socket import agent, canned, snapshot

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")
PATIENCE = 30
Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with its lock, whose cluster gamma and one node pool have left the plan since."""
    made = tmp_path_factory.mktemp("completion")
    plan = yaml.safe_load(SMALL_PLAN)
    plan["clusters"]["alpha"]["node_pools"]["old"] = {"nodes": 3}
    plan["clusters"]["gamma"] = plan["clusters"]["beta"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for _ in range(2):
            Path("plan.yaml").write_text(yaml.safe_dump(plan))
            patch.setattr(sys, "argv", ["netmgr", "plan", "lock", "--yes"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code
            plan = yaml.safe_load(SMALL_PLAN)
    return made


@pytest.fixture
def complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Complete:
    """What bash would offer for the last word of a line."""

    def offered(line: str) -> list[str]:
        words = line.split(" ")
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("_NETMGR_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", "\n".join(words))
            patch.setenv("COMP_CWORD", str(len(words) - 1))
            patch.setattr(sys, "argv", ["netmgr"])
            patch.setattr(sys, "stderr", sys.stderr)  # the process's own is closed to complaints
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code
        return capsys.readouterr().out.split()

    return offered


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("netmgr pl", ["plan"]),
        ("netmgr plan dr", ["dry-run"]),
        ("netmgr plan render kub", ["kubelet", "kubernetes"]),
        ("netmgr node status --so", ["--socket"]),
        ("netmgr node status -o ", ["table", "json", "yaml"]),
        ("netmgr completion ", ["bash", "zsh", "fish"]),
        ("netmgr plan grow ", ["alpha", "beta"]),
        ("netmgr plan grow al", ["alpha"]),
        ("netmgr plan grow alpha --pool ", ["gpu", "cpu"]),
        ("netmgr plan dry-run upgrade ", ["alpha", "beta"]),
        ("netmgr plan advise max-pods b", ["beta"]),
        ("netmgr plan render kubernetes ", ["alpha", "beta"]),
        ("netmgr plan render kubelet beta ", ["cpu"]),
        ("netmgr plan render router ", ["router-0.hub", "router-1.hub"]),
        ("netmgr plan render nat-host nat-1", ["nat-1.alpha", "nat-1.beta"]),
        ("netmgr plan render node be", ["beta-cpu-0"]),
        ("netmgr plan release ", ["alpha/old", "gamma"]),
        ("netmgr controller --plan plan.yaml --cluster ", ["alpha", "beta"]),
    ],
)
def test_commands_options_and_values_are_offered(
    complete: Complete, line: str, offered: list[str]
) -> None:
    assert complete(line) == offered


@pytest.mark.parametrize(
    "line",
    [
        "netmgr plan grow -f missing.yaml ",
        "netmgr plan render router -f plan.lock.yaml ",
        "netmgr plan release -f / ",
        "netmgr node explain --socket missing.sock ",
    ],
)
def test_nothing_is_offered_where_nothing_can_be_read(complete: Complete, line: str) -> None:
    assert complete(line) == []


def test_addresses_of_the_nodes_pods_are_offered(complete: Complete, socket_path: Path) -> None:
    pod = {"namespace": "research", "pod": "pod-1", "addresses": ["10.9.0.1", "fd00::1"]}
    answer = {**snapshot(pods=1), "attachments": [pod]}
    with agent(socket_path, canned(answer)):
        assert complete(f"netmgr node explain --socket {socket_path} ") == pod["addresses"]


def test_a_pods_name_is_no_code_for_zsh(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = {"namespace": "research", "pod": "x\\\";reboot'`", "addresses": ["10.9.0.1"]}
    monkeypatch.setenv("_NETMGR_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"netmgr node explain --socket {socket_path} ")
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    answer = canned({**snapshot(pods=1), "attachments": [pod]})
    with agent(socket_path, answer), pytest.raises(SystemExit):
        main()
    assert '"10.9.0.1":"research/x???reboot??"' in capsys.readouterr().out


def _commands(command: Any, line: str) -> Iterator[tuple[str, Any]]:
    yield line, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{line} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_every_command_is_offered_in_every_shell(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    words()
    # Built once: `main` would do so for each line.
    netmgr = command_line([name])
    for line, command in _commands(netmgr.commands[name], f"netmgr {name}"):
        monkeypatch.setenv("COMP_WORDS", f"{line} --".replace(" ", "\n"))
        monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"{line} --")
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        options = {each for option in command.params for each in option.opts}
        for shell in SHELLS:
            monkeypatch.setenv("_NETMGR_COMPLETE", f"complete_{shell}")
            with pytest.raises(SystemExit) as ended:
                netmgr(prog_name="netmgr")
            assert not ended.value.code
            offered = capsys.readouterr().out
            for option in filter(lambda each: each.startswith("--"), options):
                assert option in offered, f"{line} in {shell}"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PATH with netmgr, and each shell's script; zsh's has the name that zsh asks for."""
    made = tmp_path_factory.mktemp("scripts")
    (made / "functions").mkdir()
    netmgr = made / "netmgr"
    netmgr.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m netmgr "$@"\n')
    netmgr.chmod(0o755)
    for shell, name in zip(SHELLS, ("bash", "functions/_netmgr", "fish"), strict=True):
        with (made / name).open("wb") as script:
            subprocess.run([netmgr, "completion", shell], stdout=script, check=True, timeout=60)
    return made


@pytest.mark.programs
def test_a_fault_of_our_own_does_not_disturb_the_line(folder: Path) -> None:
    program = """
from netmgr.cli import completion
completion.clusters = lambda ctx: 1 / 0
from netmgr.cli.main import main
main()
"""
    asked = {
        "_NETMGR_COMPLETE": "complete_bash",
        "COMP_WORDS": "netmgr\nplan\ngrow\n",
        "COMP_CWORD": "3",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, **asked},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode
    assert (done.stdout, done.stderr) == (b"", b"")


def _environment(scripts: Path) -> dict[str, str]:
    return {
        "PATH": f"{scripts}:/usr/bin:/bin",
        "HOME": str(scripts),
        "TERM": "vt100",
        "LC_ALL": "C",
    }


def _said(scripts: Path, folder: Path, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(scripts),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.programs
def test_bash_completes(scripts: Path, folder: Path) -> None:
    program = f"""
        source {scripts}/bash
        COMP_WORDS=(netmgr plan grow al) COMP_CWORD=3
        $(complete -p netmgr | sed 's/.*-F \\([^ ]*\\).*/\\1/') netmgr
        echo "${{COMPREPLY[@]}}"
        """
    assert _said(scripts, folder, "bash", "--norc", "-c", program) == "alpha\n"


@pytest.mark.programs
def test_fish_completes(scripts: Path, folder: Path) -> None:
    program = f"source {scripts}/fish; complete -C 'netmgr plan grow al'"
    shown = _said(scripts, folder, "fish", "--no-config", "-c", program)
    assert shown == "alpha\t500 nodes\n"


@pytest.mark.programs
@pytest.mark.parametrize("how", ["eval", "fpath"])
def test_zsh_completes_at_the_first_tab(scripts: Path, folder: Path, how: str) -> None:
    begin = "autoload -Uz compinit; compinit -u -D; "
    if how == "fpath":
        begin = f"fpath=({scripts}/functions $fpath); {begin}"
    else:
        begin += f'eval "$(<{scripts}/functions/_netmgr)"; '
    terminal, process = _zsh(scripts, folder)
    try:
        # The prompt is written in two parts, so that the echo of the command is not taken for it.
        os.write(terminal, f"{begin}PS1='rea''dy '\n".encode())
        _until(terminal, "ready ")
        os.write(terminal, b"netmgr plan grow al\t--no\t")
        _until(terminal, "alpha.*--nodes")
    finally:
        os.close(terminal)
        process.wait(PATIENCE)


def _zsh(scripts: Path, folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=folder,
        env=_environment(scripts),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    return ours, process


def _until(terminal: int, wanted: str) -> None:
    """Read what a terminal shows until it is as wanted."""
    shown, deadline = "", time.monotonic() + PATIENCE
    while not re.search(wanted, shown, flags=re.DOTALL):
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, shown
        shown += os.read(terminal, 1 << 16).decode()
