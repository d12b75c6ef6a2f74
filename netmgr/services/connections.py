"""Ends what the connection table remembers of UDP clients whose endpoint is gone.

A TCP client learns that its endpoint is gone, and connects anew. A UDP client that keeps its
source port is led to the vanished endpoint for as long as it keeps sending, since only the
first packet of a connection is translated afresh; so these entries are deleted.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Iterator, Mapping

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.netlink import Netlink
from netmgr.dataplane.rtnetlink import Operation, attribute, attributes, nested
from netmgr.prefixes import Address, Family
from netmgr.services.model import Endpoint, Protocol, ServicePort

_NETLINK_NETFILTER = 12
_GET, _DELETE = 1 << 8 | 1, 1 << 8 | 2
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_IP, _PROTO = 1, 2
_PROTO_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_IP_SOURCE, _IP_DESTINATION = {Family.V4: 1, Family.V6: 3}, {Family.V4: 2, Family.V6: 4}
_FILTER_ORIGINAL, _BY_DESTINATION, _BY_PROTOCOL, _BY_DESTINATION_PORT = 1, 1 << 1, 1 << 3, 1 << 5
_AF = {Family.V4: 2, Family.V6: 10}
_NFGENMSG = struct.Struct("=BBH")
_LOOKS_BY_PORT = 16
"""Beyond this many ServicePorts, listing all UDP connections once costs less than a walk for each."""


def forget(gone: Mapping[ServicePort, Collection[Endpoint]]) -> int:
    """Delete the UDP connections of clients to these ServicePorts that these endpoints answer; says how many.

    Raises:
        KernelError: the kernel refused.
    """
    wanted = {seen: frozenset(them) for seen, them in gone.items() if them and seen.protocol is Protocol.UDP}
    if not wanted:
        return 0
    with Netlink(_NETLINK_NETFILTER) as channel:
        bodies = [body for request in _requests(wanted) for body in channel.dump(request, lambda body: body)]
        deletions = [_deletion(body) for body in bodies if _is_gone(body, wanted)]
        for failure in channel.attempt(deletions).values():
            # It may have ended by itself meanwhile.
            if failure.errno != errno.ENOENT:
                raise failure
    return len(deletions)


def _requests(wanted: Collection[ServicePort]) -> Iterator[Operation]:
    if len(wanted) <= _LOOKS_BY_PORT:
        yield from (_listing(seen.family, seen) for seen in wanted)
    else:
        yield from (_listing(family) for family in {seen.family for seen in wanted})


def _listing(family: Family, seen: ServicePort | None = None) -> Operation:
    """List UDP connections, the kernel leaving out those that go elsewhere (CTA_FILTER, Linux 5.8)."""
    flags, ip, proto = _BY_PROTOCOL, b"", attribute(_PROTO_NUMBER, bytes([Protocol.UDP]))
    if seen is not None:
        flags |= _BY_DESTINATION_PORT
        proto += attribute(_DESTINATION_PORT, seen.port.to_bytes(2, "big"))
        if family is Family.V4:
            # The kernel's comparison of IPv6 addresses is inverted (seen in Linux 6.18).
            flags |= _BY_DESTINATION
            ip = attribute(_IP_DESTINATION[family], seen.address.packed)
    body = _NFGENMSG.pack(_AF[family], 0, 0)
    body += nested(_ORIGINAL, nested(_IP, ip), nested(_PROTO, proto))
    body += nested(_FILTER, attribute(_FILTER_ORIGINAL, struct.pack("=I", flags)))
    return Operation("UDP connections", _GET, rtnetlink.NLM_F_DUMP, body)


def _is_gone(body: bytes, wanted: Mapping[ServicePort, frozenset[Endpoint]]) -> bool:
    parts = attributes(body, _NFGENMSG.size)
    original, protocol = _end(parts.get(_ORIGINAL, b""), _IP_DESTINATION, _DESTINATION_PORT)
    answering, _ = _end(parts.get(_REPLY, b""), _IP_SOURCE, _SOURCE_PORT)
    if original is None or answering is None or protocol != Protocol.UDP:
        return False
    return answering in wanted.get(ServicePort(original.address, Protocol.UDP, original.port), ())


def _end(side: bytes, kinds: Mapping[Family, int], port_kind: int) -> tuple[Endpoint | None, int]:
    """One end of one direction, and the protocol."""
    parts = attributes(side, 0)
    ip, proto = attributes(parts.get(_IP, b""), 0), attributes(parts.get(_PROTO, b""), 0)
    port = int.from_bytes(proto.get(port_kind, b""), "big")
    number = int.from_bytes(proto.get(_PROTO_NUMBER, b""), "big")
    for family, kind in kinds.items():
        if kind in ip:
            return Endpoint(Address(family, int.from_bytes(ip[kind], "big")), port), number
    return None, number


def _deletion(body: bytes) -> Operation:
    parts = attributes(body, _NFGENMSG.size)
    kept = b"".join(attribute(kind, parts[kind]) for kind in (_ID, _ZONE) if kind in parts)
    # The family stands where it stood; the tuple goes back as it came.
    head = body[: _NFGENMSG.size]
    return Operation("delete a connection", _DELETE, 0x4, head + nested(_ORIGINAL, parts[_ORIGINAL]) + kept)
