"""Every command of the command line, in every output format that it offers.

`CALLS` must name every command that has formats; a format that is added to a command is run without
a line here. Where a command has formats for programs, all of them say the same.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from netmgr.cli.main import command_line, main
from tests import commands
from tests.builders import NODE_KEYS, PRICES, SMALL_PLAN
from tests.docs.blocks import ROOT as SOURCE
from tests.fakes import budgets_server
from tests.lab import planned
from tests.lab.world import World

FORMAT = "output"
"""The parameter that says in which form a command answers."""

PLAN = SMALL_PLAN
CHANGED = PLAN.replace("nodes: 500, pods_per_node: 31", "nodes: 900, pods_per_node: 33") + (
    "  gamma:\n    services: {length: 20}\n    node_pools:\n      cpu: {nodes: 3}\n"
)
"""Adds a cluster, and would renumber another."""

WITH_PLAN: dict[str, tuple[str, ...]] = {
    "plan diff": ("", "--file changed.yaml", "--file unlocked.yaml"),
    "plan check": (
        "",
        "--file changed.yaml",
        "--file unlocked.yaml",
        "--all",
        "--documents machines",
    ),
    "plan show": ("", "--tree"),
    "plan grow": ("alpha --nodes 600", "alpha --nodes 1500", "beta --nodes 100"),
    "plan explain": ("10.0.0.17", "8.8.8.8"),
    "plan reach": ("",),
    "plan lock": ("", "--file unlocked.yaml"),
    "plan release": ("beta --file left.yaml",),
    "plan adopt": ("others.txt",),
}
WITH_MACHINE: dict[str, tuple[str, ...]] = {
    "doctor": ("--config missing.yaml",),
    "preflight": ("--config {observer}",),
    "connectivity-test": ("--kubeconfig {cluster}",),
    "version": ("",),
}
WITH_LAB: dict[str, tuple[str, ...]] = {
    "status": ("--socket {node}",),
    "node status": ("--socket {node}", "--socket {nat}"),
    "node pods": ("--socket {node}",),
    "node explain": ("203.0.113.1 --socket {node}",),
    "node audit": ("--socket {node}",),
    "nat status": ("--socket {nat}",),
    "budgets show": ("--server {budgets} --credentials {credentials}",),
    "usage": (
        "--prices {prices} --socket {node}",
        "--by pod --by hour --prices {prices} --socket {node}",
        "--cluster --prices {prices} --kubeconfig {cluster}",
    ),
}
ANEW = {"connectivity-test"}
"""Commands that do something new at each call, so that no two answers are the same."""

CALLS = WITH_PLAN | WITH_MACHINE | WITH_LAB
"""Command: the arguments it is run with, once for every format."""


def _documented() -> dict[str, set[str]]:
    """The keys of each command's JSON, as its page says."""
    page = (SOURCE / "docs" / "reference" / "json.md").read_text()
    rows = re.findall(r"(?m)^\| (`.*`) \| (`.*`) \|$", page)
    return {
        command: {"version", *re.findall("`(.*?)`", keys)}
        for names, keys in rows
        for command in re.findall("`(.*?)`", names)
    }


KEYS = _documented()

Run = Callable[[str], tuple[int, str, str]]


@dataclass(frozen=True)
class Formats:
    """What one command offers."""

    command: str
    option: str
    values: tuple[str, ...]


def offered() -> Iterator[Formats]:
    for path, command in commands.walk(command_line()):
        for parameter in command.params:
            kind = parameter.type_descriptor.annotation if parameter.name == FORMAT else None
            if isinstance(kind, type) and issubclass(kind, StrEnum):
                values = tuple(value.value for value in kind)
                yield Formats(path.removeprefix("netmgr "), f"--{FORMAT}", values)


OFFERED = tuple(offered())


def _cases() -> Iterator[Any]:
    for each in OFFERED:
        for arguments in CALLS.get(each.command, ()):
            marks = [pytest.mark.root] if each.command not in WITH_PLAN else []
            yield pytest.param(
                each, arguments, id=f"{each.command} {arguments}".strip(), marks=marks
            )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def command(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["netmgr", *line.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capfd.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return command


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans: locked, locked before it was changed, without a lock, and one that a cluster left;
    beside them machines' documents, and networks of others.
    """
    folder = tmp_path_factory.mktemp("plans")
    for name in ("plan", "changed", "unlocked", "left"):
        (folder / f"{name}.yaml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)

        def succeeds(line: str) -> None:
            patch.setattr(sys, "argv", ["netmgr", "plan", *line.split()])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code

        for name in ("plan", "changed", "left"):
            succeeds(f"lock --yes --file {name}.yaml")
        (folder / "left.yaml").write_text(PLAN[: PLAN.index("  beta:")])
        succeeds("lock --yes --file left.yaml")
        succeeds("render machines --to machines")
    (folder / "changed.yaml").write_text(CHANGED)
    (folder / "others.txt").write_text("corp 10.8.0.0/16\n")
    return folder


class NoNodes(BaseHTTPRequestHandler):
    """An API server that has nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"metadata": {}, "items": []}')


@pytest.fixture(scope="module")
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a cluster without Nodes."""
    with HTTPServer(("127.0.0.1", 0), NoNodes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = tmp_path_factory.mktemp("cluster") / "config"
        url = f"http://127.0.0.1:{server.server_address[1]}"
        parts = {"cluster": {"server": url}, "user": {}, "context": {"cluster": "e", "user": "e"}}
        document = {f"{key}s": [{"name": "e", key: value}] for key, value in parts.items()}
        config.write_text(json.dumps(document | {"current-context": "e"}))
        yield config
        server.shutdown()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, empty_cluster: Path) -> Iterator[dict[str, str]]:
    """A hub and two spokes, and what the arguments in `CALLS` leave open."""
    # Of a node without pods of netmgr's, where nothing is probed.
    observer = tmp_path_factory.mktemp("observer") / "node.yaml"
    observer.write_text(yaml.safe_dump(NODE_KEYS | {"node": {"name": "n"}, "cni": False}))
    authority = tmp_path_factory.mktemp("budgets")
    prices = tmp_path_factory.mktemp("prices") / "prices.yaml"
    prices.write_text(PRICES)
    with (
        World(planned.network(2, 1, 2), name=f"formats-{os.getpid()}") as world,
        budgets_server.leading(authority) as leader,
    ):
        yield {
            "node": str(world.node("spoke-1-cpu-0").ledger_socket),
            "nat": str(world.node("nat-0.spoke-1").ledger_socket),
            "observer": str(observer),
            "cluster": str(empty_cluster),
            "budgets": leader.address,
            "credentials": str(leader.credentials),
            "prices": str(prices),
        }


def test_every_command_with_output_formats_is_run_in_all_of_them() -> None:
    assert {each.command for each in OFFERED} == CALLS.keys()
    assert {value for each in OFFERED for value in each.values} == CHECKS.keys()
    answering = {each.command for each in OFFERED if "json" in each.values}
    assert answering == {command.partition(" --")[0] for command in KEYS}


@pytest.mark.slow
@pytest.mark.parametrize(("offer", "arguments"), tuple(_cases()))
def test_every_output_format_is_well_formed_and_says_the_same(
    offer: Formats,
    arguments: str,
    run: Run,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if offer.command in WITH_PLAN:
        monkeypatch.chdir(request.getfixturevalue("plans"))
    else:
        arguments = arguments.format(**request.getfixturevalue("lab"))
    codes, said = set(), {}
    for value in offer.values:
        code, out, err = run(f"{offer.command} {arguments} {offer.option} {value}")
        assert out, err
        said[value] = CHECKS[value](out)
        codes.add(code)
    assert len(codes) == 1
    if "json" in said:
        option = next((word for word in arguments.split() if f"{offer.command} {word}" in KEYS), "")
        assert KEYS[f"{offer.command} {option}".strip()] <= said["json"].keys()
    if "yaml" in said and offer.command not in ANEW:
        is_live = offer.command in WITH_LAB
        one, other = (
            _numberless(said[each]) if is_live else said[each] for each in ("yaml", "json")
        )
        assert one == other
    if "csv" in said:
        assert len(said["csv"]) == 1 + len(said["json"]["rows"])


def _numberless(document: Any) -> Any:
    """Two answers of an agent differ in numbers alone: each is what it counts at that moment."""
    match document:
        case dict():
            return {key: _numberless(value) for key, value in document.items()}
        case list():
            return [_numberless(value) for value in document]
        case int() | float() if not isinstance(document, bool):
            return 0
        case _:
            return document


def _table(text: str) -> str:
    assert "Traceback" not in text
    return text


def _csv(text: str) -> list[list[str]]:
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    return rows


CHECKS: dict[str, Callable[[str], Any]] = {
    "table": _table,
    "json": json.loads,
    "yaml": yaml.safe_load,
    "csv": _csv,
    "focus": _csv,
}
