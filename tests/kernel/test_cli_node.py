"""`netmgr node` and `netmgr bundle` as an operator meets them, beside a real agent."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.common import NewPod, kernel_state, netmgr, talk
from tests.kernel.conftest import EITHER_BACKEND, one_of
from tests.lab.nodes import LabNode
from tests.lab.world import World
from tests.waiting import PATIENCE

pytestmark = pytest.mark.root

WORLD = {"nodes": 1, "exporters": False}
backend = one_of([Backend.NFTABLES])


def answer(node: LabNode, *arguments: str) -> str:
    done = netmgr("node", *arguments, "--socket", str(node.ledger_socket))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_and_pods_show_readiness_addresses_and_traffic(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod()
    size = talk(world, sandbox, [1000] * 50, [Family.V4])
    shown = answer(node, "status")
    assert "node node-1 is ready" in shown
    for word in ("nftables", "allocated", "cooldown", "free", "ipv4", "ipv6", "research"):
        assert word in shown
    document = json.loads(answer(node, "status", "-o", "json"))
    assert document["ready"] is True
    assert {pool["family"] for pool in document["pool"]} == {"ipv4", "ipv6"}
    row = next(line for line in answer(node, "pods").splitlines() if sandbox.pod.name in line)
    assert str(sandbox.address(Family.V4)) in row
    assert "51.4 kB" in row
    document = json.loads(answer(node, "pods", "-o", "json"))
    key = (sandbox.pod.name, "internet-out")
    sent = [row["bytes"] for row in document["pods"] if (row["pod"], row["traffic"]) == key]
    assert sent == [size] == [51_400]
    assert sandbox.container_id in {item["container_id"] for item in document["attachments"]}


def test_explain_names_the_key_of_the_document(node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod()
    address = str(sandbox.address(Family.V4))
    held = answer(node, "explain", address)
    assert sandbox.pod.name in held
    assert "ranges[0] of node.yaml" in held
    assert f"{node.document}:" in "".join(held.split())
    told = json.loads(answer(node, "explain", address, "-o", "json"))
    lines = node.document.read_text().splitlines()
    number = lines.index("ranges:") + 2
    assert told["where"] == f"{node.document}:{number}: ranges[0]"
    internet = json.loads(answer(node, "explain", "203.0.113.1", "-o", "json"))
    assert internet["role"] == "internet"
    assert internet["counted"] is internet["masqueraded"] is True


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
    done = subprocess.run([*command, *options], capture_output=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        parts = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            parts[entry.name.partition("/")[2]] = file.read().decode()
    lacking = [name for name, text in parts.items() if text.startswith("cannot be collected: ")]
    said = [line.partition(":")[0] for line in done.stderr.decode().splitlines()]
    assert said == [f"without {name}" for name in lacking]
    return parts


@pytest.mark.slow
@EITHER_BACKEND
def test_it_has_everything_and_changes_nothing(
    world: World, node: LabNode, new_pod: NewPod, backend: Backend
) -> None:
    pod = new_pod()
    talk(world, pod)
    before = kernel_state(node.namespace)
    parts = bundle(node)
    assert kernel_state(node.namespace) == before
    legacy = {f"kernel/{name}-save.txt" for name in ("iptables-legacy", "ip6tables-legacy")}
    assert {name for name in parts if name != "logs/netmgr-agent.log"} == (
        PARTS | (legacy if backend is Backend.IPTABLES_LEGACY else set())
    )
    assert [name for name, text in parts.items() if text.startswith("cannot be")] == []
    assert pod.pod.name in parts["agent/pods.json"]
    assert json.loads(parts["state/ledger.sqlite.json"])["quick_check"] == "ok"
    assert json.loads(parts["versions.json"])["netmgr"]
    links = json.loads(parts["kernel/links.json"])["links"]
    aliases = [dict(link["attrs"]).get("IFLA_IFALIAS", "") for link in links]
    assert any(pod.pod.name in alias for alias in aliases)
    rules = "kernel/iptables-legacy-save.txt" if backend is not Backend.NFTABLES else ""
    assert "netmgr" in parts[rules or "kernel/nftables.txt"]


@pytest.mark.slow
def test_redacted_it_names_no_pod_not_even_one_that_is_gone(node: LabNode, new_pod: NewPod) -> None:
    gone, there = node.add("secret-gone", "secret-team"), new_pod()
    node.runtime.delete(gone)
    parts = bundle(node, "--redact")
    text = "\n".join(parts.values())
    for name in ("secret-gone", "secret-team", there.pod.name):
        assert name not in text, name
    pods = json.loads(parts["agent/pods.json"])
    assert {row["pod"][:5] for row in pods["attachments"]} == {"name-"}
    # One name is one pseudonym in all parts.
    (shown,) = {row["pod"] for row in pods["attachments"]}
    assert shown in parts["kernel/links.json"]


@pytest.mark.slow
def test_without_an_agent_the_rest_is_there_and_says_why(node: LabNode) -> None:
    node.kill_agent()
    parts = bundle(node)
    node.start_until_ready()
    assert parts["agent/snapshot.json"].startswith("cannot be collected: ")
    assert "no agent answers" in parts["agent/snapshot.json"]
    assert json.loads(parts["state/ipam.sqlite.json"])["quick_check"] == "ok"
    assert parts["documents/node.yaml"] == node.document.read_text()
