"""How many ports source translation holds, counted in the kernel's connection table.

A translated connection needs a port of one of our addresses that no other connection has toward
the same endpoint (address, port and protocol). So ports run out for one endpoint while others
have all of them, and the most connections to one endpoint are the measure. The kernel hands
over translated connections alone (CTA_STATUS as a filter, Linux 5.15; an older one hands over
all, which are sorted here): 100,000 take 0.3 s, once in a while and never for a scrape.
"""

from __future__ import annotations

import errno
import struct
import sys
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import KernelError
from netmgr.prefixes import Address, Family

PORTS_PER_ADDRESS = 64_512
"""1024 to 65535: what the kernel picks from for a client's port of that range (nf_nat_l4proto_unique_tuple)."""

PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
"""Those with ports, by their number."""

_NETLINK_NETFILTER = 12
_CT_GET = (1 << 8) | 1
_NFGENMSG = struct.Struct("=BBH")
_AF = {Family.V4: 2, Family.V6: 10}
_CTA_TUPLE_REPLY, _CTA_TUPLE_IP, _CTA_TUPLE_PROTO, _CTA_STATUS, _CTA_STATUS_MASK = 2, 1, 2, 3, 26
_CTA_IP_SOURCE, _CTA_IP_DESTINATION = {Family.V4: 1, Family.V6: 3}, {Family.V4: 2, Family.V6: 4}
_CTA_PROTO_NUMBER, _CTA_PROTO_SOURCE_PORT = 1, 2
_SOURCE_TRANSLATED = int.from_bytes(struct.pack("!I", 1 << 4), sys.byteorder)
"""IPS_SRC_NAT, as the kernel writes the status: in network order."""

_TUPLE_BYTES = {Family.V4: 52, Family.V6: 76}
_REPLY = {Family.V4: struct.Struct("=8x4x4s4x4s8xB7x2s10x4xI"), Family.V6: struct.Struct("=8x4x16s4x16s8xB7x2s10x4xI")}
"""Reply tuple and status where both tuples are of addresses and ports, as the kernel always lays these out."""

_NO_CONNTRACK = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT}


class Busiest(NamedTuple):
    """The endpoint of one family and protocol with the most connections."""

    ports: int
    endpoint: str


def busiest(addresses: Collection[Address]) -> dict[tuple[Family, str], Busiest]:
    """Ports in use of these addresses together, toward the endpoint that has the most of them.

    Raises:
        KernelError: the connection table cannot be read.
    """
    found = {}
    for family in sorted({address.family for address in addresses}):
        own = {address.packed for address in addresses if address.family is family}
        toward = _connections(family, own)
        for number, protocol in PROTOCOLS.items():
            counts = {endpoint: count for endpoint, count in toward.items() if endpoint[0] == number}
            endpoint = max(counts, key=counts.__getitem__, default=None)
            found[family, protocol] = (
                Busiest(counts[endpoint], _shown(family, endpoint)) if endpoint else Busiest(0, "")
            )
    return found


def _connections(family: Family, own: Collection[bytes]) -> Counter[tuple[int, bytes, bytes]]:
    """Connections that left by one of our addresses, by protocol, address and port of their endpoint."""
    toward: Counter[tuple[int, bytes, bytes]] = Counter()

    def count(body: bytes) -> None:
        source, destination, protocol, port, status = _decoded(family, body)
        if destination in own and status & _SOURCE_TRANSLATED:
            toward[protocol, source, port] += 1

    try:
        with Netlink(_NETLINK_NETFILTER) as channel:
            channel.dump(_request(family), count)
    except KernelError as error:
        if error.errno not in _NO_CONNTRACK:
            raise
    return toward


def _request(family: Family) -> rtnetlink.Operation:
    status = struct.pack("=I", _SOURCE_TRANSLATED)
    body = _NFGENMSG.pack(_AF[family], 0, 0)
    body += rtnetlink.attribute(_CTA_STATUS, status) + rtnetlink.attribute(_CTA_STATUS_MASK, status)
    return rtnetlink.Operation("translated connections", _CT_GET, rtnetlink.NLM_F_DUMP, body)


def _decoded(family: Family, body: bytes) -> tuple[bytes, bytes, int, bytes, int]:
    """Where a connection's answers come from and go to, protocol, port they come from, and its status."""
    size, start = _TUPLE_BYTES[family], _NFGENMSG.size
    lengths = struct.unpack_from("=H", body, start) + struct.unpack_from("=H", body, start + size)
    if lengths == (size, size) and body[start + 2 * size + 2] == _CTA_STATUS:
        found: tuple[bytes, bytes, int, bytes, int] = _REPLY[family].unpack_from(body, start + size)
        return found
    connection = rtnetlink.attributes(body, start)
    reply = rtnetlink.attributes(connection.get(_CTA_TUPLE_REPLY, b""), 0)
    addresses = rtnetlink.attributes(reply.get(_CTA_TUPLE_IP, b""), 0)
    ports = rtnetlink.attributes(reply.get(_CTA_TUPLE_PROTO, b""), 0)
    return (
        addresses.get(_CTA_IP_SOURCE[family], b""),
        addresses.get(_CTA_IP_DESTINATION[family], b""),
        ports.get(_CTA_PROTO_NUMBER, b"\0")[0],
        ports.get(_CTA_PROTO_SOURCE_PORT, b"\0\0"),
        int.from_bytes(connection.get(_CTA_STATUS, b""), sys.byteorder),
    )


def _shown(family: Family, endpoint: tuple[int, bytes, bytes]) -> str:
    _, address, port = endpoint
    text = str(Address(family, int.from_bytes(address, "big")))
    return f"{text}:{int.from_bytes(port, 'big')}" if family is Family.V4 else f"[{text}]:{int.from_bytes(port, 'big')}"
