"""Completion as bash, zsh and fish have it: commands, options and values, and never an error."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from netmgr import programs
from netmgr.cli import completion
from netmgr.cli.main import main
from netmgr.cli.plan import app
from tests.builders import SMALL_PLAN
from tests.fakes.agent_socket import agent, canned, snapshot
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SHELLS = ("bash", "zsh", "fish")
Complete = Callable[..., list[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with its lock, whose cluster gamma and one node pool have left the plan since."""
    made = tmp_path_factory.mktemp("completion")
    plan = yaml.safe_load(SMALL_PLAN)
    plan["clusters"]["alpha"]["node_pools"]["old"] = {"nodes": 3}
    plan["clusters"]["gamma"] = plan["clusters"]["beta"]
    for text in (yaml.safe_dump(plan), SMALL_PLAN):
        (made / "plan.yaml").write_text(text)
        locked = CliRunner().invoke(app, ["lock", "--yes", "-f", str(made / "plan.yaml")])
        assert locked.exit_code == 0
    return made


@pytest.fixture
def complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Complete:
    """What bash would offer for the last word of a line."""
    monkeypatch.setattr(completion, "_PATIENCE_SECONDS", PATIENCE)

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
        ("netmgr plan gr", ["grow"]),
        ("netmgr plan render kub", ["kubelet", "kubernetes"]),
        ("netmgr node status --so", ["--socket"]),
        ("netmgr node status -o ", ["table", "json", "yaml"]),
        ("netmgr completion ", ["bash", "zsh", "fish"]),
        ("netmgr plan grow ", ["alpha", "beta"]),
        ("netmgr plan grow al", ["alpha"]),
        ("netmgr plan grow alpha --pool ", ["gpu", "cpu"]),
        ("netmgr plan render kubernetes ", ["alpha", "beta"]),
        ("netmgr plan render kubelet beta ", ["cpu"]),
        ("netmgr plan render router ", ["router-0.hub", "router-1.hub"]),
        ("netmgr plan render nat-host nat-1", ["nat-1.alpha", "nat-1.beta"]),
        ("netmgr plan render node be", ["beta-cpu-0"]),
        ("netmgr plan release ", ["alpha/old", "gamma"]),
        ("netmgr controller --plan plan.yaml --cluster ", ["alpha", "beta"]),
    ],
)
def test_commands_options_and_values_are_offered(complete, line, offered):
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
def test_nothing_is_offered_where_nothing_can_be_read(complete, line):
    assert complete(line) == []


def test_addresses_of_the_nodes_pods_are_offered(complete, socket_path):
    pod = {"namespace": "research", "pod": "pod-1", "addresses": ["10.9.0.1", "fd00::1"]}
    answer = {**snapshot(pods=1), "attachments": [pod]}
    with agent(socket_path, canned(answer)):
        assert complete(f"netmgr node explain --socket {socket_path} ") == pod["addresses"]


def test_a_pods_name_is_no_code_for_zsh(socket_path, monkeypatch, capsys):
    pod = {"namespace": "research", "pod": "x\\\";reboot'`", "addresses": ["10.9.0.1"]}
    monkeypatch.setattr(completion, "_PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setenv("_NETMGR_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"netmgr node explain --socket {socket_path} ")
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    answer = canned({**snapshot(pods=1), "attachments": [pod]})
    with agent(socket_path, answer), pytest.raises(SystemExit):
        main()
    assert '"10.9.0.1":"research/x???reboot??"' in capsys.readouterr().out


@pytest.fixture(scope="module")
def scripts(commands: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PATH with netmgr, and each shell's script; zsh's has the name that zsh asks for."""
    made = tmp_path_factory.mktemp("scripts")
    (made / "functions").mkdir()
    netmgr = made / "netmgr"
    netmgr.symlink_to(commands / "netmgr")
    for shell, name in zip(SHELLS, ("bash", "functions/_netmgr", "fish"), strict=True):
        with (made / name).open("wb") as script:
            subprocess.run(
                [netmgr, "completion", shell], stdout=script, check=True, timeout=PATIENCE
            )
    return made


def _outcome(
    scripts: Path, folder: Path, *command: str | Path, **environment: str
) -> programs.Outcome:
    own = {"PATH": f"{scripts}:/usr/bin:/bin", "HOME": str(scripts), "LC_ALL": "C"}
    return programs.run(command, cwd=folder, env={**own, **environment})


@pytest.mark.programs
def test_a_fault_of_our_own_does_not_disturb_the_line(scripts, folder):
    program = """
from netmgr.cli import completion
completion.clusters = lambda ctx: 1 / 0
from netmgr.cli.main import main
main()
"""
    asked = {"_NETMGR_COMPLETE": "complete_bash", "COMP_WORDS": "netmgr\nplan\ngrow\n"}
    asked |= {"COMP_CWORD": "3", "PYTHONPATH": str(ROOT)}
    outcome = _outcome(scripts, folder, sys.executable, "-c", program, **asked)
    assert outcome.returncode
    assert (outcome.stdout, outcome.stderr) == (b"", b"")


BASH = """
source {}/bash
COMP_WORDS=(netmgr plan grow al) COMP_CWORD=3
$(complete -p netmgr | sed 's/.*-F \\([^ ]*\\).*/\\1/') netmgr
echo "${{COMPREPLY[@]}}"
"""
FISH = "source {}/fish; complete -C 'netmgr plan grow al'"


@pytest.mark.slow
@pytest.mark.programs
@pytest.mark.parametrize(
    ("shell", "program", "offered"),
    [
        (("bash", "--norc"), BASH, b"alpha\n"),
        (("fish", "--no-config"), FISH, b"alpha\t500 nodes\n"),
    ],
)
def test_shells_complete(scripts, folder, shell, program, offered):
    outcome = _outcome(scripts, folder, *shell, "-c", program.format(scripts))
    assert (outcome.stdout, outcome.stderr) == (offered, b"")


@pytest.mark.slow
@pytest.mark.programs
@pytest.mark.parametrize("how", ["eval", "fpath"])
def test_zsh_completes_at_the_first_tab(scripts, folder, how):
    begin = "autoload -Uz compinit; compinit -u -D; "
    if how == "fpath":
        begin = f"fpath=({scripts}/functions $fpath); {begin}"
    else:
        begin += f'eval "$(<{scripts}/functions/_netmgr)"; '
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=folder,
        env={"PATH": f"{scripts}:/usr/bin:/bin", "HOME": str(scripts), "TERM": "vt100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        # The prompt is written in two parts, so that the echo of the command is not taken for it.
        os.write(terminal, f"{begin}PS1='rea''dy '\n".encode())
        _until(terminal, "ready ")
        os.write(terminal, b"netmgr plan grow al\t--no\t")
        _until(terminal, "alpha.*--nodes")
    finally:
        os.close(terminal)
        process.wait(PATIENCE)


def _until(terminal: int, wanted: str) -> None:
    """Read what a terminal shows until it is as wanted."""
    shown, deadline = "", time.monotonic() + PATIENCE
    while not re.search(wanted, shown, flags=re.DOTALL):
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, shown
        shown += os.read(terminal, 1 << 16).decode()
