"""A machine with a host of the hub, of its own spoke, of another spoke and of the internet around
it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from netmgr.kernel import netns
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family
from netmgr.rules.engine import Rules
from tests.kernel.usable import wait_until_usable
from tests.lab import wiring
from tests.waiting import PATIENCE, eventually

PORT = 4000
HEADERS = {Family.V4: 20 + 8, Family.V6: 40 + 8}
MACHINE = {Family.V4: "10.1.255.1", Family.V6: "fd00:1:0:ff::1"}
FURTHER = {Family.V4: ["10.1.255.2", "10.1.255.3"], Family.V6: ["fd00:1:0:ff::2", "fd00:1:0:ff::3"]}
"""More addresses of the machine's own, which only a test that uses them knows."""

MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
"""Of either end of each link, told beforehand: neighbour discovery with internet addresses is
counted, rightly, and a pod and its node never ask each other for them.
"""
HOSTS = {
    "researcher": {Family.V4: "10.0.0.9", Family.V6: "fd00::9"},
    "own": {Family.V4: "10.1.0.9", Family.V6: "fd00:1::9"},
    "neighbour": {Family.V4: "10.1.0.8", Family.V6: "fd00:1::8"},
    "foreign": {Family.V4: "10.130.0.9", Family.V6: "fd00:2::9"},
    "internet": {Family.V4: "203.0.113.9", Family.V6: "2001:db8::9"},
}
VIP = {Family.V4: "100.64.1.9", Family.V6: "fd64:1::9"}
CLUSTER_IP = {Family.V4: "10.96.0.9", Family.V6: "fd96::9"}
RANGES = ("10.96.0.0/24", "fd96::/120")
SECONDS_TO_BE_LOST = 0.2


@dataclass(kw_only=True)
class Sockets:
    """Sockets in several namespaces, open as long as the test runs."""

    sockets: ExitStack = field(default_factory=ExitStack)

    def socket(
        self,
        at: int | None,
        family: Family,
        address: str = "",
        port: int = 0,
        kind: Any = socket.SOCK_DGRAM,
    ) -> Any:
        """A bound socket in a namespace, or in the one that the test runs in."""
        with netns.entered(at) if at is not None else nullcontext():
            made = socket.socket(socket.AF_INET if family is Family.V4 else socket.AF_INET6, kind)
            self.sockets.enter_context(made)
            made.settimeout(PATIENCE)
            made.bind((address, port))
            return made

    def source(
        self, sender: Any, receiver: Any, to: str, size: int = 100, seconds: float = PATIENCE
    ) -> tuple[str, int] | None:
        """Sends one datagram; where it seems to come from, or None if it does not arrive."""
        sender.sendto(b"x" * size, (to, PORT))
        receiver.settimeout(seconds)
        try:
            data, source = receiver.recvfrom(65535)
        except TimeoutError:
            return None
        assert len(data) == size
        return str(source[0]), int(source[1])

    def is_lost(self, sender: Any, receiver: Any, to: str, size: int = 100) -> bool:
        """Sends one datagram; whether it does not arrive."""
        return self.source(sender, receiver, to, size, SECONDS_TO_BE_LOST) is None


@dataclass
class Star(Sockets):
    """The machine is the namespace the test runs in."""

    hosts: dict[str, int]

    def socket(self, at: str, *bound: Any) -> Any:  # type: ignore[override]  by names of hosts
        """A bound socket at a host, or at the machine itself."""
        return super().socket(None if at == "machine" else self.hosts[at], *bound)

    def at(self, host: str, family: Family) -> Any:
        """A socket at a host's own address and the port that all use."""
        return self.socket(
            host, family, MACHINE[family] if host == "machine" else HOSTS[host][family], PORT
        )

    def shows_itself(self, sender: Any, receiver: Any) -> bool:
        """Sends one datagram; whether it arrives, from its sender's own address."""
        to = receiver.getsockname()[0]
        return self.source(sender, receiver, to) == sender.getsockname()[:2]


@contextmanager
def star(namespaces: Any, program: Any, pods: Sequence[str] = ()) -> Iterator[Star]:
    """Wires the hosts to the calling thread's namespace, and those that are pods as netmgr wires
    them.
    """
    hosts, links, routes = {}, "", ""
    set_kernel("ipv6/conf/default/accept_dad", 0)
    set_kernel("ipv4/ip_forward", 1)
    set_kernel("ipv6/conf/all/forwarding", 1)
    own = [*MACHINE.values(), *FURTHER[Family.V4], *FURTHER[Family.V6]]
    for name, addresses in HOSTS.items():
        space = namespaces(name)
        hosts[name] = space.descriptor
        with netns.entered(space.descriptor):
            set_kernel("ipv6/conf/default/accept_dad", 0)
        link = f"{LINK_PREFIX}-{name}" if name in pods else name
        links += f"""
            link add {link} address {MACS[0]} type veth peer name eth0 address {MACS[1]} \
              netns {space.name}
            link set {link} up
            addr add fe80::1/64 dev {link} nodad
            route add {addresses[Family.V4]} dev {link}
        """
        links += f"neigh add fe80::2 lladdr {MACS[1]} dev {link}\n" if name in pods else ""
        routes += f"route add {addresses[Family.V6]} via fe80::2 dev {link}\n"
    program("ip -b -", "".join(f"addr add {address} dev lo\n" for address in own) + links)
    for name, addresses in HOSTS.items():
        with netns.entered(hosts[name]):
            program("ip -b -", inside(addresses))
            if name in pods:
                program(f"ip neigh add fe80::1 lladdr {MACS[0]} dev eth0")
            wait_until_up("eth0")
    wait_until_up(
        *(name for name in HOSTS if name not in pods), *(f"{LINK_PREFIX}-{name}" for name in pods)
    )
    program("ip -b -", routes)
    with ExitStack() as sockets:
        yield Star(hosts, sockets=sockets)


def dropped(rules: Rules) -> dict[tuple[str, str], tuple[int, int]]:
    """Packets and bytes by origin and destination, where there are any."""
    return {
        (one["origin"], one["destination"]): (one["packets"], one["bytes"])
        for one in rules.drops().between
        if one["packets"]
    }


def set_kernel(key: str, value: int) -> None:
    """Set one of net's sysctls of the calling thread's namespace."""
    Path("/proc/sys/net", key).write_text(str(value), encoding="ascii")


def wait_until_up(*names: str) -> None:
    """Wait until these interfaces of the calling thread's namespace send and receive, and all its
    addresses can be used.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for name in names:
            eventually(partial(wiring.sends, handle, name), f"{name} stayed down", every=0.005)
    wait_until_usable()


def inside(addresses: Mapping[Family, str]) -> str:
    """What `ip -b` does in a host's own namespace."""
    return f"""
        link set lo up
        link set eth0 up
        addr add {addresses[Family.V4]}/32 dev eth0
        addr add {addresses[Family.V6]}/128 dev eth0 nodad
        addr add fe80::2/64 dev eth0 nodad
        route add {MACHINE[Family.V4]} dev eth0
        route add default via {MACHINE[Family.V4]}
        route add default via fe80::1 dev eth0
    """
