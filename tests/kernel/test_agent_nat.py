"""A NAT host's agent: what it translates and tells, and that connections outlive it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netmgr.config import Backend
from netmgr.dataplane.ports import PORTS_PER_ADDRESS
from netmgr.lab.exchange import open_socket
from netmgr.prefixes import Family
from tests.kernel.joined import HUB_ROUTER, REAL, SEEN, Joined, gateway, joined, nat_host, own, real, seen

pytestmark = pytest.mark.root

FAMILIES = pytest.mark.parametrize("family", list(Family), ids=["v4", "v6"])
SOURCES = pytest.mark.parametrize("source", ["snat", "preserve"])


@pytest.fixture(scope="module", params=[Backend.NFTABLES, Backend.IPTABLES], ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[Joined]:
    with joined(request.param, f"test-{os.getpid()}-nat") as made:
        yield made


@contextmanager
def connected(world: Joined, family: Family) -> Iterator[tuple[socket.socket, socket.socket]]:
    """An established connection from the researcher to the Service, as the hub sees it, and the server's end."""
    with ExitStack() as closing:
        listener = closing.enter_context(open_socket(world.namespace("a"), family, socket.SOCK_STREAM))
        listener.bind((str(real(family)), 0))
        listener.listen(1)
        port = listener.getsockname()[1]
        near = closing.enter_context(open_socket(world.namespace("researcher"), family, socket.SOCK_STREAM))
        near.connect((str(seen(family)), port))
        far = closing.enter_context(listener.accept()[0])
        yield near, far


def talk(near: socket.socket, far: socket.socket) -> None:
    for one, other in ((near, far), (far, near)):
        one.sendall(b"still here")
        assert other.recv(100) == b"still here"


@SOURCES
def test_established_connections_outlive_a_killed_agent(world: Joined, source: str) -> None:
    world.start(nat_host(source=source))
    expected = {family: gateway("a", family) if source == "snat" else own("researcher", family) for family in Family}
    try:
        with ExitStack() as closing:
            ends = {family: closing.enter_context(connected(world, family)) for family in Family}
            assert {family: far.getpeername()[0] for family, (_, far) in ends.items()} == {
                family: str(address) for family, address in expected.items()
            }
            rules = world.rules()
            world.agent.kill_agent()
            for near, far in ends.values():
                talk(near, far)
            world.start(nat_host(source=source))
            for near, far in ends.values():
                talk(near, far)
            assert world.rules() == rules
            assert world.repaired("rules") == 0
    finally:
        world.stop()


def test_what_was_translated_and_the_ports_it_takes_are_told(world: Joined) -> None:
    world.start(nat_host())
    try:
        assert world.agent.snapshot()["nat"]["ranges"] == [
            {"seen": str(SEEN[family]), "real": str(REAL[family]), "bytes": 0, "packets": 0} for family in Family
        ]
        with ExitStack() as closing:
            ends = {family: closing.enter_context(connected(world, family)) for family in Family}
            for near, far in ends.values():
                talk(near, far)
            world.restart(nat_host())
            nat = world.agent.snapshot()["nat"]
            endpoints = [far.getsockname()[:2] for _, far in ends.values()]
        assert all(one["packets"] > 5 and one["bytes"] > 300 for one in nat["ranges"])
        tcp = [one for one in nat["ports"] if one["protocol"] == "tcp"]
        assert [(one["budget"], one["used"]) for one in tcp] == [(PORTS_PER_ADDRESS, 1)] * 2
        assert [one["endpoint"] for one in tcp] == [
            shape.format(*endpoint) for shape, endpoint in zip(("{}:{}", "[{}]:{}"), endpoints, strict=True)
        ]
        assert [one["used"] for one in nat["ports"] if one["protocol"] == "sctp"] == [0, 0]
    finally:
        world.stop()


def test_ports_are_no_matter_where_clients_keep_their_address(world: Joined) -> None:
    world.start(nat_host(source="preserve"))
    try:
        assert world.agent.snapshot()["nat"]["ports"] == []
    finally:
        world.stop()


@pytest.mark.parametrize(("settings", "pairs"), [(HUB_ROUTER, 2), (nat_host(), 2)], ids=["hub-router", "nat-host"])
def test_what_is_dropped_between_spokes_is_told_from_the_first_packet(
    world: Joined, settings: dict[str, object], pairs: int
) -> None:
    world.start(settings)
    try:
        drops = world.drops()
        assert drops == {("a", "b"): 0, ("b", "a"): 0}
        assert len(drops) == pairs
        for number, family in enumerate(Family, start=1):
            for pair in drops:
                assert world.send(*pair, family) == ""
                assert world.drops()[pair] == number
            assert world.send("researcher", "a", family)
            assert world.send("b", "researcher", family)
    finally:
        world.stop()
