"""What a change of backend leaves when the new one cannot be used: the rules that were there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.config import Backend
from netmgr.lab.nodes import LabNode
from netmgr.lab.topology import cluster
from netmgr.lab.world import World
from netmgr.rules.choose import FILE_NAME

pytestmark = pytest.mark.root

OTHER = {Backend.NFTABLES: Backend.IPTABLES_LEGACY, Backend.IPTABLES_LEGACY: Backend.NFTABLES}


@pytest.fixture
def node(backend: Backend, lab_name: str) -> Iterator[LabNode]:
    with World(cluster(nodes=1, pods=0), backend=backend, name=lab_name) as world:
        yield world.nodes[0]


def without_library_of(backend: Backend, directory: Path) -> dict[str, str]:
    """An environment in which the backend's library is found and cannot be loaded."""
    if backend is Backend.NFTABLES:
        (directory / "libnftables.so.1").touch()
    else:
        (directory / "iptc.py").write_text("raise ImportError('libip4tc is damaged')\n", encoding="ascii")
    source = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "LD_LIBRARY_PATH": str(directory), "PYTHONPATH": f"{directory}:{source}"}


def inside(node: LabNode, *command: str) -> str:
    done = programs.run(["nsenter", f"--net={node.namespace}", *command])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def rules(node: LabNode) -> str:
    saved = [inside(node, f"{program}-save") for program in ("iptables-legacy", "ip6tables-legacy")]
    lines = [line for text in saved for line in text.splitlines() if line.startswith("-A")]
    return "\n".join([inside(node, "nft", "-s", "list", "ruleset"), *lines, inside(node, "ipset", "list", "-n")])


def test_the_rules_stay_when_the_new_backend_cannot_be_used(node: LabNode, backend: Backend, tmp_path: Path) -> None:
    node.stop_agent()
    before, other = rules(node), OTHER[backend]
    assert "netmgr" in before
    node.document.write_text(node.document.read_text().replace(f"backend: {backend}", f"backend: {other}"))
    agent = [sys.executable, "-m", "netmgr", "agent", "--config", str(node.document)]
    done = programs.run(
        ["nsenter", f"--net={node.namespace}", *agent], env=without_library_of(other, tmp_path), timeout=30
    )
    assert done.returncode != 0
    assert "apt-get install" in done.stderr.decode()
    assert rules(node) == before
    assert (node.directory / "state" / FILE_NAME).read_text() == f"{backend}\n"
