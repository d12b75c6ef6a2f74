"""Which socket a command asks, and what it says where no agent answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from netmgr.cli import asking
from tests.docs.reference import whole
from tests.fakes.agent_socket import agent, canned, snapshot

Netmgr = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def node_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "node.yaml"
    monkeypatch.setattr(asking, "NODE_DOCUMENT", path)
    monkeypatch.setattr(asking, "DEFAULT_SOCKET", tmp_path / "ledger.sock")
    monkeypatch.delenv("NETMGR_SOCKET", raising=False)
    return path


def _commands(command: Any, line: str) -> Iterator[tuple[str, Any]]:
    yield line, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{line} {name}")


def test_every_command_that_asks_an_agent_takes_its_socket_from_the_environment() -> None:
    sockets = {
        line: option.envvar
        for line, command in _commands(whole(), "netmgr")
        for option in command.params
        if "--socket" in option.opts
    }
    asking_commands = {"netmgr node top", "netmgr nat status", "netmgr usage", "netmgr exporter"}
    assert asking_commands < sockets.keys()
    assert set(sockets.values()) == {"NETMGR_SOCKET"}


COMMANDS = ("node status", "node pods", "node explain 10.0.0.1", "node audit", "nat status")


@pytest.mark.parametrize("named_by", ["option", "variable", "node.yaml"])
def test_the_agent_is_asked_at_the_socket_that_is_named(
    named_by: str,
    socket_path: Path,
    node_document: Path,
    netmgr: Netmgr,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    option: tuple[str, ...] = ()
    if named_by == "option":
        option = ("--socket", str(socket_path))
        monkeypatch.setenv("NETMGR_SOCKET", "/nowhere")
    elif named_by == "variable":
        monkeypatch.setenv("NETMGR_SOCKET", str(socket_path))
        node_document.write_text("run_dir: /nowhere\n")
    else:
        node_document.write_text(f"cni: off\nrun_dir: {socket_path.parent}\nunknown: 1\n")
    with agent(socket_path, canned(snapshot(pods=1))):
        code, out, err = netmgr("node", "status", "-o", "json", *option)
    assert code == 0, err
    assert json.loads(out)["node"] == "node-1"


@pytest.mark.parametrize(
    ("command", "document", "why"),
    [
        *(
            (command, "", "is the default, since {} cannot be read (No such file or directory)")
            for command in COMMANDS
        ),
        *(
            ("node status", document, "is the default, since {} names no run_dir")
            for document in ("cni: off\n", "run_dir: [", "run_dir: here\n", "- a list\n")
        ),
        ("node status", "run_dir: /nowhere\n", "/nowhere/ledger.sock is in the run_dir of {}"),
    ],
)
def test_an_error_says_where_was_looked_and_why(
    command: str, document: str, why: str, node_document: Path, netmgr: Netmgr
) -> None:
    if document:
        node_document.write_text(document)
    code, _, err = netmgr(*command.split())
    assert code == 1
    looked_at = "/nowhere/ledger.sock" if "nowhere" in document else asking.DEFAULT_SOCKET
    assert f"{looked_at}: no agent answers there" in err
    assert why.format(node_document) in err
    assert "--socket or NETMGR_SOCKET names another" in err


def test_an_exporter_is_given_the_same_socket(
    node_document: Path, netmgr: Netmgr, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_document.write_text("run_dir: /run/other\n")
    started: list[list[str]] = []

    def execve(_: str, command: list[str], __: object) -> None:
        started.append(command)

    monkeypatch.setattr("os.execve", execve)
    # The tests after this one need theirs.
    monkeypatch.setattr("netmgr.kernel.capabilities.keep", lambda _: None)
    netmgr("exporter")
    assert "--socket=/run/other/ledger.sock" in started[0]
