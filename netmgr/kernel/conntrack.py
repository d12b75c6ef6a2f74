"""The kernel's connection table: who is connected, and by which ports (nfnetlink_conntrack.h).

A connection has two tuples of addresses and ports: the original, as its first packet came, and the
reply, as answers come. With its source translated the reply goes to the translating address; with
its destination translated it comes from the endpoint.
"""

from __future__ import annotations

import errno
import logging
import struct
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from netmgr.errors import Ignoring, KernelError
from netmgr.kernel import netlink
from netmgr.prefixes import Address, Family

_CT_GET = 1 << 8 | 1
_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY, _CTA_STATUS = 1, 2, 3
_CTA_FILTER, _CTA_STATUS_MASK = 25, 26
_CTA_TUPLE_IP, _CTA_TUPLE_PROTO = 1, 2
_CTA_IP_SOURCE, _CTA_IP_DESTINATION = {Family.V4: 1, Family.V6: 3}, {Family.V4: 2, Family.V6: 4}
_CTA_PROTO_NUMBER, _CTA_PROTO_SOURCE_PORT = 1, 2
_CTA_FILTER_ORIG_FLAGS, _CTA_FILTER_REPLY_FLAGS = 1, 2
# What of a tuple CTA_FILTER compares (Linux 5.8). It is not asked to compare IPv6 addresses: its
# comparison of these is inverted (seen in Linux 6.18).
_BY_SOURCE = 1

_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_MOST = Path("/proc/sys/net/netfilter/nf_conntrack_max")
# The cost of one walk of the table in the kernel, and of decoding one entry; on one 2 GHz core.
_WALK_SECONDS = 0.009
_ENTRY_SECONDS = 0.00001
# nfnetlink answers EINVAL for a subsystem whose module is not loaded (nfnetlink_rcv_msg).
_NO_CONNTRACK = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOENT)

# The kernel picks from 1024 to 65535 for a client's port in it (nf_nat_l4proto_unique_tuple).
PORTS_PER_ADDRESS = 64_512

# Those with ports, by their number.
PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}

# IPS_SRC_NAT, as the kernel writes the status: in network order.
_SOURCE_TRANSLATED = int.from_bytes(struct.pack("!I", 1 << 4), sys.byteorder)

# Of a tuple's source address: behind the heads of the tuple, of its addresses and of this one.
_SOURCE_OFFSET = 12
_TUPLE_BYTES = {Family.V4: 52, Family.V6: 76}
# Reply tuple and status, as the kernel lays them out for tuples with addresses and ports.
_REPLY = {
    Family.V4: struct.Struct("=8x4x4s4x4s8xB7x2s10x4xI"),
    Family.V6: struct.Struct("=8x4x16s4x16s8xB7x2s10x4xI"),
}

log = logging.getLogger(__name__)


def tracked(addresses: Iterable[Address]) -> set[Address]:
    """Those of `addresses` that a tracked connection came from, or was answered by."""
    wanted, in_use = set(addresses), set[Address]()
    table = occupancy()
    if not table or not table.connections:
        return in_use
    try:
        with netlink.Netlink(netlink.NETLINK_NETFILTER) as channel:
            for request in _requests(wanted, table.connections):
                for sources in channel.dump(request, _sources_of):
                    in_use.update(sources)
    except KernelError as error:
        if error.errno not in _NO_CONNTRACK:
            log.warning("connection-table-unread error=%s", error)
        return set()
    return in_use & wanted


def _requests(wanted: set[Address], count: int) -> Iterator[netlink.Operation]:
    # A small table is listed once; of a large one the kernel picks each IPv4 address's connections,
    # so that it is walked but never copied. IPv6 is always listed.
    v4 = [address for address in wanted if address.family is Family.V4]
    # An address is in use as a client's (its connection's original source) or as a server's (the
    # source of replies). So each IPv4 address takes two walks of the table, one for each direction.
    if 2 * len(v4) * _WALK_SECONDS < count * _ENTRY_SECONDS:
        for address in v4:
            source = {_CTA_TUPLE_IP: {_CTA_IP_SOURCE[Family.V4]: address.packed}}
            by_original = {_CTA_FILTER_ORIG_FLAGS: _BY_SOURCE}
            by_reply = {_CTA_FILTER_REPLY_FLAGS: _BY_SOURCE}
            yield _listing(Family.V4, {_CTA_TUPLE_ORIG: source, _CTA_FILTER: by_original})
            yield _listing(Family.V4, {_CTA_TUPLE_REPLY: source, _CTA_FILTER: by_reply})
    else:
        yield _listing(Family.V4)
    if len(v4) < len(wanted):
        yield _listing(Family.V6)


def _sources_of(body: bytes) -> list[Address]:
    # Both directions': with its destination translated, a connection is answered by the endpoint.
    sources = []
    connection = netlink.attributes(body, netlink.NFGENMSG.size)
    for side in (_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY):
        ip, _ = _tuple_of(connection, side)
        sources += [Address.unpack(ip[kind]) for kind in _CTA_IP_SOURCE.values() if kind in ip]
    return sources


class Occupancy(NamedTuple):
    """Connections in the table, and how many it takes."""

    connections: int
    most: int


def occupancy() -> Occupancy | None:
    """How full the table is; None where connections are not tracked."""
    try:
        return Occupancy(*(int(path.read_text(encoding="ascii")) for path in (_COUNT, _MOST)))
    except (OSError, ValueError):
        return None


def begun_by(addresses: Iterable[Address]) -> Counter[Address]:
    """How many connections in the table each of these addresses began."""
    # 100,000 connections take 0.2 s, so it is asked for once in a while and never for a scrape.
    connections: Counter[Address] = Counter()
    with netlink.Netlink(netlink.NETLINK_NETFILTER) as channel:
        for family, wanted in _by_family(addresses).items():
            # Bytes are compared: making an Address of each entry would take five times as long.
            counts = dict.fromkeys(wanted, 0)
            # Never listed again, which would count each connection twice.
            channel.dump_once(_listing(family), _counting(family, counts))
            connections.update({wanted[packed]: count for packed, count in counts.items()})
    return connections


def _by_family(addresses: Iterable[Address]) -> dict[Family, dict[bytes, Address]]:
    by_family: dict[Family, dict[bytes, Address]] = {}
    for address in addresses:
        by_family.setdefault(address.family, {})[address.packed] = address
    return by_family


def _counting(family: Family, counts: dict[bytes, int]) -> Callable[[bytes], None]:
    # The message begins with the original tuple, and that with its addresses.
    begin = netlink.NFGENMSG.size + _SOURCE_OFFSET
    end = begin + family.octets

    def count(body: bytes) -> None:
        source = body[begin:end]
        if source in counts:
            counts[source] += 1

    return count


class Busiest(NamedTuple):
    """The endpoint of one family and protocol with the most connections."""

    ports: int
    endpoint: str


def busiest(addresses: Collection[Address]) -> dict[tuple[Family, str], Busiest]:
    """Ports of these addresses in use together toward the endpoint that takes the most of them."""
    # 100,000 connections take 0.3 s, so it is asked for once in a while and never for a scrape.
    # A translated connection needs a port of one of our addresses that no other connection has
    # toward the same endpoint (address, port and protocol). So ports run out for one endpoint while
    # others have all of them, and the most connections to one endpoint are the measure.
    endpoints = {}
    for family, own in _by_family(sorted(addresses)).items():
        for protocol, most in _most_by_protocol(_connections(family, own)).items():
            endpoints[family, PROTOCOLS[protocol]] = most
    return endpoints


def _most_by_protocol(toward: Counter[tuple[int, bytes, bytes]]) -> dict[int, Busiest]:
    most = dict.fromkeys(PROTOCOLS, Busiest(0, ""))
    for (protocol, address, port), count in toward.items():
        if protocol in most and count > most[protocol].ports:
            host = str(Address.unpack(address))
            host = f"[{host}]" if ":" in host else host
            most[protocol] = Busiest(count, f"{host}:{int.from_bytes(port, 'big')}")
    return most


def _connections(family: Family, own: Collection[bytes]) -> Counter[tuple[int, bytes, bytes]]:
    """Count of connections from our addresses, by their endpoint's protocol, address, port."""
    toward: Counter[tuple[int, bytes, bytes]] = Counter()

    def count(body: bytes) -> None:
        source, destination, protocol, port, status = _reply_of(family, body)
        # Replies come back to the translating address, so it is their destination.
        if destination in own and status & _SOURCE_TRANSLATED:
            toward[protocol, source, port] += 1

    # The kernel hands over translated connections alone since Linux 5.15. An older one ignores the
    # filter and lists all of them, so `count` looks at the status again.
    status = {_CTA_STATUS: _SOURCE_TRANSLATED, _CTA_STATUS_MASK: _SOURCE_TRANSLATED}
    with Ignoring(*_NO_CONNTRACK), netlink.Netlink(netlink.NETLINK_NETFILTER) as channel:
        channel.dump_once(_listing(family, status), count)
    return toward


def _reply_of(family: Family, body: bytes) -> tuple[bytes, bytes, int, bytes, int]:
    """Source and destination of a connection's replies, protocol, source port, and status."""
    size, start = _TUPLE_BYTES[family], netlink.NFGENMSG.size
    lengths = struct.unpack_from("=H", body, start) + struct.unpack_from("=H", body, start + size)
    # By position, a quarter of the time, where the tuples are as they always are.
    if lengths == (size, size) and body[start + 2 * size + 2] == _CTA_STATUS:
        reply: tuple[bytes, bytes, int, bytes, int] = _REPLY[family].unpack_from(body, start + size)
        return reply
    connection = netlink.attributes(body, start)
    ip, proto = _tuple_of(connection, _CTA_TUPLE_REPLY)
    return (
        ip.get(_CTA_IP_SOURCE[family], b""),
        ip.get(_CTA_IP_DESTINATION[family], b""),
        proto.get(_CTA_PROTO_NUMBER, b"\0")[0],
        proto.get(_CTA_PROTO_SOURCE_PORT, b"\0\0"),
        int.from_bytes(connection.get(_CTA_STATUS, b""), sys.byteorder),
    )


def _tuple_of(connection: dict[int, bytes], side: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Attributes of the addresses, and of protocol and ports, of one direction."""
    parts = netlink.attributes(connection.get(side, b""))
    ip, proto = parts.get(_CTA_TUPLE_IP, b""), parts.get(_CTA_TUPLE_PROTO, b"")
    return netlink.attributes(ip), netlink.attributes(proto)


def _listing(family: Family, wanted: netlink.Values | None = None) -> netlink.Operation:
    body = netlink.NFGENMSG.pack(family.af, 0, 0) + netlink.encoded(wanted or {})
    return netlink.Operation("list connections", _CT_GET, netlink.NLM_F_DUMP, body)
