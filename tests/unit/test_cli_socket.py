"""Which socket a command asks, and what it says where no agent answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netmgr.cli import asking
from netmgr.cli.main import command_line
from netmgr.model import Traffic
from tests import commands
from tests.fakes.agent_socket import agent, canned, snapshot


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Commands take the path as a default when they are imported: never that of a test."""
    commands.whole()


@pytest.fixture(autouse=True)
def node_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "node.yaml"
    monkeypatch.setattr(asking, "NODE_DOCUMENT", path)
    monkeypatch.setattr(asking, "DEFAULT_SOCKET", tmp_path / "ledger.sock")
    for variable in ("NETMGR_SOCKET", "NETMGR_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    return path


def test_every_command_that_asks_an_agent_takes_its_socket_from_the_environment():
    sockets = {
        line: option.envvar
        for line, command in commands.walk(command_line())
        for option in command.params
        if "--socket" in option.opts
    }
    asking_commands = {"netmgr node top", "netmgr nat status", "netmgr usage", "netmgr exporter"}
    assert asking_commands < sockets.keys()
    assert set(sockets.values()) == {"NETMGR_SOCKET"}


COMMANDS = ("node status", "node pods", "node explain 10.0.0.1", "node audit", "nat status")


@pytest.mark.parametrize("named_by", ["option", "variable", "node.yaml", "NETMGR_CONFIG"])
def test_the_agent_is_asked_at_the_socket_that_is_named(
    named_by, socket_path, node_document, netmgr, monkeypatch
):
    option: tuple[str, ...] = ()
    if named_by == "option":
        option = ("--socket", str(socket_path))
        monkeypatch.setenv("NETMGR_SOCKET", "/nowhere")
    elif named_by == "variable":
        monkeypatch.setenv("NETMGR_SOCKET", str(socket_path))
        node_document.write_text("run_dir: /nowhere\n")
    else:
        if named_by == "NETMGR_CONFIG":
            monkeypatch.setattr(asking, "NODE_DOCUMENT", Path("/nowhere"))
            monkeypatch.setenv("NETMGR_CONFIG", str(node_document))
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
def test_an_error_says_where_was_looked_and_why(command, document, why, node_document, netmgr):
    if document:
        node_document.write_text(document)
    code, _, err = netmgr(*command.split())
    assert code == 1
    looked_at = "/nowhere/ledger.sock" if "nowhere" in document else asking.DEFAULT_SOCKET
    assert f"{looked_at}: no agent answers there" in err
    assert why.format(node_document) in err
    assert "--socket or NETMGR_SOCKET names another" in err


HOSTILE = "\x1b[2J\x9b31m\x7f\u202e\nforged"


def hostile(value: Any) -> Any:
    """The same document, with what a terminal would obey in each of its texts but classes'."""
    if isinstance(value, str):
        return value if value in tuple(Traffic) else value + HOSTILE
    if isinstance(value, list):
        return [hostile(each) for each in value]
    return {key: hostile(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("command", ["node status", "node pods", "node audit", "nat status"])
def test_nothing_that_a_socket_says_reaches_the_terminal_as_a_command(command, socket_path, netmgr):
    attached = {"namespace": "team", "pod": "new", "addresses": ["10.0.0.1"], "host_link": "nm0"}
    links = [
        {"link": "nm0", "pods": ["team/new"], "direction": "out", "rest": -1}
        | {"carried": 1, "headers": 1, "counted": {"internet-out": 1}}
    ]
    forward = [{"traffic": "internet-in", "forwarded": 1, "attributed": 0, "unattributed": 1}]
    document = {**snapshot(pods=1), "reason": "none", "ready": False, "attachments": [attached]}
    document |= {"forward": forward, "links": links}
    with agent(socket_path, canned(hostile(document))):
        _, out, err = netmgr(*command.split(), "--socket", str(socket_path))
    assert "forged" in out
    assert all(character.isprintable() for character in (out + err).replace("\n", ""))
    assert not any(line.startswith("forged") for line in out.splitlines())


def test_nor_does_what_it_refuses(socket_path, netmgr):
    with agent(socket_path, canned({"error": HOSTILE})):
        code, _, err = netmgr("node", "status", "--socket", str(socket_path))
    assert (code, "forged" in err) == (2, True)
    assert all(character.isprintable() for character in err.replace("\n", ""))


def test_a_name_of_any_length_leaves_a_table_readable(socket_path, netmgr):
    name = "c" * 200 + "d" * 55
    attached = {"namespace": "-", "pod": name, "addresses": ["10.0.0.1"], "host_link": "nm0"}
    document = {**snapshot(pods=1), "attachments": [attached]}
    with agent(socket_path, canned(document)):
        _, table, _ = netmgr("node", "pods", "--socket", str(socket_path))
        _, whole, _ = netmgr("node", "pods", "-o", "json", "--socket", str(socket_path))
    assert max(map(len, table.splitlines())) < 160
    assert f"ccc…{'d' * 20} " in table
    assert json.loads(whole)["attachments"][0]["pod"] == name


def test_an_exporter_is_given_the_same_socket(node_document, netmgr, monkeypatch):
    node_document.write_text("run_dir: /run/other\n")
    started: list[list[str]] = []

    def execve(_: str, command: list[str], __: object) -> None:
        started.append(command)

    monkeypatch.setattr("os.execve", execve)
    # The tests after this one need theirs.
    monkeypatch.setattr("netmgr.kernel.capabilities.keep", lambda _: None)
    netmgr("exporter")
    assert "--socket=/run/other/ledger.sock" in started[0]
