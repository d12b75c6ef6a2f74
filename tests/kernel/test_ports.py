"""Ports of a NAT host in use: as many as the kernel holds, toward the endpoint that has most."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netmgr import programs
from netmgr.kernel import conntrack, netns
from netmgr.kernel.conntrack import Busiest
from netmgr.prefixes import Address, Family
from tests.kernel.usable import wait_until_usable
from tests.lab import named_netns

pytestmark = pytest.mark.root

TRANSLATING = b"""
add table inet t
add chain inet t c { type nat hook postrouting priority 100; }
add rule inet t c ip saddr 203.0.113.5 snat to 203.0.113.7
add rule inet t c ip6 saddr 2001:db8::5 snat to 2001:db8::7
"""
CLIENT = {Family.V4: "203.0.113.5", Family.V6: "2001:db8::5"}
OWN = {Family.V4: Address.parse("203.0.113.7"), Family.V6: Address.parse("2001:db8::7")}
ENDPOINT = {Family.V4: "203.0.113.9", Family.V6: "2001:db8::9"}
SOCKET = {Family.V4: socket.AF_INET, Family.V6: socket.AF_INET6}
SHOWN = {Family.V4: "203.0.113.9:{}", Family.V6: "[2001:db8::9]:{}"}
NOBODY = Busiest(0, "")


@pytest.fixture
def _inside() -> Iterator[None]:
    """The test's thread in a namespace of its own, where what the client sends comes from OWN."""
    path = Path(f"/run/netns/ports-{os.getpid()}")
    named_netns.create(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with netns.entered(descriptor):
            commands = ["link set lo up"]
            for family in Family:
                local = (CLIENT[family], str(OWN[family]), ENDPOINT[family])
                commands += [f"address add {address}/{family.width} dev lo" for address in local]
            for command in commands:
                assert programs.run(["ip", *command.split()]).returncode == 0
            assert programs.run(["nft", "-f", "-"], stdin=TRANSLATING).returncode == 0
            wait_until_usable()
            yield
    finally:
        os.close(descriptor)
        named_netns.delete(path)


def send(family: Family, count: int, port: int, source: str = "") -> None:
    with ExitStack() as closing:  # all at once, so that none gets another's port
        for _ in range(count):
            sender = closing.enter_context(socket.socket(SOCKET[family], socket.SOCK_DGRAM))
            sender.bind((source or CLIENT[family], 0))
            sender.sendto(b"x", (ENDPOINT[family], port))


@pytest.mark.usefixtures("_inside")
@pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
@pytest.mark.parametrize(
    "tuple_bytes", [conntrack._TUPLE_BYTES, dict.fromkeys(Family, 0)], ids=["as known", "otherwise"]
)
def test_the_busiest_endpoint_counts_and_nothing_that_is_not_translated(
    monkeypatch: pytest.MonkeyPatch, tuple_bytes: dict[Family, int], family: Family
) -> None:
    monkeypatch.setattr(conntrack, "_TUPLE_BYTES", tuple_bytes)
    assert conntrack.busiest([OWN[family]]) == {
        (family, protocol): NOBODY for protocol in ("tcp", "udp", "sctp")
    }
    send(family, 20, port=53)
    send(family, 30, port=80)
    send(family, 50, port=90, source=ENDPOINT[family])
    found = conntrack.busiest([OWN[family]])
    assert found[family, "udp"] == Busiest(30, SHOWN[family].format(80))
    assert found[family, "tcp"] == NOBODY
    with socket.create_server((ENDPOINT[family], 0), family=SOCKET[family]) as server:
        port = server.getsockname()[1]
        with socket.create_connection((ENDPOINT[family], port), source_address=(CLIENT[family], 0)):
            assert conntrack.busiest([OWN[family]])[family, "tcp"] == Busiest(
                1, SHOWN[family].format(port)
            )
    stranger = Address(family, OWN[family].value + 1)
    assert conntrack.busiest([stranger])[family, "udp"] == NOBODY


@pytest.mark.usefixtures("_inside")
def test_no_connections_are_no_fault() -> None:
    assert conntrack.busiest([]) == {}
    assert set(conntrack.busiest(OWN.values()).values()) == {NOBODY}
