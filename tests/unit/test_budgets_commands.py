"""`netmgr budgets`: what an operator is shown and told, by a real server or from a document."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from exporter.reporting import ServerConnection
from netmgr.budgets import held, messages
from netmgr.budgets.messages import BudgetReport, BudgetUse
from tests.builders import SMALL_PLAN
from tests.fakes import budgets_server
from tests.fakes.agent_socket import agent, canned
from tests.fakes.authority import Authority
from tests.waiting import PATIENCE, eventually

DOCUMENT = """apiVersion: netmgr.io/v1alpha1
kind: Budgets
budgets:
  - {name: everyone, namespaces: ["*"], internet-in: 1G}
  - {name: some, within: everyone, namespaces: [a], internet-in: 10M}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(netmgr: Run) -> Run:
    return lambda *arguments: netmgr("budgets", *map(str, arguments))


def ask(
    address: str, authority: Authority, names: tuple[str, ...] = (), node: str = "", **own: Any
) -> int:
    """Report; the answer's status."""
    host, _, port = address.rpartition(":")
    folder = authority.certify(*names) if names else None
    connection = ServerConnection((host, int(port)), authority.client(folder))
    connection.timeout = PATIENCE
    report = {"epoch": 0, "boot": "b", "sequence": 1, "version": "", "uses": {}} | own
    body = messages.encode(BudgetReport(**report))
    connection.request("POST", messages.PATH, body, {"Authorization": f"Bearer {node}"})
    return connection.getresponse().status


def test_show_says_who_has_what_and_who_is_held_back(tmp_path: Path, run: Run) -> None:
    with budgets_server.leading(tmp_path, budgets_server.NESTED) as leader:
        authority = leader.authority
        use = BudgetUse(2 * 10**6, 10**6, 3, 0, 0, 0, 0)
        uses = {"everyone": use, "some": use}
        assert ask(leader.address, authority, node="node-1", uses=uses) == HTTPStatus.OK
        options = ("show", "--server", leader.address, "--credentials", leader.credentials)

        def shown() -> dict[str, Any]:
            code, out, err = run(*options, "-o", "json")
            assert code == 0, err
            return {budget["name"]: budget for budget in json.loads(out)["budgets"]}

        eventually(lambda: shown()["some"]["waiting"] == 3)
        assert shown()["some"]["within"] == "everyone"
        code, out, err = run(*options)
        assert code == 0, err
        some, node = (line for line in out.splitlines() if line.startswith("some"))
        assert "100.0 Mbit/s" in some
        assert "1.0 TB" in some
        # Until it reports again: its safe rate, half of the budget.
        assert node.split() == ["some", "node-1", "50.0", "Mbit/s", "0", "bit/s", "3"]


def test_show_says_why_it_can_show_nothing(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)
    server = budgets_server.start(authority.certify(messages.SERVER_NAME))
    code, _, err = run("show", "--server", f"127.0.0.1:{server.port}", "--credentials", tmp_path)
    assert code == 1
    assert "no server of budgets leads" in err
    code, _, err = run("show", "--server", "127.0.0.1:1")
    assert code == 2
    assert "--server and --credentials go together" in err
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = run("show", "--server", "127.0.0.1:1", "--credentials", empty)
    assert code == 2
    assert f"{empty}: has no ca.crt" in err
    code, _, err = run("show", "--server", "127.0.0.1:1", "--credentials", tmp_path)
    assert code == 1
    assert "127.0.0.1:1: no answer of a server of budgets: " in err


def test_check_names_the_line_of_what_is_too_low_for_so_many_nodes(
    tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text(DOCUMENT)
    code, out, _ = run("check", file, "--nodes", 20)
    assert (code, out) == (0, f"{file}: 2 budgets, enough for 20 nodes\n")
    code, out, _ = run("check", file, "--nodes", 21)
    assert code == 1
    assert out.startswith(f"{file}:5: budgets[1].internet-in: ")
    assert "at least" in out
    file.write_text(DOCUMENT.replace("10M", "2G"))
    code, out, err = run("check", file, "--nodes", 20)
    assert (code, out) == (2, "")
    assert f"{file}:5: budgets[1].internet-in" in err


class Standalone:
    """`netmgr budgets serve` with a plan, as a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.own = self.authority.certify(messages.SERVER_NAME)
        self.document, self.plan = folder / "budgets.yaml", folder / "plan.yaml"
        self.document.write_text(DOCUMENT)
        self.plan.write_text(SMALL_PLAN)
        lock = [sys.executable, "-m", "netmgr", "plan", "lock", "--yes", "--file", self.plan]
        subprocess.run(lock, check=True, capture_output=True)
        self.started: list[subprocess.Popen[bytes]] = []
        self.log = folder / "log"
        self.address = f"127.0.0.1:{free_port()}"

    def start(self) -> subprocess.Popen[bytes]:
        options = {
            "file": self.document,
            "plan": self.plan,
            "tls": self.own,
            "state": self.folder / "state",
            "listen": self.address,
        }
        given = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "netmgr", "budgets", "serve", *given]
        with self.log.open("ab") as log:
            self.started.append(subprocess.Popen(command, stderr=log))
        return self.started[-1]

    def status(self, *names: str, **own: Any) -> int:
        try:
            return ask(self.address, self.authority, names, **own)
        except OSError:
            return 0

    @property
    def epoch(self) -> int:
        return int(json.loads((self.folder / "state" / "state.json").read_text())["epoch"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.mark.programs
def test_serve_answers_the_plans_nodes_and_its_epoch_grows_with_each_start(
    standalone: Standalone,
) -> None:
    first = standalone.start()
    eventually(lambda: standalone.status("alpha-gpu-0") == HTTPStatus.OK, standalone.log.read_text)
    assert standalone.status("alpha-gpu-999999") == HTTPStatus.UNAUTHORIZED
    before = standalone.epoch
    first.send_signal(signal.SIGKILL)
    first.wait(PATIENCE)
    second = standalone.start()
    eventually(lambda: standalone.status("alpha-gpu-1") == HTTPStatus.OK, standalone.log.read_text)
    assert standalone.epoch > before
    second.terminate()
    assert second.wait(PATIENCE) == 0
    standalone.document.write_text("kind: Budgets\n")
    assert standalone.start().wait(PATIENCE) == 2
    assert "budgets.yaml" in standalone.log.read_text()


@pytest.mark.programs
def test_an_exporter_reports_with_its_nodes_certificate_and_without_kubernetes(
    standalone: Standalone,
    socket_path: Path,
    started: Callable[..., tuple[subprocess.Popen[bytes], int]],
) -> None:
    standalone.start()
    file = standalone.folder / "budgets.json"
    credentials = standalone.authority.certify("alpha-gpu-7")
    options = {"server": standalone.address, "credentials": credentials, "file": file}
    given = [f"--budgets-{name}={value}" for name, value in options.items()]
    state = {"version": 1, "boot": "boot", "uses": {}}
    with agent(socket_path, canned(state)):
        process, _ = started("-m", "netmgr", "exporter", *given)
        eventually(lambda: file.exists() and held.decode(file.read_bytes()).budgets)
        kept = held.decode(file.read_bytes())
        assert [budget.name for budget in kept.budgets] == ["everyone", "some"]
        assert kept.answer.epoch == standalone.epoch
        # The next report has another number, over the same connection.
        eventually(lambda: held.decode(file.read_bytes()).asked > kept.asked)
        process.terminate()
        assert process.wait(PATIENCE) == 0
