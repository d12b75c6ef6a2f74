"""A NAT host's agent: what it translates and tells, also by `netmgr nat`, and that connections
outlive it. What is dropped between spokes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from netmgr.documents.node import Backend
from netmgr.kernel.conntrack import PORTS_PER_ADDRESS
from netmgr.prefixes import Family
from tests.kernel import common
from tests.kernel.common import ONLY_NFTABLES
from tests.kernel.joined import (
    HUB_ROUTER,
    MACHINE,
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
from tests.kernel.namespaces import inside
from tests.lab.exchange import open_socket

pytestmark = pytest.mark.root

Connection = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module")
def joined_sites(backend: Backend) -> Iterator[Joined]:
    with joined(backend, f"test-{os.getpid()}-nat") as made:
        yield made


@pytest.fixture
def world(joined_sites: Joined) -> Iterator[Joined]:
    """The sites, whose agent ends with the test."""
    yield joined_sites
    joined_sites.stop()


@contextmanager
def connected(world: Joined) -> Iterator[dict[Family, Connection]]:
    """An established connection of each family from the researcher to the Service as the hub sees
    it; both ends.
    """
    with ExitStack() as closing:
        ends: dict[Family, Connection] = {}
        for family in Family:
            listener, near = (
                closing.enter_context(
                    open_socket(world.namespace(host), family, socket.SOCK_STREAM)
                )
                for host in ("a", "researcher")
            )
            listener.bind((str(cluster_ip(family)), 0))
            listener.listen(1)
            near.connect((str(vip(family)), listener.getsockname()[1]))
            ends[family] = near, closing.enter_context(listener.accept()[0])
        yield ends


def talk(near: socket.socket, far: socket.socket) -> None:
    for sender, receiver in ((near, far), (far, near)):
        sender.sendall(b"still here")
        assert receiver.recv(100) == b"still here"


def netmgr(world: Joined, *arguments: str) -> subprocess.CompletedProcess[str]:
    return common.netmgr(*arguments, "--socket", str(world.agent.ledger_socket))


@pytest.mark.parametrize("source", ["snat", "preserve"])
def test_established_connections_outlive_a_killed_agent(world: Joined, source: str) -> None:
    settings = nat_host(source=source)
    world.start(settings)
    with connected(world) as ends:
        for family, (_, far) in ends.items():
            client = gateway("a", family) if source == "snat" else own("researcher", family)
            assert far.getpeername()[0] == str(client)
        rules = world.rules()
        world.agent.kill_agent()
        for family, (near, far) in ends.items():
            talk(near, far)
            with open_socket(world.namespace("researcher"), family, socket.SOCK_STREAM) as another:
                another.connect(near.getpeername()[:2])
        world.start(settings)
        for near, far in ends.values():
            talk(near, far)
        assert world.rules() == rules
        assert world.repaired("rules") == 0
        # Ports are no matter where clients keep their address.
        assert (world.agent.snapshot()["nat"]["ports"] == []) is (source == "preserve")


def test_what_was_translated_and_the_ports_it_takes_are_told(world: Joined) -> None:
    world.start(nat_host())
    nothing = {"bytes": 0, "packets": 0}
    assert world.agent.snapshot()["nat"]["ranges"] == [
        {"vip_range": str(VIP_RANGE[family]), "service_cidr": str(SERVICE_CIDR[family]), **nothing}
        for family in Family
    ]
    with connected(world) as ends:
        for near, far in ends.values():
            talk(near, far)
        world.restart(nat_host())
        nat = world.agent.snapshot()["nat"]
        endpoints = [far.getsockname()[:2] for _, far in ends.values()]
        shown = netmgr(world, "nat", "status").stdout.splitlines()
    assert all(row["packets"] > 5 and row["bytes"] > 300 for row in nat["ranges"])
    tcp = [row for row in nat["ports"] if row["protocol"] == "tcp"]
    assert [(row["budget"], row["used"]) for row in tcp] == [(PORTS_PER_ADDRESS, 1)] * 2
    v4, v6 = endpoints
    assert [row["endpoint"] for row in tcp] == ["{}:{}".format(*v4), "[{}]:{}".format(*v6)]
    assert [row["used"] for row in nat["ports"] if row["protocol"] == "sctp"] == [0, 0]
    for words in (("10.100.0.0/28", "10.96.0.0/28"), ("ipv6 tcp", "1", "64,512", "0.0%")):
        assert any(all(word in line for word in words) for line in shown), shown
    told = json.loads(netmgr(world, "nat", "status", "-o", "json").stdout)
    assert told["nat"].keys() == nat.keys()
    explained = netmgr(world, "node", "explain", str(vip(Family.V4))).stdout
    assert f"translated here to {cluster_ip(Family.V4)}" in " ".join(explained.split())


@pytest.mark.slow
@ONLY_NFTABLES
def test_ports_of_a_link_s_own_address_are_told_where_the_document_names_none(
    world: Joined,
) -> None:
    unnamed = nat_host(addresses=[]) | {"node": {"name": "unnamed", "uplink": "a"}}
    world.start(unnamed)
    with connected(world):
        world.restart(unnamed)
        ports = world.agent.snapshot()["nat"]["ports"]
    tcp = [(row["budget"], row["used"]) for row in ports if row["protocol"] == "tcp"]
    assert tcp == [(PORTS_PER_ADDRESS, 1)] * 2


def know_gateway(world: Joined, host: str) -> None:
    """Spare a host neighbour discovery: answers of a NAT host, of spoke a, to b are dropped."""
    address = str(gateway(host, Family.V6))
    (link,) = json.loads(inside(world.namespace(MACHINE), "ip", "-j", "link", "show", host))
    (route,) = json.loads(inside(world.namespace(host), "ip", "-j", "route", "get", address))
    entry = ("neighbour", "replace", address, "lladdr", link["address"], "dev", route["dev"])
    inside(world.namespace(host), "ip", *entry, "nud", "permanent")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["hub-router", "nat-host"])
def test_what_is_dropped_between_spokes_is_told_from_the_first_packet(
    world: Joined, role: str
) -> None:
    world.start(HUB_ROUTER if role == "hub-router" else nat_host())
    for host in ("a", "b"):
        know_gateway(world, host)
    quiet = netmgr(world, "node", "status").stdout
    assert f"{role} machine is ready" in quiet
    assert "isolation between spokes: 2 pairs, nothing dropped" in quiet
    drops = world.drops()
    assert drops == {("a", "b"): 0, ("b", "a"): 0}
    for number, family in enumerate(Family, start=1):
        for pair in drops:
            assert world.send(*pair, family) == ""
            world.wait_until(lambda pair=pair, number=number: world.drops()[pair] == number)
        for pair in (("researcher", "a"), ("b", "researcher")):
            world.wait_until(lambda pair=pair, family=family: world.send(*pair, family) != "")
    rows = [row.split() for row in netmgr(world, "node", "status").stdout.splitlines()]
    assert ["b", "a", "2", "86", "B"] in rows, rows


@ONLY_NFTABLES
def test_a_machine_that_is_no_nat_host_says_so(world: Joined) -> None:
    world.start(HUB_ROUTER)
    shown = netmgr(world, "nat", "status")
    assert shown.returncode == 2
    assert shown.stderr == "netmgr: this machine is no NAT host; its role is hub-router\n"
