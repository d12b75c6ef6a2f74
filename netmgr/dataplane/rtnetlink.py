"""Route-netlink messages as bytes, and bytes as messages (rtnetlink(7), linux/rtnetlink.h).

Why not a library: wiring one pod is fourteen small messages. Encoding them with pyroute2
takes 4 ms of Python per pod, here 0.1 ms, and that difference is most of an ADD. What is
encoded is only what `desired` asks for; nothing here knows what a pod is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from netmgr.errors import KernelError
from netmgr.prefixes import Address, Family, Prefix

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x4, 0x10, 0x300
NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE = 0x100, 0x200, 0x400
NLM_F_ACK_TLVS = 0x200
NLMSG_ERROR, NLMSG_DONE = 2, 3

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWNEIGH, RTM_GETNEIGH = 28, 30

IFF_UP = 0x1
RT_TABLE_MAIN, RT_SCOPE_UNIVERSE, RT_SCOPE_LINK, RTN_UNICAST = 254, 0, 253, 1
RT_TABLE_LOCAL, RTN_LOCAL, RTN_BLACKHOLE = 255, 2, 6
_ANY_SCOPE = 255
NUD_PERMANENT = 0x80

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINKINFO = 1, 3, 4, 18
_IFLA_IFALIAS, _IFLA_GROUP, _IFLA_NET_NS_FD = 20, 27, 28
_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS = 29, 1 << 3
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFA_F_NODAD = 0x02
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_LAST_METRIC = 0xFFFFFFFF
_NDA_DST, _NDA_LLADDR = 1, 2
_NLA_F_NESTED = 0x8000
_NLA_TYPE_MASK = 0x3FFF
_NLMSGERR_ATTR_MSG = 1
_AF = {Family.V4: 2, Family.V6: 10}
_FAMILY = {2: Family.V4, 10: Family.V6}

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_NDMSG = struct.Struct("=BxxxiHBB")


@dataclass(frozen=True, slots=True)
class Operation:
    """One request to the kernel; `text` is how it reads in logs and errors."""

    text: str
    type: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class VethEnd:
    """One end of a veth pair as it is to be created."""

    name: str
    mac: bytes
    mtu: int


class Route(NamedTuple):
    """What a route dump says of one unicast route of the main table."""

    destination: Prefix
    oif: int
    gateway: Address | None
    protocol: int
    scope: int
    metric: int


def encode(operation: Operation, sequence: int) -> bytes:
    """The operation as one netlink message that asks for an acknowledgement."""
    length = _HEADER.size + len(operation.body)
    flags = operation.flags | NLM_F_REQUEST
    return _HEADER.pack(length, operation.type, flags, sequence, 0) + operation.body


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, sequence, body) of each message in a received datagram.

    Raises:
        KernelError: one is cut off.
    """
    offset = 0
    while offset < len(data):
        if offset + _HEADER.size > len(data):
            raise KernelError("read a netlink message", details="its header is cut off")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise KernelError("read a netlink message", details=f"{length} bytes of {len(data) - offset}")
        yield kind, flags, sequence, data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3


def error_of(flags: int, body: bytes) -> tuple[int, str]:
    """(errno, the kernel's own sentence) of an NLMSG_ERROR body; errno 0 is an acknowledgement."""
    if len(body) < struct.calcsize("=i"):
        raise KernelError("read a netlink acknowledgement", details="it is cut off")
    (negative,) = struct.unpack_from("=i", body)
    reason = b""
    if flags & NLM_F_ACK_TLVS:
        reason = attributes(body, 4 + _HEADER.size).get(_NLMSGERR_ATTR_MSG, b"")
    return -negative, reason.rstrip(b"\0").decode(errors="replace")


def attributes(data: bytes, offset: int) -> dict[int, bytes]:
    """Attributes by type from `offset` on; of a repeated type the last one."""
    return dict(each_attribute(data, offset))


def each_attribute(data: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each attribute from `offset` on.

    Raises:
        KernelError: one is cut off; half an address would be another one.
    """
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            raise KernelError("read a netlink attribute", details=f"{length} bytes of {len(data) - offset}")
        yield kind & _NLA_TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NLA_F_NESTED, b"".join(inner))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def create_veth(host: VethEnd, pod: VethEnd, netns: int, group: int = 0) -> Operation:
    """Create a veth pair, both ends down, the pod's in the namespace open at `netns`, the host's in a link group.

    The kernel brings no end up in this message: an end without its peer refuses (ENOTCONN).
    """
    peer = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + _text(_IFLA_IFNAME, pod.name)
        + attribute(_IFLA_ADDRESS, pod.mac)
        + _number(_IFLA_MTU, pod.mtu)
        + _number(_IFLA_NET_NS_FD, netns)
    )
    data = nested(_IFLA_INFO_DATA, nested(_VETH_INFO_PEER, peer))
    body = (
        _IFINFO.pack(0, 0, 0, 0, 0)
        + _text(_IFLA_IFNAME, host.name)
        + attribute(_IFLA_ADDRESS, host.mac)
        + _number(_IFLA_MTU, host.mtu)
        + _number(_IFLA_GROUP, group)
        + nested(_IFLA_LINKINFO, _text(_IFLA_INFO_KIND, "veth"), data)
    )
    text = f"link add {host.name} type veth peer {pod.name} in the sandbox"
    return Operation(text, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body)


def raise_link(name: str, alias: str) -> Operation:
    """Bring a link up under an alias."""
    body = _IFINFO.pack(0, 0, 0, IFF_UP, IFF_UP) + _text(_IFLA_IFNAME, name)
    # Without a NUL, or the longest alias would be refused.
    body += attribute(_IFLA_IFALIAS, alias.encode())
    return Operation(f"link set {name} up alias '{alias}'", RTM_NEWLINK, NLM_F_ACK, body)


def raise_index(index: int) -> Operation:
    """Bring the link of this index up."""
    return Operation(f"link set {index} up", RTM_NEWLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, IFF_UP, IFF_UP))


def settle_link(index: int) -> Operation:
    """Have the link of this index send from now on.

    A link that was brought up before its peer learns of the carrier later, from a work queue,
    and drops what it should send until then. Asking for a link by its index makes the kernel
    catch up first (rtnl_getlink, linkwatch_sync_dev).
    """
    return Operation(f"link show {index}", RTM_GETLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, 0, 0))


def lower_link(name: str, group: int) -> Operation:
    """Take a link down and put it into a link group."""
    body = _IFINFO.pack(0, 0, 0, 0, IFF_UP) + _text(_IFLA_IFNAME, name) + _number(_IFLA_GROUP, group)
    return Operation(f"link set {name} down group {group}", RTM_NEWLINK, NLM_F_ACK, body)


def delete_link(index: int) -> Operation:
    """Delete one link."""
    return Operation(f"link delete {index}", RTM_DELLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, 0, 0))


def delete_group(group: int) -> Operation:
    """Delete every link of a group in one go."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + _number(_IFLA_GROUP, group)
    return Operation(f"link delete group {group}", RTM_DELLINK, NLM_F_ACK, body)


def add_address(address: Address, index: int) -> Operation:
    """Give a link an address of full prefix length; v6 without duplicate address detection."""
    nodad = _IFA_F_NODAD if address.family is Family.V6 else 0
    body = (
        _IFADDR.pack(_AF[address.family], address.family.width, nodad, 0, index)
        + attribute(_IFA_LOCAL, address.packed)
        + attribute(_IFA_ADDRESS, address.packed)
    )
    text = f"address add {address.prefix} to link {index}"
    return Operation(text, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, body)


def add_route(
    destination: Prefix, index: int, *, protocol: int, gateway: Address | None = None, metric: int = 0
) -> Operation:
    """Install or replace a unicast route of the main table."""
    scope = RT_SCOPE_UNIVERSE if gateway else RT_SCOPE_LINK
    body = _RTMSG.pack(
        _AF[destination.family], destination.length, 0, 0, RT_TABLE_MAIN, protocol, scope, RTN_UNICAST, 0
    )
    if destination.length:
        body += attribute(_RTA_DST, destination.network.packed)
    body += _number(_RTA_OIF, index)
    if gateway:
        body += attribute(_RTA_GATEWAY, gateway.packed)
    via = f" via {gateway}" if gateway else ""
    if metric:
        body += _number(_RTA_PRIORITY, metric)
    text = f"route add {destination}{via} on link {index}"
    return Operation(text, RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, body)


def add_gateway_route(destination: Prefix, gateway: Address, *, protocol: int) -> Operation:
    """Install a route of the main table by way of a gateway on any link; one that is there already is an error."""
    body = _gateway_route(destination, gateway, protocol, RT_SCOPE_UNIVERSE)
    return Operation(
        f"route add {destination} via {gateway}", RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body
    )


def delete_gateway_route(destination: Prefix, gateway: Address, *, protocol: int) -> Operation:
    """Remove a route of the main table that has this gateway and protocol."""
    body = _gateway_route(destination, gateway, protocol, _ANY_SCOPE)
    return Operation(f"route delete {destination} via {gateway}", RTM_DELROUTE, NLM_F_ACK, body)


def _gateway_route(destination: Prefix, gateway: Address, protocol: int, scope: int) -> bytes:
    kind = RTN_UNICAST if scope == RT_SCOPE_UNIVERSE else 0
    body = _RTMSG.pack(_AF[destination.family], destination.length, 0, 0, RT_TABLE_MAIN, protocol, scope, kind, 0)
    if destination.length:
        body += attribute(_RTA_DST, destination.network.packed)
    return body + attribute(_RTA_GATEWAY, gateway.packed)


def delete_route(route: Route) -> Operation:
    """Remove one route of the main table as a dump gave it."""
    destination = route.destination
    head = _AF[destination.family], destination.length, 0, 0, RT_TABLE_MAIN, route.protocol, _ANY_SCOPE, 0, 0
    body = _RTMSG.pack(*head)
    body += attribute(_RTA_DST, destination.network.packed) if destination.length else b""
    body += _number(_RTA_OIF, route.oif) + _number(_RTA_PRIORITY, route.metric)
    return Operation(f"route delete {destination} on link {route.oif}", RTM_DELROUTE, NLM_F_ACK, body)


def blackhole(destination: Prefix, *, protocol: int, removed: bool = False) -> Operation:
    """Install, or remove, a route of the main table that drops what takes it; any other to the same prefix wins."""
    body = _RTMSG.pack(_AF[destination.family], destination.length, 0, 0, RT_TABLE_MAIN, protocol, 0, RTN_BLACKHOLE, 0)
    body += attribute(_RTA_DST, destination.network.packed) + _number(_RTA_PRIORITY, _LAST_METRIC)
    if removed:
        return Operation(f"route delete blackhole {destination}", RTM_DELROUTE, NLM_F_ACK, body)
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    return Operation(f"route add blackhole {destination}", RTM_NEWROUTE, flags, body)


def add_neighbour(address: Address, mac: bytes, index: int) -> Operation:
    """Install or replace a permanent neighbour entry."""
    body = _NDMSG.pack(_AF[address.family], index, NUD_PERMANENT, 0, 0)
    body += attribute(_NDA_DST, address.packed) + attribute(_NDA_LLADDR, mac)
    text = f"neighbour add {address} on link {index}"
    return Operation(text, RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, body)


def dump_links() -> Operation:
    """Ask for every link."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + _number(_IFLA_EXT_MASK, _RTEXT_FILTER_SKIP_STATS)
    return Operation("link dump", RTM_GETLINK, NLM_F_DUMP, body)


def dump_routes(family: Family, protocol: int = 0, kind: int = RTN_UNICAST) -> Operation:
    """Ask for the routes of one kind of the main table, of one protocol where given."""
    body = _RTMSG.pack(_AF[family], 0, 0, 0, RT_TABLE_MAIN, protocol, 0, kind, 0)
    return Operation(f"route dump IPv{family.value}", RTM_GETROUTE, NLM_F_DUMP, body)


def dump_local_routes() -> Operation:
    """Ask for the v6 addresses the namespace takes packets for."""
    body = _RTMSG.pack(_AF[Family.V6], 0, 0, 0, RT_TABLE_LOCAL, 0, 0, RTN_LOCAL, 0)
    return Operation("route dump IPv6 local", RTM_GETROUTE, NLM_F_DUMP, body)


def dump_addresses(family: Family) -> Operation:
    """Ask for every address of a family."""
    return Operation(f"address dump IPv{family.value}", RTM_GETADDR, NLM_F_DUMP, _IFADDR.pack(_AF[family], 0, 0, 0, 0))


def dump_neighbours(family: Family) -> Operation:
    """Ask for every neighbour entry of a family."""
    return Operation(
        f"neighbour dump IPv{family.value}", RTM_GETNEIGH, NLM_F_DUMP, _NDMSG.pack(_AF[family], 0, 0, 0, 0)
    )


def route_of(body: bytes, wanted: int = RTN_UNICAST) -> Route | None:
    """Decode an RTM_NEWROUTE body; None for what is no plain route of this kind of the main table."""
    af, length, _, _, table, protocol, scope, kind, _ = _RTMSG.unpack_from(body)
    if af not in _FAMILY or table != RT_TABLE_MAIN or kind != wanted:
        return None
    family = _FAMILY[af]
    found = attributes(body, _RTMSG.size)
    destination = Prefix(family, int.from_bytes(found.get(_RTA_DST, b""), "big"), length)
    gateway = Address(family, int.from_bytes(found[_RTA_GATEWAY], "big")) if _RTA_GATEWAY in found else None
    metric = _u32(found.get(_RTA_PRIORITY))
    return Route(destination, _u32(found.get(_RTA_OIF)), gateway, protocol, scope, metric)


def local_address_of(body: bytes) -> Address | None:
    """Decode an RTM_NEWROUTE body; None for what is no local route."""
    af, _, _, _, table, _, _, kind, _ = _RTMSG.unpack_from(body)
    if af not in _FAMILY or table != RT_TABLE_LOCAL or kind != RTN_LOCAL:
        return None
    return Address(_FAMILY[af], int.from_bytes(attributes(body, _RTMSG.size).get(_RTA_DST, b""), "big"))


def address_of(body: bytes) -> tuple[Prefix, int] | None:
    """Decode an RTM_NEWADDR body into (address with its length as host bits kept, link index)."""
    af, length, _, _, index = _IFADDR.unpack_from(body)
    found = attributes(body, _IFADDR.size)
    raw = found.get(_IFA_LOCAL, found.get(_IFA_ADDRESS))
    if af not in _FAMILY or raw is None:
        return None
    return Prefix(_FAMILY[af], int.from_bytes(raw, "big"), length), index


def neighbour_of(body: bytes) -> tuple[Address, bytes, int, int] | None:
    """Decode an RTM_NEWNEIGH body into (address, MAC, link index, state)."""
    af, index, state, _, _ = _NDMSG.unpack_from(body)
    found = attributes(body, _NDMSG.size)
    if af not in _FAMILY or _NDA_DST not in found:
        return None
    address = Address(_FAMILY[af], int.from_bytes(found[_NDA_DST], "big"))
    return address, found.get(_NDA_LLADDR, b""), index, state


def _u32(raw: bytes | None) -> int:
    return int.from_bytes(raw, "little") if raw else 0
