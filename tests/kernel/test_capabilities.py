"""Agent and exporter give up the capabilities that they need no longer, whoever starts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from netmgr.api.client import read_snapshot
from netmgr.documents.node import Backend
from netmgr.errors import NetmgrError
from netmgr.kernel.capabilities import Capability
from netmgr.rules.choose import FILE_NAME
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.conftest import EVERY_WAY_OF_COUNTING
from tests.lab.nodes import LabNode
from tests.lab.unprivileged import NOBODY
from tests.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.root, pytest.mark.slow]

EVERY_ROLE = {Capability.NET_ADMIN, Capability.NET_RAW, Capability.CHOWN}
WIRING = {*EVERY_ROLE, Capability.SYS_ADMIN, Capability.SYS_PTRACE}
LEGACY_TABLES = {Capability.SYS_MODULE}
OBSERVER = {"cni": False}
ROUTER = {
    "role": "hub-router",
    "sites": [
        {"name": "hub", "prefixes": ["10.200.0.0/16"]},
        {"name": "a", "prefixes": ["10.0.0.0/9"]},
    ],
}


WORLD = {"nodes": 1, "exporters": False}


def sets_of(process: int) -> set[tuple[str, str]]:
    """Each set of capabilities that a thread has, as the kernel shows it."""
    found = set()
    for status in Path(f"/proc/{process}/task").glob("*/status"):
        try:
            text = status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has ended
        lines = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
        assert lines["NoNewPrivs"] == "1"
        found |= {(name, lines[name]) for name in ("CapEff", "CapPrm", "CapBnd")}
        found |= {(name, lines[name]) for name in ("CapInh", "CapAmb") if int(lines[name], 16)}
    return found


def exactly(kept: set[Capability]) -> set[tuple[str, str]]:
    mask = f"{sum(1 << capability for capability in kept):016x}"
    return {(name, mask) for name in ("CapEff", "CapPrm", "CapBnd")}


@contextmanager
def agent_of(node: LabNode, document: dict[str, Any]) -> Iterator[int]:
    """An agent in the node's namespace with another document, as root; its process."""
    node.stop_agent()
    given = yaml.safe_load(node.document.read_text())
    folder = node.directory / "other"
    folder.mkdir(exist_ok=True)
    own = {"state_dir": str(folder / "state"), "run_dir": str(folder / "run")}
    kept = {key: given[key] for key in ("apiVersion", "kind", "node", "reader_group", "backend")}
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump({**kept, **own, **document}))
    command = ["nsenter", f"--net={node.namespace}", sys.executable, "-m", "netmgr", "agent"]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen([*command, "--config", str(path)], stdout=log, stderr=log)
    try:
        ledger = folder / "run" / "ledger.sock"
        eventually(lambda: answers(ledger), (folder / "agent.log").read_text)
        yield process.pid
    finally:
        process.terminate()
        process.wait(PATIENCE)
        shutil.rmtree(folder)
        node.start_until_ready()


def answers(ledger: Path) -> bool:
    with suppress(NetmgrError):
        return bool(read_snapshot(ledger))
    return False


def process_of(node: LabNode) -> int:
    process = node.agent_pid()
    assert process is not None
    return process


@pytest.mark.parametrize("backend", EVERY_WAY_OF_COUNTING, indirect=True, ids=str)
def test_an_agent_that_wires_pods_keeps_what_entering_them_takes(node: LabNode, backend: Backend):
    """Every thread: those of requests, too, which are made with the first ones."""
    sandbox = node.add("pod")
    node.runtime.check(sandbox)
    kept = WIRING | (LEGACY_TABLES if backend is Backend.IPTABLES_LEGACY else set())
    assert sets_of(process_of(node)) == exactly(kept)
    node.runtime.delete(sandbox)


@pytest.mark.parametrize("document", [OBSERVER, ROUTER], ids=["observer", "router"])
@ONLY_NFTABLES
def test_an_agent_without_pods_of_its_own_cannot_enter_any(
    node: LabNode, document: dict[str, Any], tmp_path: Path
):
    if document is OBSERVER:
        document = {**document, "cni_results_dir": str(tmp_path)}
    with agent_of(node, document) as process:
        assert sets_of(process) == exactly(EVERY_ROLE)


@pytest.mark.parametrize("backend", [Backend.IPTABLES_LEGACY], indirect=True, ids=str)
def test_the_legacy_tables_are_left_before_their_capabilities_are_given_up(node: LabNode):
    node.stop_agent()
    document = node.document.read_text()
    node.document.write_text(document.replace("iptables-legacy", "nftables"))
    node.start_until_ready()
    remembered = node.directory / "state" / FILE_NAME
    assert remembered.read_text().strip() == Backend.NFTABLES
    assert sets_of(process_of(node)) == exactly(WIRING | LEGACY_TABLES)
    node.stop_agent()
    node.start_until_ready()
    assert sets_of(process_of(node)) == exactly(WIRING)
    node.stop_agent()
    node.document.write_text(document)
    node.start_until_ready()


@ONLY_NFTABLES
def test_state_below_another_users_directory_is_still_reached(node: LabNode, tmp_path: Path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    os.chown(private, NOBODY, NOBODY)
    document = {**OBSERVER, "cni_results_dir": str(tmp_path), "state_dir": str(private / "state")}
    with agent_of(node, document) as process:
        assert sets_of(process) == exactly({*EVERY_ROLE, Capability.DAC_OVERRIDE})


def page_of(listen: str) -> str:
    with suppress(OSError):
        return urlopen(f"http://{listen}/metrics", timeout=PATIENCE).read().decode()
    return ""


@pytest.mark.parametrize(
    ("port", "kept"), [(9199, set()), (99, {Capability.NET_BIND_SERVICE})], ids=["high", "low"]
)
@ONLY_NFTABLES
def test_an_exporter_that_root_starts_keeps_at_most_its_port(
    node: LabNode, port: int, kept: set[Capability]
):
    listen = f"127.0.0.1:{port}"
    options = ["--socket", str(node.ledger_socket), "--listen", listen]
    process = subprocess.Popen([sys.executable, "-m", "netmgr", "exporter", *options])
    try:
        eventually(lambda: "netmgr_up 1.0" in page_of(listen))
        assert sets_of(process.pid) == exactly(kept)
    finally:
        process.terminate()
        process.wait(PATIENCE)
