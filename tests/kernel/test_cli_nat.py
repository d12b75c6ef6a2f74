"""`netmgr nat` as an operator meets it, beside a real agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from netmgr.documents.node import Backend
from netmgr.prefixes import Family
from tests.kernel.joined import HUB_ROUTER, Joined, cluster_ip, joined, nat_host, own, vip

pytestmark = pytest.mark.root


V6_ROW = ("ipv6 udp", "1", "64,512", f"[{cluster_ip(Family.V6)}]:4000")


@pytest.fixture(scope="module")
def world() -> Iterator[Joined]:
    with joined(Backend.NFTABLES, f"test-{os.getpid()}-nat-status") as made:
        yield made


def netmgr(world: Joined, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "netmgr",
        *arguments,
        "--socket",
        str(world.agent.ledger_socket),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_status_shows_translations_hits_and_port_budget(world: Joined) -> None:
    world.start(nat_host())
    try:
        for family in Family:
            assert world.send("researcher", "a", family, to=vip(family))
        world.restart(nat_host())
        shown = netmgr(world, "nat", "status")
        assert shown.returncode == 0, shown.stderr
        for words in (
            ("10.100.0.0/28", "10.96.0.0/28", "1", "33 B"),
            ("ipv4 udp", "1", "64,512", "0.0%"),
            V6_ROW,
        ):
            assert any(all(word in line for word in words) for line in shown.stdout.splitlines()), (
                shown.stdout
            )
        told = json.loads(netmgr(world, "nat", "status", "-o", "json").stdout)
        (udp,) = [
            one
            for one in told["nat"]["ports"]
            if (one["family"], one["protocol"]) == ("ipv4", "udp")
        ]
        assert (udp["used"], udp["endpoint"]) == (1, f"{cluster_ip(Family.V4)}:4000")
        explained = netmgr(world, "node", "explain", str(vip(Family.V4))).stdout
        assert f"translated here to {cluster_ip(Family.V4)}" in " ".join(explained.split())
    finally:
        world.stop()


def test_node_status_shows_what_was_dropped_between_spokes(world: Joined) -> None:
    world.start(HUB_ROUTER)
    try:
        quiet = netmgr(world, "node", "status").stdout
        assert "hub-router machine is ready" in quiet
        assert "isolation between spokes: 2 pairs, nothing dropped" in quiet
        assert "result files" not in quiet
        assert world.send("b", "a", Family.V6) == ""
        world.wait_until(lambda: world.drops()["b", "a"] == 1)
        rows = netmgr(world, "node", "status").stdout.splitlines()
        assert ["b", "a", "1", "53", "B"] in [row.split() for row in rows]
    finally:
        world.stop()


def test_a_machine_that_is_no_nat_host_says_so(world: Joined) -> None:
    world.start(HUB_ROUTER)
    try:
        shown = netmgr(world, "nat", "status")
        assert (shown.returncode, shown.stderr) == (
            1,
            "netmgr: this machine is no NAT host; its role is hub-router\n",
        )
        explained = json.loads(
            netmgr(world, "node", "explain", str(own("b", Family.V4)), "-o", "json").stdout
        )
        assert (explained["role"], explained["site"], explained["path"]) == (
            "spoke",
            "b",
            "native",
        )
    finally:
        world.stop()
