"""Frames that a pod should not send, and a pod that sends them with one capability alone or with
all.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from enum import StrEnum

from netmgr import programs
from netmgr.dataplane.desired import HOST_MAC
from netmgr.kernel import bpf, netlink, traffic_filters
from netmgr.kernel.netlink import Netlink
from netmgr.kernel.traffic_filters import FilterPlace
from netmgr.prefixes import Address, Family
from tests.kernel.namespaces import inside
from tests.lab import wiring
from tests.lab.runtime import INTERFACE, Sandbox

ALL_NODES, ALL_ROUTERS = Address.parse("ff02::1"), Address.parse("ff02::2")
BROADCAST = Address.parse("255.255.255.255")
ARP_REQUEST, ARP_REPLY = 1, 2
(
    ROUTER_SOLICITATION,
    ROUTER_ADVERTISEMENT,
    NEIGHBOUR_SOLICITATION,
    NEIGHBOUR_ADVERTISEMENT,
    REDIRECT,
) = range(133, 138)
ECHO_REQUEST6 = 128
REDIRECT4, UNREACHABLE4, TOO_BIG6 = 5, 3, 2
ERRORS = {Family.V4: (3, 4, 11, 12), Family.V6: (1, 2, 3, 4)}
"""Every type by which routers report that they could not deliver (RFC 792, RFC 4443)."""

UDP, ICMP, ICMP6, FRAGMENT6 = 17, 1, 58, 44
_ETHERTYPE = {Family.V4: 0x0800, Family.V6: 0x86DD}
_ARP = 0x0806


class Power(StrEnum):
    """What the pod's process may do."""

    NET_RAW = "NET_RAW alone"
    ALL = "all capabilities"


def send(sandbox: Sandbox, frames: Iterable[bytes], power: Power) -> None:
    """Have a process of the pod send the frames as they are."""
    bounds = ["--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw", "--ambient-caps=+net_raw"]
    limited = (
        ["setpriv", "--reuid=65534", "--clear-groups", *bounds] if power is Power.NET_RAW else []
    )
    # The interpreter behind the virtual environment's link, which a user without privileges may not
    # be able to follow.
    sender = [os.path.realpath(sys.executable), *("-I", "-S", "-c", _SENDER, INTERFACE)]
    done = programs.run(
        ["nsenter", f"--net={sandbox.netns}", *limited, *sender],
        stdin="\n".join(frame.hex() for frame in frames).encode(),
    )
    assert done.returncode == 0, done.stderr.decode()


_SENDER = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
for line in sys.stdin:
    link.send(bytes.fromhex(line))
"""


def claim_internet(sandbox: Sandbox) -> None:
    """Have all that a pod sends say that it came from the internet."""
    program = bpf.load("forgery", _CLAIM, ())
    with wiring.inside(sandbox.netns), Netlink() as channel:
        index = netlink.index_of(INTERFACE)
        channel.transact(
            [
                traffic_filters.add_clsact(index),
                traffic_filters.put_filter(
                    FilterPlace.leaving(index), program.descriptor, "forgery"
                ),
            ]
        )


_CLAIM = """
    r2 = 1
    *(u32 *)(r1 + 44) = r2
    r0 = -1
    exit
"""


def mac_of(sandbox: Sandbox) -> bytes:
    """Hardware address of the pod's interface."""
    shown = inside(sandbox.netns, "ip", "-o", "link", "show", INTERFACE)
    return bytes.fromhex(shown.split("link/ether ")[1].split()[0].replace(":", ""))


def ip(
    source: Address, destination: Address, protocol: int, payload: bytes, hops: int = 255
) -> bytes:
    """A packet to the node, with its Ethernet header; checksums are right."""
    ends = source.packed + destination.packed
    if source.family is Family.V6:
        header = struct.pack("!IHBB", 6 << 28, len(payload), protocol, hops) + ends
    else:
        bare = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, hops, protocol, 0) + ends
        header = bare[:10] + struct.pack("!H", _checksum(bare)) + bare[12:]
    ethernet = _ethernet(HOST_MAC, b"\x02" + os.urandom(5), _ETHERTYPE[source.family])
    return ethernet + header + payload


def _ethernet(destination: bytes, source: bytes, kind: int) -> bytes:
    return destination + source + struct.pack("!H", kind)


def icmp6(source: Address, destination: Address, kind: int, body: bytes) -> bytes:
    """An ICMPv6 packet; `body` is what follows the checksum."""
    message = struct.pack("!BBH", kind, 0, 0) + body
    pseudo = source.packed + destination.packed + struct.pack("!II", len(message), ICMP6)
    checksum = struct.pack("!H", _checksum(pseudo + message))
    return ip(source, destination, ICMP6, message[:2] + checksum + message[4:])


def icmp4(source: Address, destination: Address, kind: int, code: int, body: bytes) -> bytes:
    """An ICMP packet; `body` is what follows the checksum."""
    message = struct.pack("!BBH", kind, code, 0) + body
    checksum = struct.pack("!H", _checksum(message))
    return ip(source, destination, ICMP, message[:2] + checksum + message[4:])


def too_big(
    source: Address,
    destination: Address,
    sent_to: Address,
    kind: int = 0,
    ports: tuple[int, int] | None = None,
) -> bytes:
    """An error about an echo reply that its receiver never sent to `sent_to`: it was too big.

    With `kind`, another error; with `ports`, about a datagram.
    """
    ends = destination.packed + sent_to.packed
    of4, of6 = (UDP, UDP) if ports else (ICMP, ICMP6)
    datagram = struct.pack("!HHHH", *ports, 1380, 0) if ports else b""
    if source.family is Family.V6:
        quoted = struct.pack("!IHBB", 6 << 28, 1400, of6, 64) + ends
        quoted += datagram or b"\x81" + bytes(7)
        return icmp6(source, destination, kind or TOO_BIG6, struct.pack("!I", 1280) + quoted)
    quoted = struct.pack("!BBHHHBBH", 0x45, 0, 1400, 1, 0x4000, 64, of4, 0) + ends
    quoted += datagram or bytes(8)
    kind = kind or UNREACHABLE4
    code = 4 if kind == UNREACHABLE4 else 0
    return icmp4(source, destination, kind, code, struct.pack("!HH", 0, 552) + quoted)


def fragment(
    source: Address, destination: Address, number: int, place: int, data: bytes, *, more: bool
) -> bytes:
    """A part of the datagram of UDP with this number: `data` from this place of it on."""
    if source.family is Family.V6:
        part = struct.pack("!BBHI", UDP, 0, place | more, number)
        return ip(source, destination, FRAGMENT6, part + data)
    frame = ip(source, destination, UDP, data)
    head = frame[14:18] + struct.pack("!HHBBH", number, more << 13 | place >> 3, 255, UDP, 0)
    head += frame[26:34]
    return frame[:14] + head[:10] + struct.pack("!H", _checksum(head)) + head[12:] + data


def udp(source: Address, destination: Address, ports: tuple[int, int], data: bytes) -> bytes:
    """A datagram from the first port to the second."""
    header = struct.pack("!HHHH", *ports, 8 + len(data), 0)
    shape = "!II" if source.family is Family.V6 else "!HH"
    pseudo = source.packed + destination.packed + struct.pack(shape, 8 + len(data), UDP)
    checksum = struct.pack("!H", _checksum(pseudo + header + data))
    return ip(source, destination, UDP, header[:6] + checksum + data)


def arp(operation: int, sender: Address, target: Address, mac: bytes) -> bytes:
    """An ARP packet to everybody."""
    ends = mac + sender.packed + bytes(6) + target.packed
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + ends
    return _ethernet(b"\xff" * 6, mac, _ARP) + body


def link_layer(kind: int, mac: bytes) -> bytes:
    """The option of neighbour discovery that tells a hardware address; kind 1 is the source's, 2
    the target's.
    """
    return bytes([kind, 1]) + mac


def router_advertisement(
    source: Address, *, destination: Address = ALL_NODES, routes: Iterable[Address] = ()
) -> bytes:
    """Offers a default route, addresses of 2001:db8:bad::/64, and routes to single addresses."""
    prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0)
    prefix += Address.parse("2001:db8:bad::").packed
    body = struct.pack("!BBHII", 64, 0, 1800, 0, 0) + link_layer(1, b"\x02\0\0\0\0\x66") + prefix
    for route in routes:
        body += struct.pack("!BBBBI", 24, 3, 128, 0x08, 3600) + route.packed
    return icmp6(source, destination, ROUTER_ADVERTISEMENT, body)


def _checksum(data: bytes) -> int:
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF or 0xFFFF
