"""A change of backend: every packet is counted once; where the new one cannot be used, the former
rules stay.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from netmgr import programs
from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from netmgr.rules.choose import FILE_NAME, ONE_TABLE
from tests.kernel.common import grown
from tests.kernel.namespaces import inside
from tests.kernel.spending import HEADERS, OUT, Spender, gaps
from tests.lab.errors import LabError
from tests.lab.exchange import open_socket
from tests.lab.nodes import LabNode
from tests.lab.topology import INTERNET, cluster
from tests.lab.world import World, counted_by
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.alone]

OTHER = {Backend.NFTABLES: Backend.IPTABLES_LEGACY, Backend.IPTABLES_LEGACY: Backend.NFTABLES}
WORLD = {"nodes": 1, "exporters": False}


def without_library_of(backend: Backend, directory: Path) -> dict[str, str]:
    """An environment in which the backend's library is found and cannot be loaded."""
    if backend is Backend.NFTABLES:
        (directory / "libnftables.so.1").touch()
    else:
        (directory / "iptc.py").write_text("raise ImportError('libip4tc is damaged')\n")
    source = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "LD_LIBRARY_PATH": str(directory), "PYTHONPATH": f"{directory}:{source}"}


def rules(node: LabNode) -> str:
    saved = (inside(node.namespace, f"ip{six}tables-legacy-save") for six in ("", "6"))
    lines = [line for text in saved for line in text.splitlines() if line.startswith("-A")]
    nft = inside(node.namespace, "nft", "-s", "list", "ruleset")
    return "\n".join([nft, *lines, inside(node.namespace, "ipset", "list", "-n")])


def test_the_rules_stay_and_count_while_an_uplink_cannot(
    node: LabNode, backend: Backend, spender: Spender
) -> None:
    """Another program's `ingress` is where the programs of the uplink have to be."""
    before, known, sent = rules(node), gaps(node), spender.send()
    node.stop_agent()
    inside(node.namespace, "tc", "qdisc", "add", "dev", "eth0", "ingress")
    with pytest.raises(LabError) as failure:
        change(node, Backend.LINKS)
    assert "netmgr: qdisc add dev eth0 clsact: File exists" in failure.value.details
    assert {*before.splitlines()} <= {*rules(node).splitlines()}
    sent += spender.send()
    inside(node.namespace, "tc", "qdisc", "del", "dev", "eth0", "ingress")
    for successor in (Backend.LINKS, backend):
        node.stop_agent()
        change(node, successor)
        sent += spender.send()
        assert (spender.counted(), gaps(node)) == (sent, known)


def test_the_rules_stay_when_the_new_backend_cannot_be_used(
    node: LabNode, backend: Backend, tmp_path: Path
) -> None:
    node.stop_agent()
    before, other = rules(node), OTHER[backend]
    assert "netmgr" in before
    node.document.write_text(
        node.document.read_text().replace(f"backend: {backend}", f"backend: {other}")
    )
    agent = [sys.executable, "-m", "netmgr", "agent", "--config", str(node.document)]
    done = programs.run(
        ["nsenter", f"--net={node.namespace}", *agent],
        env=without_library_of(other, tmp_path),
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert "apt-get install" in done.stderr.decode()
    assert rules(node) == before
    assert (node.directory / "state" / FILE_NAME).read_text() == f"{backend}\n"


SETTINGS = {
    "accounting": {"min_reading_seconds": 0, "reading_seconds": 300},
    "reconcile_seconds": 1,
}
CHANGES = [
    (Backend.NFTABLES, Backend.IPTABLES_LEGACY),
    (Backend.IPTABLES_LEGACY, Backend.NFTABLES),
    (Backend.IPTABLES_NFT, Backend.NFTABLES),
    (Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT),
    (Backend.NFTABLES, Backend.LINKS),
    (Backend.IPTABLES_LEGACY, Backend.LINKS),
]


def change(node: LabNode, successor: Backend) -> None:
    document = yaml.safe_load(node.document.read_text())
    document |= counted_by(successor, document["accounting"])
    node.document.write_text(yaml.safe_dump(document))
    node.start_until_ready()


class Stream(threading.Thread):
    """Sends without a pause."""

    def __init__(self, world: World, spender: Spender) -> None:
        super().__init__()
        self.world, self.spender = world, spender
        self.sent = 0
        self.over = threading.Event()

    def run(self) -> None:
        with (
            open_socket(self.spender.sandbox.netns, Family.V4, socket.SOCK_DGRAM) as near,
            open_socket(self.world.internet, Family.V4, socket.SOCK_DGRAM) as far,
        ):
            far.bind((str(INTERNET[Family.V4]), 0))
            address, content = far.getsockname(), bytes(1000 - HEADERS)
            while not self.over.wait(0.0005):
                near.sendto(content, address)
                assert far.recv(2000) == content
                self.sent += 1000


@pytest.mark.parametrize(
    ("former", "successor"), CHANGES, ids=[f"{old}-{new}" for old, new in CHANGES]
)
def test_what_a_pod_sent_before_and_after_a_change_is_counted_once(
    lab_name: str, former: Backend, successor: Backend
) -> None:
    """And then, on the way back, while it sends without a pause."""
    room = replace(cluster(nodes=1, pods=20), pods=())
    with World(room, backend=former, name=lab_name, settings=SETTINGS, exporters=False) as world:
        (node,) = world.nodes
        spender = Spender(world, node, node.add("web", "team"))
        are_variants = {former, successor} == {Backend.IPTABLES_LEGACY, Backend.IPTABLES_NFT}
        assert_counted_once(node, spender, successor, is_gap=are_variants)
        assert_losses_are_told(world, node, spender, former, is_gap=are_variants)


def assert_counted_once(
    node: LabNode, spender: Spender, successor: Backend, *, is_gap: bool
) -> None:
    sent = spender.send()
    assert spender.counted() == sent
    before = gaps(node)
    node.kill_agent()
    sent += spender.send()
    change(node, successor)
    sent += spender.send()
    assert spender.counted() == sent
    total = [row["bytes"] for row in node.snapshot()["node_totals"] if row["traffic"] == OUT]
    assert total == [sent]
    assert (gaps(node) != before) is is_gap
    held = rules(node)
    filters = inside(node.namespace, "tc", "filter", "show", "dev", "eth0", "egress")
    has_table, has_sets = "table inet netmgr {" in held, "netmgr-pod-out4" in held
    assert (has_table, "set pod_out4" in held, has_sets, "netmgr leaving" in filters) == (
        successor in ONE_TABLE,
        successor is Backend.NFTABLES,
        successor not in ONE_TABLE,
        successor is Backend.LINKS,
    )
    known = gaps(node)
    node.restart_after_kill()
    assert (spender.counted(), gaps(node)) == (sent, known)


def assert_losses_are_told(
    world: World, node: LabNode, spender: Spender, successor: Backend, *, is_gap: bool
) -> None:
    counted, known = spender.counted(), gaps(node)["removed"]
    stream = Stream(world, spender)
    stream.start()
    began = time.monotonic()
    try:
        time.sleep(0.3)
        node.kill_agent()
        change(node, successor)
        time.sleep(0.3)
    finally:
        stream.over.set()
        stream.join()
    rate = stream.sent / (time.monotonic() - began)
    times, seconds = grown(known, gaps(node)["removed"])
    lost = stream.sent - (spender.counted() - counted)
    sys.stdout.write(
        f"{successor}: {rate / 1000:.0f} packets/s, {lost} bytes lost, {times} gaps, "
        f"{seconds:.4f} s\n"
    )
    assert lost >= 0, "a packet was counted twice"
    if not times:
        assert lost == 0
    assert lost <= 3 * rate * seconds + 1000
    if not is_gap:
        assert seconds < 0.5
