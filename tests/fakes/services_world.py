"""A client, a NAT host and a spoke in namespaces of their own, and conversations through the NAT
host.

The client's addresses are kept (`preserve`), so that nothing but the Services' own translation
is at work; the spoke's way back leads through the NAT host.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

from netmgr import programs
from netmgr.documents.sites import ServiceRange
from netmgr.kernel import netns
from netmgr.prefixes import Address, Family, Prefix
from netmgr.services.engine import Services
from netmgr.services.model import Protocol
from tests.lab import wiring
from tests.lab.exchange import open_socket
from tests.lab.topology import EVERYTHING, Host, Interface, InterfaceAddress, Link, Route, Topology

RANGES = (
    ServiceRange(vip_range="10.200.0.0/16", service_cidr="10.96.0.0/16"),
    ServiceRange(vip_range="fd00:200::/112", service_cidr="fd00:96::/112"),
)
SPOKE = (Prefix.parse("10.9.0.0/16"), Prefix.parse("fd00:9::/64"))
CLIENTS = {Family.V4: "10.1.1.{}", Family.V6: "fd00:1:1::{:x}"}
ENDPOINTS = {Family.V4: "10.9.0.{}", Family.V6: "fd00:9::{:x}"}
CLUSTER_IP = {Family.V4: "10.96.0.{}", Family.V6: "fd00:96::{:x}"}
VIP = {Family.V4: "10.200.0.{}", Family.V6: "fd00:200::{:x}"}
ENDPOINT_COUNT, CLIENT_COUNT = 4, 30
TARGET_PORT = 8080
_ADDRESS_TYPE = {Family.V4: "IPv4", Family.V6: "IPv6"}
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78
_numbers = count()


def service(
    number: int, family: Family, *, port: int = 80, protocol: str = "TCP", sticky: bool = False
) -> dict[str, Any]:
    """A Service as Kubernetes has it; its address ends in `number`."""
    spec = {
        "clusterIP": CLUSTER_IP[family].format(number),
        "ports": [{"name": "main", "protocol": protocol, "port": port, "targetPort": TARGET_PORT}],
        "sessionAffinity": "ClientIP" if sticky else "None",
    }
    metadata = {"name": f"s{number}", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def slice_of(
    number: int,
    family: Family,
    ready: Iterable[int],
    *,
    terminating: Iterable[int] = (),
    protocol: str = "TCP",
    port: int = TARGET_PORT,
) -> dict[str, Any]:
    """The Service's EndpointSlice with the endpoints of these numbers."""
    states: dict[int, dict[str, bool]] = {one: {"ready": True} for one in ready}
    states |= {one: {"ready": False, "serving": True, "terminating": True} for one in terminating}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"s{number}-x",
            "namespace": "team",
            "labels": {"kubernetes.io/service-name": f"s{number}"},
        },
        "addressType": _ADDRESS_TYPE[family],
        "endpoints": [
            {"addresses": [ENDPOINTS[family].format(one)], "conditions": conditions}
            for one, conditions in states.items()
        ],
        "ports": [{"name": "main", "protocol": protocol, "port": port}],
    }


class ServicesWorld:
    """The three hosts, the documents, and the Services that the NAT host opens."""

    def __init__(self, directory: Path, name: str) -> None:
        self.documents = directory
        self._pins = Path("/run/netns") / f"services-{name}"
        self.services: Services | None = None
        self._servers: dict[tuple[Protocol, Family], socket.socket] = {}

    def host(self, name: str) -> Path:
        """Where a host's namespace is pinned."""
        return self._pins / name

    def __enter__(self) -> Self:
        topology = _topology()
        try:
            wiring.build(topology, self._pins)
            wiring.wait_until_up(topology, self._pins)
            self._be_local("spoke", SPOKE)
            self._be_local("client", (Prefix.parse("10.1.1.0/24"), Prefix.parse("fd00:1:1::/64")))
            self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for server in self._servers.values():
            server.close()
        for host in ("client", "nat", "spoke"):
            netns.delete(self.host(host))
        with suppress(OSError):
            self._pins.rmdir()

    def _be_local(self, host: str, prefixes: Sequence[Prefix]) -> None:
        """Have a host answer for all addresses of a prefix."""
        with wiring.inside(self.host(host)):
            for prefix in prefixes:
                done = programs.run(
                    [
                        "ip",
                        f"-{prefix.family.value}",
                        "route",
                        "add",
                        "local",
                        str(prefix),
                        "dev",
                        "lo",
                    ]
                )
                assert done.returncode == 0, done.stderr

    def open(self) -> None:
        """Begin to open what the documents say."""
        with wiring.inside(self.host("nat")):
            self.services = Services.open(RANGES, self.documents, SPOKE)
            self.services.start()

    def close(self) -> None:
        """End as a process does that is killed: nothing is taken back."""
        if self.services is not None:
            self.services.close()
            self.services = None

    def write(self, *objects: dict[str, Any]) -> None:
        """Write documents, and have them applied."""
        for one in objects:
            path = self.documents / f"{one['kind']}-{one['metadata']['name']}.json"
            path.write_text(json.dumps(one, indent=1))
        self.refresh()

    def refresh(self) -> None:
        """Have what changed applied."""
        assert self.services is not None
        with wiring.inside(self.host("nat")):
            self.services.refresh()

    def sync(self) -> list[str]:
        """Have everything compared and put right."""
        assert self.services is not None
        with wiring.inside(self.host("nat")):
            return self.services.sync()

    def run(self, *command: str, stdin: str = "") -> None:
        """Run a program on the NAT host; it must succeed."""
        with wiring.inside(self.host("nat")):
            done = programs.run(command, stdin=stdin.encode())
        assert done.returncode == 0, done.stderr.decode()

    def server(self, protocol: Protocol, family: Family) -> socket.socket:
        """A socket in the spoke that answers for every endpoint."""
        if (protocol, family) not in self._servers:
            self._servers[protocol, family] = self._listening(protocol, family)
        return self._servers[protocol, family]

    def _listening(self, protocol: Protocol, family: Family) -> socket.socket:
        if protocol is Protocol.SCTP:
            return self._raw("spoke", family)
        kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
        server = open_socket(self.host("spoke"), family, kind)
        if protocol is Protocol.UDP:
            _tell_destination(server, family)
            _may_have_any_address(server, family)
        if family is Family.V6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.bind(("", TARGET_PORT))
        if protocol is Protocol.TCP:
            server.listen(512)
        return server

    def _raw(self, host: str, family: Family) -> socket.socket:
        with wiring.inside(self.host(host)):
            opened = socket.socket(_af(family), socket.SOCK_RAW, Protocol.SCTP)
        opened.settimeout(3)
        _tell_destination(opened, family)
        return opened

    def client(
        self, kind: socket.SocketKind, family: Family, number: int = 1, port: int = 0
    ) -> socket.socket:
        """A client's socket with the address of this number."""
        opened = open_socket(self.host("client"), family, kind)
        opened.settimeout(3)
        _may_have_any_address(opened, family)
        opened.bind((CLIENTS[family].format(number), port))
        return opened

    @contextmanager
    def connection(
        self, vip: str, family: Family, number: int = 1, port: int = 80
    ) -> Iterator[tuple[socket.socket, socket.socket]]:
        """An established TCP connection: the client's end and the endpoint's."""
        server = self.server(Protocol.TCP, family)
        with self.client(socket.SOCK_STREAM, family, number) as near:
            near.connect((vip, port))
            far, _ = server.accept()
            far.settimeout(3)
            with far:
                yield near, far

    def tcp(self, vip: str, family: Family, number: int = 1, port: int = 80) -> int:
        """The number of the endpoint that a new TCP connection reaches;
        a byte goes there and back."""
        with self.connection(vip, family, number, port) as (near, far):
            near.sendall(b"?")
            assert far.recv(1) == b"?"
            far.sendall(b"!")
            assert near.recv(1) == b"!"
            assert near.getpeername()[0] == vip
            return endpoint_number(far.getsockname()[0], family)

    def udp(self, vip: str, family: Family, client: socket.socket, port: int = 80) -> int:
        """The number of the endpoint that a datagram reaches; its answer comes back from where it
        was sent to.
        """
        server = self.server(Protocol.UDP, family)
        client.sendto(b"?", (vip, port))
        reached, sender, extra = _received(server)
        server.sendmsg([b"!"], extra, 0, sender)
        _, came_from = client.recvfrom(1)
        assert came_from[:2] == (vip, port)
        return endpoint_number(reached, family)

    def sctp(self, vip: str, family: Family, source_port: int, port: int = 80) -> tuple[int, int]:
        """The number of the endpoint, and the port, that a packet with an INIT chunk reaches."""
        server = self.server(Protocol.SCTP, family)
        with self._raw("client", family) as client:
            _may_have_any_address(client, family)
            client.bind((CLIENTS[family].format(1), 0))
            client.sendto(sctp_init(source_port, port), (vip, 0))
            reached, _, _, data = _received_whole(server)
        packet = data[20:] if family is Family.V4 else data
        return endpoint_number(reached, family), struct.unpack_from("!H", packet, 2)[0]


def endpoint_number(address: str, family: Family) -> int:
    """The number that an endpoint's address ends in."""
    return Address.parse(address).value - Address.parse(ENDPOINTS[family].format(0)).value


def sctp_init(source: int, destination: int) -> bytes:
    """An SCTP packet with one INIT chunk (RFC 9260, 3.3.2)."""
    chunk = struct.pack("!BBHIIHHI", 1, 0, 20, 0x1234, 65536, 1, 1, 1)
    head = struct.pack("!HHI", source, destination, 0)
    return head + struct.pack("<I", _crc32c(head + bytes(4) + chunk)) + chunk


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _received(server: socket.socket) -> tuple[str, Any, list[Any]]:
    reached, sender, extra, _ = _received_whole(server)
    return reached, sender, extra


def _received_whole(server: socket.socket) -> tuple[str, Any, list[Any], bytes]:
    """Where a packet was sent to, whence, what makes an answer come from there, and its content."""
    data, ancillary, _, sender = server.recvmsg(2048, 256)
    level, kind, info = ancillary[0]
    if level == socket.IPPROTO_IP:
        return (
            socket.inet_ntoa(info[8:12]),
            sender,
            [(level, kind, bytes(4) + info[8:12] + bytes(4))],
            data,
        )
    return (
        socket.inet_ntop(socket.AF_INET6, info[:16]),
        sender,
        [(level, kind, info[:16] + bytes(4))],
        data,
    )


def _tell_destination(opened: socket.socket, family: Family) -> None:
    if family is Family.V4:
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)


def _may_have_any_address(opened: socket.socket, family: Family) -> None:
    """IPv6 takes an address for the host's own only if it stands on a link,
    not by a route alone."""
    if family is Family.V6:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)


def _af(family: Family) -> int:
    return socket.AF_INET if family is Family.V4 else socket.AF_INET6


def _topology() -> Topology:
    def end(host: str, name: str, v4: str, v6: str) -> Interface:
        own = InterfaceAddress(Address.parse(v4), 24), InterfaceAddress(Address.parse(v6), 64)
        return Interface(host, name, own)

    def everything(v4: str, v6: str) -> tuple[Route, ...]:
        return tuple(
            Route(to, Address.parse(via)) for to, via in zip(EVERYTHING, (v4, v6), strict=True)
        )

    def through(prefixes: Iterable[str], *gateways: str) -> tuple[Route, ...]:
        return tuple(
            Route(Prefix.parse(prefix), Address.parse(via))
            for prefix, via in zip(prefixes, gateways, strict=True)
        )

    back = through(("10.1.1.0/24", "fd00:1:1::/64"), "10.1.0.1", "fd00:1::1")
    forth = through(map(str, SPOKE), "10.2.0.1", "fd00:2::1")
    return Topology(
        internet="client",
        hosts=(
            Host("client", everything("10.1.0.2", "fd00:1::2")),
            Host("nat", (*everything("10.1.0.1", "fd00:1::1"), *back, *forth), forwards=True),
            Host("spoke", everything("10.2.0.2", "fd00:2::2")),
        ),
        links=(
            Link(
                (
                    end("client", "up", "10.1.0.1", "fd00:1::1"),
                    end("nat", "hub", "10.1.0.2", "fd00:1::2"),
                )
            ),
            Link(
                (
                    end("nat", "spoke", "10.2.0.2", "fd00:2::2"),
                    end("spoke", "up", "10.2.0.1", "fd00:2::1"),
                )
            ),
        ),
    )
