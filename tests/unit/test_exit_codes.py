"""Exit codes: commands keep to what the page in docs/reference, made from the code, says."""

from __future__ import annotations

import ast
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netmgr import programs
from netmgr.cli.plan import app
from netmgr.errors import SIGNAL_EXIT, Exit
from tests.builders import SMALL_PLAN
from tests.waiting import PATIENCE, patient_netmgr

ROOT = Path(__file__).parents[2]

ENDINGS = ("typer.Exit", "sys.exit", "SystemExit", "os._exit")
"""Calls that take an exit code."""

CASES = [
    (Exit.SUCCESS, "--version"),
    (Exit.SUCCESS, "agent --check --config {root}/configs/node.yaml"),
    (Exit.SUCCESS, "plan diff -f locked.yaml"),
    (Exit.SUCCESS, "plan check -f locked.yaml"),
    (Exit.FAILURE, "node status --socket missing.sock"),
    (Exit.INVALID, "nonsense"),
    (Exit.INVALID, "node status --nonsense"),
    (Exit.INVALID, "node status --output nonsense"),
    (Exit.INVALID, "plan nonsense"),
    (Exit.INVALID, "plan diff --nonsense"),
    (Exit.INVALID, "plan explain 10.0.0.300 -f locked.yaml"),
    (Exit.INVALID, "plan grow nonsense --nodes 9 -f locked.yaml"),
    (Exit.INVALID, "usage --since nonsense"),
    *(
        (Exit.INVALID, f"{command} {document}")
        for document in ("missing.yaml", "broken.yaml")
        for command in (
            *(f"plan {each} -f" for each in ("check", "lock", "diff", "reach", "map", "show")),
            "plan render machines -f",
            "agent --check --config",
            "agent --config",
            "kube node --node-name n --template",
            "preflight --config",
        )
    ),
    (Exit.CHANGES, "plan check -f unlocked.yaml"),
    (Exit.CHANGES, "plan diff -f unlocked.yaml"),
    (Exit.CHANGES, "plan lock -f unlocked.yaml"),
    (Exit.CHANGES, "plan grow alpha --nodes 1500 -f locked.yaml"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("codes")
    for name in ("locked", "unlocked"):
        (made / f"{name}.yaml").write_text(SMALL_PLAN)
    (made / "broken.yaml").write_text("kind: [")
    locked = CliRunner().invoke(app, ["lock", "--yes", "-f", str(made / "locked.yaml")])
    assert locked.exit_code == Exit.SUCCESS
    return made


@pytest.mark.parametrize(("code", "line"), CASES, ids=[line for _, line in CASES])
def test_a_command_ends_with_the_code_that_the_page_says(folder, monkeypatch, netmgr, code, line):
    monkeypatch.chdir(folder)
    assert netmgr(*line.format(root=ROOT).split())[0] == code


@pytest.mark.programs
def test_a_daemon_with_a_fault_ends_with_its_own_code():
    program = """
import threading
from netmgr import faults
faults.end_with_any_thread()
threading.Thread(target=lambda: 1 / 0).start()
threading.Event().wait()
"""
    outcome = programs.run([sys.executable, "-c", program], cwd=ROOT)
    assert outcome.returncode == Exit.FAULT


@pytest.mark.programs
def test_a_command_that_is_interrupted_ends_with_the_signals_code(tmp_path):
    path = tmp_path / "ledger.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        netmgr = patient_netmgr("netmgr.api.client.PATIENCE_SECONDS")
        command = [*netmgr, "nat", "status", "--socket", str(path)]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
            # What a shell runs in the background ignores it, and so do its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads
        ) as running:
            connection, _ = silent.accept()
            assert connection.recv(1)  # it has asked, and waits for the answer
            running.send_signal(signal.SIGINT)
            code = running.wait(PATIENCE)
            connection.close()
    assert code == SIGNAL_EXIT + signal.SIGINT


def test_no_code_has_two_meanings():
    assert len(set(Exit.__members__.values())) == len(Exit.__members__)


def test_every_code_is_tried_by_one_of_these_tests():
    assert {code for code, _ in CASES} == set(Exit) - {Exit.FAULT}


def test_no_code_is_a_bare_number():
    bare = [
        f"{path}:{call.lineno}"
        for room in ("netmgr", "exporter")
        for path in (ROOT / room).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(ENDINGS)
        for value in map(results, call.args)
        if any(isinstance(each, ast.Constant) for each in value)
    ]
    assert bare == []


def results(value: ast.expr) -> list[ast.expr]:
    """What an expression may evaluate to."""
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
