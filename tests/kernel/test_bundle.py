"""`netmgr bundle` beside a running agent, a dead one, and without anything."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from tests.kernel.namespaces import inside
from tests.kernel.spending import Spender
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.world import World

pytestmark = [pytest.mark.root, pytest.mark.slow]

NewPod = Callable[..., Sandbox]
PARTS = {
    "versions.json",
    "doctor.json",
    "documents/node.yaml",
    "documents/plugin.json",
    "documents/networks/10-netmgr.conflist",
    "agent/snapshot.json",
    "agent/pods.json",
    "agent/audit.json",
    "kernel/nftables.txt",
    "kernel/links.json",
    "kernel/routes.json",
    "kernel/sysctls.txt",
    "state/ipam.sqlite.json",
    "state/ledger.sqlite.json",
    "state/files.txt",
    "logs/agent.log",
}


def bundle(node: LabNode, *options: str) -> dict[str, str]:
    """The parts by name, through standard output."""
    command = ["nsenter", f"--net={node.namespace}", sys.executable, "-m", "netmgr", "bundle"]
    command += ["-c", str(node.document), "--log", str(node.directory / "agent.log"), "--to", "-"]
    done = subprocess.run([*command, *options], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read().decode()
    return found


def state_of(node: LabNode) -> list[str]:
    commands = (["nft", "-s", "list", "ruleset"], ["ip", "route", "show", "table", "all"])
    return [inside(node.namespace, *command) for command in commands]


def test_it_has_everything_and_changes_nothing(
    world: World, node: LabNode, new_pod: NewPod, backend: Backend
) -> None:
    pod = new_pod("node-1")
    Spender(world, node, pod).send()
    before = state_of(node)
    found = bundle(node)
    assert state_of(node) == before
    legacy = {f"kernel/{name}-save.txt" for name in ("iptables-legacy", "ip6tables-legacy")}
    assert {name for name in found if name != "logs/netmgr-agent.log"} == (
        PARTS | (legacy if backend is Backend.IPTABLES_LEGACY else set())
    )
    assert [name for name, text in found.items() if text.startswith("cannot be")] == []
    assert pod.pod.name in found["agent/pods.json"]
    assert json.loads(found["state/ledger.sqlite.json"])["quick_check"] == "ok"
    assert json.loads(found["versions.json"])["netmgr"]
    aliases = [link["alias"] for link in json.loads(found["kernel/links.json"])["links"]]
    assert any(pod.pod.name in alias for alias in aliases)
    rules = "kernel/iptables-legacy-save.txt" if backend is not Backend.NFTABLES else ""
    assert "netmgr" in found[rules or "kernel/nftables.txt"]


def test_redacted_it_names_no_pod_not_even_one_that_is_gone(node: LabNode, new_pod: NewPod) -> None:
    gone, there = node.add("secret-gone", "secret-team"), new_pod("node-1")
    node.runtime.delete(gone)
    found = bundle(node, "--redact")
    text = "\n".join(found.values())
    for name in ("secret-gone", "secret-team", there.pod.name):
        assert name not in text, name
    pods = json.loads(found["agent/pods.json"])
    assert {row["pod"][:5] for row in pods["attachments"]} == {"name-"}
    # One name is one pseudonym in all parts.
    (shown,) = {row["pod"] for row in pods["attachments"]}
    assert shown in found["kernel/links.json"]


@pytest.fixture
def dead(node: LabNode) -> Iterator[LabNode]:
    node.kill_agent()
    yield node
    node.start_until_ready()


def test_without_an_agent_the_rest_is_there_and_says_why(dead: LabNode) -> None:
    found = bundle(dead)
    assert found["agent/snapshot.json"].startswith("cannot be collected: ")
    assert "no agent answers" in found["agent/snapshot.json"]
    assert json.loads(found["state/ipam.sqlite.json"])["quick_check"] == "ok"
    assert found["documents/node.yaml"] == dead.document.read_text()


def test_it_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    target = tmp_path / "node.tar.gz"
    command = [sys.executable, "-m", "netmgr", "bundle", "-c", "missing.yaml", "--to", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "Look through it" in done.stdout
    assert target.stat().st_mode & 0o777 == 0o600
