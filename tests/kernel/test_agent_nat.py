"""A NAT host's agent: what it translates and tells, and that connections outlive it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netmgr.documents.node import Backend
from netmgr.kernel.conntrack import PORTS_PER_ADDRESS
from netmgr.prefixes import Family
from tests.kernel.joined import (
    HUB_ROUTER,
    SERVICE_CIDR,
    VIP_RANGE,
    Joined,
    cluster_ip,
    gateway,
    joined,
    nat_host,
    own,
    vip,
)
from tests.lab.exchange import open_socket

pytestmark = pytest.mark.root

Connection = tuple[socket.socket, socket.socket]
SOURCES = pytest.mark.parametrize("source", ["snat", "preserve"])


@pytest.fixture(scope="module", params=[Backend.NFTABLES, Backend.IPTABLES_LEGACY], ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[Joined]:
    with joined(request.param, f"test-{os.getpid()}-nat") as made:
        yield made


@contextmanager
def connected(world: Joined) -> Iterator[dict[Family, Connection]]:
    """An established connection of each family from the researcher to the Service as the hub sees
    it; both ends.
    """
    with ExitStack() as closing:
        listeners: dict[Family, socket.socket] = {}
        for family in Family:
            listeners[family] = closing.enter_context(
                open_socket(world.namespace("a"), family, socket.SOCK_STREAM)
            )
            listeners[family].bind((str(cluster_ip(family)), 0))
            listeners[family].listen(1)
        ports = {family: listener.getsockname()[1] for family, listener in listeners.items()}
        found: dict[Family, Connection] = {}
        for family, listener in listeners.items():
            near = closing.enter_context(
                open_socket(world.namespace("researcher"), family, socket.SOCK_STREAM)
            )
            near.connect((str(vip(family)), ports[family]))
            found[family] = near, closing.enter_context(listener.accept()[0])
        yield found


def talk(near: socket.socket, far: socket.socket) -> None:
    for one, other in ((near, far), (far, near)):
        one.sendall(b"still here")
        assert other.recv(100) == b"still here"


@SOURCES
def test_established_connections_outlive_a_killed_agent(world: Joined, source: str) -> None:
    settings = nat_host(source=source)
    try:
        world.start(settings)
        with connected(world) as ends:
            expected = [
                str(gateway("a", one) if source == "snat" else own("researcher", one))
                for one in Family
            ]
            assert [far.getpeername()[0] for _, far in ends.values()] == expected
            rules = world.rules()
            world.agent.kill_agent()
            for family, (near, far) in ends.items():
                talk(near, far)
                with open_socket(
                    world.namespace("researcher"), family, socket.SOCK_STREAM
                ) as another:
                    another.connect(near.getpeername()[:2])
            world.start(settings)
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
            {
                "vip_range": str(VIP_RANGE[family]),
                "service_cidr": str(SERVICE_CIDR[family]),
                "bytes": 0,
                "packets": 0,
            }
            for family in Family
        ]
        with connected(world) as ends:
            for near, far in ends.values():
                talk(near, far)
            world.restart(nat_host())
            nat = world.agent.snapshot()["nat"]
            endpoints = [far.getsockname()[:2] for _, far in ends.values()]
        assert all(one["packets"] > 5 and one["bytes"] > 300 for one in nat["ranges"])
        tcp = [one for one in nat["ports"] if one["protocol"] == "tcp"]
        assert [(one["budget"], one["used"]) for one in tcp] == [(PORTS_PER_ADDRESS, 1)] * 2
        assert [one["endpoint"] for one in tcp] == [
            shape.format(*endpoint)
            for shape, endpoint in zip(("{}:{}", "[{}]:{}"), endpoints, strict=True)
        ]
        assert [one["used"] for one in nat["ports"] if one["protocol"] == "sctp"] == [0, 0]
    finally:
        world.stop()


def test_ports_of_a_link_s_own_address_are_told_where_the_document_names_none(
    world: Joined,
) -> None:
    unnamed = nat_host(addresses=[]) | {"node": {"name": "unnamed", "uplink": "a"}}
    world.start(unnamed)
    try:
        with connected(world):
            world.restart(unnamed)
            tcp = [
                one for one in world.agent.snapshot()["nat"]["ports"] if one["protocol"] == "tcp"
            ]
        assert [(one["budget"], one["used"]) for one in tcp] == [(PORTS_PER_ADDRESS, 1)] * 2
    finally:
        world.stop()


def test_ports_are_no_matter_where_clients_keep_their_address(world: Joined) -> None:
    world.start(nat_host(source="preserve"))
    try:
        assert world.agent.snapshot()["nat"]["ports"] == []
    finally:
        world.stop()


@pytest.mark.parametrize(
    ("settings", "pairs"), [(HUB_ROUTER, 2), (nat_host(), 2)], ids=["hub-router", "nat-host"]
)
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
                world.wait_until(lambda pair=pair, number=number: world.drops()[pair] == number)
            assert world.send("researcher", "a", family)
            assert world.send("b", "researcher", family)
    finally:
        world.stop()
