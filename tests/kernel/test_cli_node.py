"""`netmgr node` as an operator meets it, beside a real agent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.lab.exchange import End, datagrams
from tests.lab.nodes import LabNode
from tests.lab.runtime import Sandbox
from tests.lab.topology import INTERNET
from tests.lab.world import World

pytestmark = pytest.mark.root

NewPod = Callable[..., Sandbox]
PAYLOADS = [1000] * 50
IP_BYTES = 50 * (1000 + 8 + 20)


@pytest.fixture(scope="module", params=[Backend.NFTABLES], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """The answers do not depend on what holds the rules."""
    return request.param


def netmgr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netmgr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def answer(node: LabNode, *arguments: str) -> str:
    done = netmgr("node", *arguments, "--socket", str(node.ledger_socket))
    assert done.returncode == 0, done.stderr
    return done.stdout


def send(world: World, sandbox: Sandbox) -> None:
    family = Family.V4
    datagrams(
        End(sandbox.netns, sandbox.address(family)),
        End(world.internet, INTERNET[family]),
        PAYLOADS,
        PAYLOADS,
    )


def test_status_shows_readiness_addresses_and_traffic(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    send(world, new_pod("node-1"))
    shown = answer(node, "status")
    assert "node node-1 is ready" in shown
    assert "nftables" in shown
    for word in ("allocated", "cooldown", "free", "ipv4", "ipv6", "research"):
        assert word in shown
    document = json.loads(answer(node, "status", "-o", "json"))
    assert document["ready"] is True
    assert {pool["family"] for pool in document["pool"]} == {"ipv4", "ipv6"}


def test_pods_are_listed_with_addresses_and_bytes(
    world: World, node: LabNode, new_pod: NewPod
) -> None:
    sandbox = new_pod("node-1")
    send(world, sandbox)
    row = next(line for line in answer(node, "pods").splitlines() if sandbox.pod.name in line)
    assert str(sandbox.address(Family.V4)) in row
    assert "51.4 kB" in row
    document = json.loads(answer(node, "pods", "-o", "json"))
    sent = [
        t["bytes"]
        for t in document["pods"]
        if (t["pod"], t["traffic"]) == (sandbox.pod.name, "internet-out")
    ]
    assert sent == [IP_BYTES]
    assert sandbox.container_id in {item["container_id"] for item in document["attachments"]}


def test_explain_names_the_key_of_the_document(node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod("node-1")
    held = answer(node, "explain", str(sandbox.address(Family.V4)))
    assert sandbox.pod.name in held
    assert "ranges[0] of node.yaml" in held
    assert f"{node.document}:" in "".join(held.split())
    told = json.loads(answer(node, "explain", str(sandbox.address(Family.V4)), "-o", "json"))
    lines = node.document.read_text().splitlines()
    number = lines.index("ranges:") + 2
    assert told["where"] == f"{node.document}:{number}: ranges[0]"
    internet = json.loads(answer(node, "explain", "203.0.113.1", "-o", "json"))
    assert (internet["role"], internet["counted"], internet["masqueraded"]) == (
        "internet",
        True,
        True,
    )


def test_top_shows_who_uses_the_internet_now(world: World, node: LabNode, new_pod: NewPod) -> None:
    sandbox = new_pod("node-1")
    command = [sys.executable, "-m", "netmgr", "node", "top", "--interval", "3", "--count", "2"]
    command += ["--socket", str(node.ledger_socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert "namespace/pod" in top.stdout.readline()  # of the first table
        send(world, sandbox)
        shown, _ = top.communicate(timeout=30)
    assert top.returncode == 0
    rows = [line for line in shown.splitlines() if sandbox.pod.name in line]
    assert any(row.split()[2] == row.split()[4] == "kB" for row in rows), shown  # the rates


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", "10.0.0.300"), "'10.0.0.300' is not an IP address"),
        (("status", "--socket", "/run/no-such.sock"), "/run/no-such.sock: no agent answers there"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_no_traceback(
    node: LabNode, arguments: tuple[str, ...], message: str
) -> None:
    socket = () if "--socket" in arguments else ("--socket", str(node.ledger_socket))
    done = netmgr("node", *arguments, *socket)
    assert done.returncode == 1
    assert done.stderr.startswith("netmgr: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_document_can_be_checked_without_running_anything(node: LabNode, tmp_path: Path) -> None:
    assert (
        netmgr("agent", "--check", "--config", str(node.document)).stdout
        == f"{node.document}: valid\n"
    )
    wrong = tmp_path / "node.yaml"
    wrong.write_text(node.document.read_text() + "masquerad: true\n")
    done = netmgr("agent", "--check", "--config", str(wrong))
    assert done.returncode == 2
    assert "masquerad: unknown key" in done.stderr
