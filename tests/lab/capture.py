"""An independent count of what passes the internet host's interface, packet by packet.

A packet socket (packet(7)) sees every packet the host sends and receives, in the form the
nodes forwarded it, and adds up the lengths the IP headers carry. It shares nothing with what
is under test: no rule, no set, no counter of netfilter. Where the kernel passes a large TCP
segment on whole, as it does on a real node with segmentation offload, it is one packet here
as it is there.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from netmgr.model import Traffic
from netmgr.prefixes import Address, Family
from tests.lab import wiring
from tests.lab.errors import LabError
from tests.waiting import PATIENCE

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_STATISTICS = 6
SO_RCVBUFFORCE = 33
BUFFER_BYTES = 256 * 1024 * 1024
HEADERS = 64
"""Enough of each packet for an IP header without extensions and the ports behind it."""

PROTOCOLS = {socket.IPPROTO_UDP: "UDP", socket.IPPROTO_TCP: "TCP"}


@dataclass(frozen=True, slots=True)
class Tally:
    """A number of packets and their bytes, IP headers included, link layer excluded."""

    bytes: int = 0
    packets: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.bytes + other.bytes, self.packets + other.packets)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.bytes - other.bytes, self.packets - other.packets)


class Flow(NamedTuple):
    """A conversation as the internet host sees it: peer, ports, direction."""

    protocol: str
    peer: Address
    port: int
    own_port: int
    traffic: Traffic


class Capture:
    """Counts flows on one interface from the moment it is opened until it is closed."""

    def __init__(self, namespace: Path, interface: str) -> None:
        with wiring.inside(namespace):
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)
            )
            # A burst must not overflow the queue: one lost packet makes the whole count worthless.
            # FORCE passes net.core.rmem_max.
            self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
            self._socket.bind((interface, ETH_P_ALL))
        self._socket.settimeout(0)
        self._flows: defaultdict[Flow, Tally] = defaultdict(Tally)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def flows(self) -> dict[Flow, Tally]:
        self.drain()
        # The kernel counts drops since the last reading of this option (packet(7)).
        _, drops = struct.unpack("II", self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        if drops:
            raise LabError(
                f"the capture lost {drops} packets, so there is nothing to compare with; try again"
            )
        return dict(self._flows)

    def drain(self) -> int:
        """Take what has arrived into account; returns how many packets of UDP and TCP that was."""
        seen = 0
        for header, kind in self._waiting():
            traffic = (
                Traffic.INTERNET_IN if kind == socket.PACKET_OUTGOING else Traffic.INTERNET_OUT
            )
            if (found := _read(header, traffic)) is not None:
                seen += 1
                flow, length = found
                self._flows[flow] += Tally(length, 1)
        return seen

    def settle(self, quiet_seconds: float = 0.3, patience: float = PATIENCE) -> None:
        """Wait until nothing has passed for `quiet_seconds`: late acknowledgements count too."""
        deadline = time.monotonic() + patience
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < quiet_seconds:
            if self.drain():
                quiet_since = time.monotonic()
            if time.monotonic() > deadline:
                raise LabError(
                    "traffic at the internet host does not end; does something else use the lab?"
                )
            time.sleep(0.02)

    def _waiting(self) -> Iterator[tuple[bytes, int]]:
        while True:
            try:
                header, origin = self._socket.recvfrom(HEADERS)
            except BlockingIOError:
                return
            yield header, origin[2]


def _read(header: bytes, traffic: Traffic) -> tuple[Flow, int] | None:
    """The flow a packet belongs to, and its length; None for what is neither UDP nor TCP."""
    is_incoming = traffic is Traffic.INTERNET_OUT
    version = header[0] >> 4 if header else 0
    if version == Family.V4:
        start, number = (header[0] & 15) * 4, header[9]
        length = int.from_bytes(header[2:4], "big")
        peer = header[12:16] if is_incoming else header[16:20]
    elif version == Family.V6:
        # No extension headers: the lab's sockets send none, and its links never fragment.
        start, number = 40, header[6]
        # IPv6's length field leaves out its own header; IPv4's includes it.
        length = 40 + int.from_bytes(header[4:6], "big")
        peer = header[8:24] if is_incoming else header[24:40]
    else:
        return None
    if number not in PROTOCOLS:
        return None
    source, destination = struct.unpack_from("!HH", header, start)
    port, own_port = (source, destination) if is_incoming else (destination, source)
    address = Address.unpack(peer)
    return Flow(PROTOCOLS[number], address, port, own_port, traffic), length
