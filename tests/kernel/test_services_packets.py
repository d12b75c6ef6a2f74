"""Packets through a NAT host that opens Services: who gets them, and who gets none any more."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest

from netmgr.prefixes import Address, Family
from netmgr.services import connections
from netmgr.services.model import Protocol, ServicePort
from tests.fakes.services_world import (
    CLIENT_COUNT,
    TARGET_PORT,
    VIP,
    ServicesWorld,
    service,
    slice_of,
)
from tests.lab import wiring

pytestmark = pytest.mark.root

TRACKING = """
table inet tracking {
    chain forward {
        type filter hook forward priority 0
        ct state new accept
    }
}
"""
_numbers = count(1)


@pytest.fixture(scope="module")
def services_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServicesWorld]:
    name = f"{os.getpid()}-{next(_numbers)}"
    with ServicesWorld(tmp_path_factory.mktemp("documents"), name) as world:
        yield world


@pytest.fixture(params=Family, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture
def number() -> int:
    """Of a Service that no other test uses."""
    return next(_numbers) + 10


def test_connections_spread_evenly_over_the_ready_endpoints(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(service(number, family), slice_of(number, family, [1, 2, 3]))
    reached = Counter(services_world.tcp(VIP[family].format(number), family) for _ in range(240))
    assert reached.keys() == {1, 2, 3}
    # 80 each on average, with a standard deviation of 7.3.
    assert all(45 <= share <= 115 for share in reached.values()), reached


def test_datagrams_reach_an_endpoint_and_answers_come_from_the_service(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(
        service(number, family, protocol="UDP"), slice_of(number, family, [1, 2], protocol="UDP")
    )
    reached = Counter()
    for _ in range(60):
        with services_world.client(socket.SOCK_DGRAM, family) as client:
            reached[services_world.udp(VIP[family].format(number), family, client)] += 1
    assert reached.keys() == {1, 2}
    assert min(reached.values()) > 10, reached


def test_sctp_reaches_every_endpoint_at_its_own_port(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(
        service(number, family, protocol="SCTP", port=38412),
        slice_of(number, family, [1, 2], protocol="SCTP"),
    )
    vip = VIP[family].format(number)
    reached = {services_world.sctp(vip, family, 20000 + at, 38412) for at in range(24)}
    assert reached == {(1, TARGET_PORT), (2, TARGET_PORT)}


def test_a_sticky_client_stays_while_others_spread_and_only_those_of_a_gone_endpoint_move(
    services_world: ServicesWorld, family: Family, number: int
):
    vip = VIP[family].format(number)

    def reached() -> dict[int, int]:
        return {one: services_world.tcp(vip, family, one) for one in range(1, CLIENT_COUNT + 1)}

    services_world.write(service(number, family, sticky=True), slice_of(number, family, [1, 2, 3]))
    first = reached()
    assert set(first.values()) == {1, 2, 3}
    assert reached() == first
    services_world.close()
    services_world.open()
    assert reached() == first
    services_world.write(slice_of(number, family, [1, 3]))
    second = reached()
    assert {one for one in first if second[one] != first[one]} == {
        one for one in first if first[one] == 2
    }


@pytest.mark.parametrize("port", [80, 81], ids=["a service without endpoints", "no service"])
def test_what_nobody_serves_is_refused_at_once(
    services_world: ServicesWorld, family: Family, number: int, port: int
):
    services_world.write(service(number, family), slice_of(number, family, []))
    vip, began = VIP[family].format(number), time.monotonic()
    with (
        services_world.client(socket.SOCK_STREAM, family) as client,
        pytest.raises(ConnectionRefusedError),
    ):
        client.connect((vip, port))
    with services_world.client(socket.SOCK_DGRAM, family) as client:
        client.connect((vip, port))
        client.send(b"?")
        with pytest.raises(ConnectionRefusedError):
            client.recv(1)
    assert time.monotonic() - began < 1


def test_an_endpoint_removed_under_load_gets_no_new_connection_once_the_change_is_applied(
    services_world: ServicesWorld, family: Family, number: int
):
    vip = VIP[family].format(number)
    services_world.write(service(number, family), slice_of(number, family, [1, 2, 3]))
    begun: list[tuple[float, int]] = []
    stopping = threading.Event()

    def load() -> None:
        while not stopping.is_set():
            at = time.monotonic()
            begun.append((at, services_world.tcp(vip, family)))

    worker = threading.Thread(target=load)
    worker.start()
    try:
        _until(lambda: len(begun) > 60)
        services_world.write(slice_of(number, family, [1, 3]))
        applied = time.monotonic()
        enough = len(begun) + 120
        _until(lambda: len(begun) > enough)
    finally:
        stopping.set()
        worker.join()
    assert {one for at, one in begun if at < applied} == {1, 2, 3}
    assert Counter(one for at, one in begun if at > applied).keys() == {1, 3}


def test_a_terminating_endpoint_keeps_its_connections_and_gets_no_new_ones(
    services_world: ServicesWorld, family: Family, number: int
):
    vip = VIP[family].format(number)
    services_world.write(service(number, family), slice_of(number, family, [1]))
    with services_world.connection(vip, family) as (near, far):
        services_world.write(slice_of(number, family, [2], terminating=[1]))
        assert {services_world.tcp(vip, family) for _ in range(12)} == {2}
        services_world.write(slice_of(number, family, [2]))
        far.sendall(b"still here")
        assert near.recv(20) == b"still here"


def test_terminating_endpoints_serve_when_nothing_else_does(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(service(number, family), slice_of(number, family, [], terminating=[1, 2]))
    assert services_world.tcp(VIP[family].format(number), family) in (1, 2)


@pytest.mark.parametrize("most", [0, 16], ids=["all listed", "found by port"])
def test_a_udp_client_with_a_fixed_port_moves_on_when_its_endpoint_is_gone(
    services_world: ServicesWorld,
    family: Family,
    number: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(connections, "_LOOKS_BY_PORT", most)
    vip = VIP[family].format(number)
    services_world.write(
        service(number, family, protocol="UDP"), slice_of(number, family, [1], protocol="UDP")
    )
    with services_world.client(socket.SOCK_DGRAM, family) as client:
        assert services_world.udp(vip, family, client) == 1
        services_world.write(slice_of(number, family, [2], terminating=[1], protocol="UDP"))
        assert services_world.udp(vip, family, client) == 1
        services_world.write(slice_of(number, family, [2], protocol="UDP"))
        assert services_world.udp(vip, family, client) == 2


def test_a_udp_client_from_before_the_service_was_there_reaches_it_then(
    services_world: ServicesWorld, family: Family, number: int
):
    vip = VIP[family].format(number)
    services_world.run("nft", "-f", "-", stdin=TRACKING)
    with services_world.client(socket.SOCK_DGRAM, family) as client:
        with wiring.inside(services_world.host("nat")):
            services_world.services.remove()
        services_world.close()
        client.sendto(b"?", (vip, 80))
        time.sleep(0.05)
        services_world.open()
        services_world.write(
            service(number, family, protocol="UDP"), slice_of(number, family, [1], protocol="UDP")
        )
        assert services_world.udp(vip, family, client) == 1


def test_what_was_counted_survives_repairs(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(service(number, family), slice_of(number, family, [1]))
    vip = ServicePort(Address.parse(VIP[family].format(number)), Protocol.TCP, 80)
    for _ in range(3):
        services_world.tcp(str(vip.address), family)
    element = f"{vip.address} . tcp . 80 . 0"
    services_world.run(
        "nft", f"delete element inet netmgr-services endpoints{family.value} {{ {element} }}"
    )
    assert services_world.sync() != []
    assert hits(services_world, number) == 3


def hits(world: ServicesWorld, number: int) -> int | None:
    with wiring.inside(world.host("nat")):
        (status,) = [one for one in world.services.status() if one.service.name == f"s{number}"]
    return status.hits


def test_connections_are_counted_by_service(
    services_world: ServicesWorld, family: Family, number: int
):
    services_world.write(service(number, family), slice_of(number, family, [1]))
    for _ in range(5):
        services_world.tcp(VIP[family].format(number), family)
    services_world.write(slice_of(number, family, [1, 2]))
    with wiring.inside(services_world.host("nat")):
        (status,) = [
            one for one in services_world.services.status() if one.service.name == f"s{number}"
        ]
    assert status.hits == 5
    assert status.vip.protocol is Protocol.TCP
    assert [str(one.address)[-1] for one in status.ready] == ["1", "2"]


def _until(condition, patience: float = 20.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
