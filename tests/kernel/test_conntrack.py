"""Which addresses the kernel's connection table still names, by either way of asking it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from netmgr import programs
from netmgr.kernel import conntrack
from netmgr.prefixes import Address
from tests.kernel.common import own_network
from tests.kernel.usable import wait_until_usable
from tests.lab import wiring

pytestmark = pytest.mark.root

TRACKING = b"""
add table inet t
add chain inet t c { type filter hook output priority 0; }
add rule inet t c ct state new accept
"""
NAMED = {
    Address.parse(text) for text in ("203.0.113.5", "203.0.113.7", "2001:db8::5", "2001:db8::7")
}
STRANGERS = {Address.parse(text) for text in ("203.0.113.9", "2001:db8::9")}


@pytest.fixture
def _inside() -> Iterator[None]:
    """The test's thread in a namespace of its own, where all of NAMED are local and connections are
    tracked.
    """
    commands = ["link set lo up", *(f"address add {a.prefix} dev lo" for a in sorted(NAMED))]
    with own_network("conntrack") as path, wiring.inside(path):
        for command in commands:
            assert programs.run(["ip", *command.split()]).returncode == 0
        assert programs.run(["nft", "-f", "-"], stdin=TRACKING).returncode == 0
        wait_until_usable()
        yield


def connect(family: socket.AddressFamily, source: str, target: str) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        sender.sendto(b"x", (target, 9))


@pytest.mark.usefixtures("_inside")
def test_the_connections_that_each_address_began_are_counted() -> None:
    for _ in range(3):
        connect(socket.AF_INET, "203.0.113.5", "203.0.113.7")
    connect(socket.AF_INET, "203.0.113.7", "203.0.113.5")
    for _ in range(2):
        connect(socket.AF_INET6, "2001:db8::7", "2001:db8::5")
    counts = {str(one): count for one, count in conntrack.begun_by(NAMED | STRANGERS).items()}
    assert counts == {
        "203.0.113.5": 3,
        "203.0.113.7": 1,
        "203.0.113.9": 0,
        "2001:db8::5": 0,
        "2001:db8::7": 2,
        "2001:db8::9": 0,
    }
    found = conntrack.occupancy()
    assert found is not None
    # Both ends of a connection are here, and neighbour discovery is not tracked.
    assert found.connections == 6 < found.most


@pytest.mark.usefixtures("_inside")
@pytest.mark.parametrize("walk_seconds", [0, 1], ids=["filtered by the kernel", "listed"])
def test_both_ends_of_a_connection_are_named_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch, walk_seconds: int
) -> None:
    monkeypatch.setattr(conntrack, "_WALK_SECONDS", walk_seconds)
    assert conntrack.tracked(NAMED | STRANGERS) == set()
    connect(socket.AF_INET, "203.0.113.5", "203.0.113.7")
    connect(socket.AF_INET6, "2001:db8::5", "2001:db8::7")
    assert conntrack.tracked(NAMED | STRANGERS) == NAMED
