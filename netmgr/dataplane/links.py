"""Messages about links beside those that make a pair: names, the other end and its namespace (linux/if_link.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from netmgr.dataplane.rtnetlink import (
    IFF_UP,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_DUMP,
    NLM_F_EXCL,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_NEWLINK,
    Operation,
    attribute,
    attributes,
    each_attribute,
    nested,
)
from netmgr.prefixes import Family, Prefix

RTM_DELADDR, RTM_GETNSID, RTM_NEWLINKPROP = 21, 90, 108
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_IFALIAS, _IFLA_GROUP = 1, 3, 4, 5, 20, 27
_IFLA_EXT_MASK, _IFLA_LINK_NETNSID, _IFLA_TARGET_NETNSID, _IFLA_PROP_LIST, _IFLA_ALT_IFNAME = 29, 37, 46, 52, 53
_IFLA_LINKINFO, _IFLA_INFO_KIND = 18, 1
_RTEXT_FILTER_SKIP_STATS = 1 << 3
_IFA_LOCAL = 2
_NETNSA_NSID, _NETNSA_FD = 1, 3
_AF = {Family.V4: 2, Family.V6: 10}

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTGENMSG = struct.Struct("=Bxxx")


class Link(NamedTuple):
    """What the kernel says of one interface.

    `peer` is the index of a pair's other end, in the namespace known by the number `peer_netns`; -1 for this one.
    `kind` is its type as ip-link(8) names it, "" of hardware.
    """

    number: int
    name: str
    up: bool
    mac: bytes
    mtu: int
    alias: str
    group: int
    alternative_names: tuple[str, ...] = ()
    peer: int = 0
    peer_netns: int = -1
    kind: str = ""


def link_of(body: bytes) -> Link:
    """Decode an RTM_NEWLINK body."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    found = attributes(body, _IFINFO.size)
    return Link(
        index,
        _string(found.get(_IFLA_IFNAME, b"")),
        bool(flags & IFF_UP),
        found.get(_IFLA_ADDRESS, b""),
        _u32(found.get(_IFLA_MTU, b"")),
        _string(found.get(_IFLA_IFALIAS, b"")),
        _u32(found.get(_IFLA_GROUP, b"")),
        tuple(_string(name) for _, name in each_attribute(found.get(_IFLA_PROP_LIST, b""), 0)),
        _u32(found.get(_IFLA_LINK, b"")),
        int.from_bytes(found.get(_IFLA_LINK_NETNSID, b"\xff"), "little", signed=True),
        _string(attributes(found.get(_IFLA_LINKINFO, b""), 0).get(_IFLA_INFO_KIND, b"")),
    )


def add_alternative_names(name: str, more: Iterable[str]) -> Operation:
    """Give a link further names, of up to 127 bytes each (ip-link(8), "property add"; Linux 5.5)."""
    listed = [attribute(_IFLA_ALT_IFNAME, each.encode() + b"\0") for each in more]
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, name.encode() + b"\0")
    body += nested(_IFLA_PROP_LIST, *listed)
    text = f"link property add dev {name} altname, {len(listed)} of them"
    return Operation(text, RTM_NEWLINKPROP, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, body)


def show_link(name: str) -> Operation:
    """Ask for one link."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, name.encode() + b"\0")
    body += attribute(_IFLA_EXT_MASK, struct.pack("=I", _RTEXT_FILTER_SKIP_STATS))
    return Operation(f"link show {name}", RTM_GETLINK, NLM_F_ACK, body)


def show_link_in(netns: int, index: int) -> Operation:
    """Ask for a link in another namespace, by the number that this one knows the other by; -1 for this one."""
    body = _IFINFO.pack(0, 0, index, 0, 0)
    if netns >= 0:
        body += attribute(_IFLA_TARGET_NETNSID, struct.pack("=i", netns))
    body += attribute(_IFLA_EXT_MASK, struct.pack("=I", _RTEXT_FILTER_SKIP_STATS))
    return Operation(f"link show {index} in namespace {netns}", RTM_GETLINK, NLM_F_ACK, body)


def lower_index(index: int) -> Operation:
    """Take the link of this index down; its routes go, and its IPv6 addresses."""
    return Operation(f"link set {index} down", RTM_NEWLINK, NLM_F_ACK, _IFINFO.pack(0, 0, index, 0, IFF_UP))


def rename(index: int, name: str) -> Operation:
    """Give the link of this index another name; of `%d` in it the kernel makes the first number that is free."""
    body = _IFINFO.pack(0, 0, index, 0, 0) + attribute(_IFLA_IFNAME, name.encode() + b"\0")
    return Operation(f"link set {index} name {name}", RTM_NEWLINK, NLM_F_ACK, body)


def dump_addresses_of(index: int) -> Operation:
    """Ask for the addresses of one link, of both families."""
    return Operation(f"address dump of link {index}", RTM_GETADDR, NLM_F_DUMP, _IFADDR.pack(0, 0, 0, 0, index))


def delete_address(address: Prefix, index: int) -> Operation:
    """Take an address, with its length, from a link."""
    packed = address.value.to_bytes(address.family.width // 8, "big")
    body = _IFADDR.pack(_AF[address.family], address.length, 0, 0, index) + attribute(_IFA_LOCAL, packed)
    return Operation(f"address delete {address} from link {index}", RTM_DELADDR, NLM_F_ACK, body)


def show_namespace_id(descriptor: int) -> Operation:
    """Ask for the number that the socket's namespace knows an open one by (rtnetlink(7), RTM_GETNSID)."""
    body = _RTGENMSG.pack(0) + attribute(_NETNSA_FD, struct.pack("=I", descriptor))
    return Operation("netns show", RTM_GETNSID, NLM_F_ACK, body)


def namespace_id_of(body: bytes) -> int:
    """Decode an RTM_NEWNSID body; -1 for a namespace without a number."""
    (number,) = struct.unpack("=i", attributes(body, _RTGENMSG.size)[_NETNSA_NSID])
    return int(number)


def _string(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _u32(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
