"""Links, their addresses and namespaces, as rtnetlink messages (linux/if_link.h, if_addr.h)."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from netmgr.errors import KernelError
from netmgr.kernel import netlink, proc
from netmgr.kernel.netlink import Operation, Reader, Values, attributes, encoded, string_of, u32_of
from netmgr.prefixes import Address, Family, Prefix

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_GETNSID, RTM_NEWLINKPROP = 90, 108

IFF_UP, _IFF_NOARP = 0x1, 0x80

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_LINK, _IFLA_MASTER = 1, 3, 4, 5, 10
_IFLA_LINKINFO, _IFLA_IFALIAS, _IFLA_AF_SPEC, _IFLA_GROUP = 18, 20, 26, 27
_IFLA_NET_NS_FD, _IFLA_EXT_MASK, _IFLA_PROMISCUITY, _IFLA_LINK_NETNSID = 28, 29, 30, 37
_IFLA_NUM_TX_QUEUES, _IFLA_NUM_RX_QUEUES = 31, 32
_IFLA_TARGET_NETNSID, _IFLA_PROP_LIST, _IFLA_ALT_IFNAME = 46, 52, 53
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFLA_INET_CONF, _IFLA_INET6_CONF, _IFLA_INET6_ADDR_GEN_MODE = 1, 2, 8
ADDR_GEN_MODE_NONE = 1
# The place of a setting in `inet_settings` (DEVCONF_DISABLE_IPV6).
DISABLE_IPV6 = 26
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x02
_NETNSA_NSID, _NETNSA_FD = 1, 3

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTGENMSG = struct.Struct("=Bxxx")

_ANY_LINK = _IFINFO.pack(0, 0, 0, 0, 0)
# All that the kernel uses of a pair's end without being asked for more. But it makes one for each
# processor first, and waits until nobody uses the others (veth_init_queues).
_ONE_QUEUE: Values = {_IFLA_NUM_TX_QUEUES: 1, _IFLA_NUM_RX_QUEUES: 1}


HERE = -1
"""The number of a socket's own namespace."""


class VethEnd(NamedTuple):
    """One end of a veth pair as it is to be created."""

    name: str
    mac: bytes
    mtu: int


class Link(NamedTuple):
    """What the kernel says of one interface.

    `peer` is the index of a pair's other end, or of the link below, in the namespace with the
    number `peer_netns`. `kind` is its type as ip-link(8) names it, "" for hardware. `master` is the
    index of its bridge, 0 without one. `af_spec` holds what `inet_settings` reads. `promiscuity` is
    how many ask for all that arrives.
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
    peer_netns: int = HERE
    kind: str = ""
    master: int = 0
    has_arp: bool = True
    af_spec: bytes = b""
    promiscuity: int = 0


def create_veth(host: VethEnd, pod: VethEnd, netns: int, group: int = 0) -> Operation:
    """Create a veth pair, both ends down, the pod's in the namespace open at `netns`."""
    # Neither end is IFF_UP: the kernel would open one before it has its peer, which veth_open
    # refuses (ENOTCONN).
    peer = _ANY_LINK + _end(pod, {_IFLA_NET_NS_FD: netns})
    kind: Values = {_IFLA_INFO_KIND: "veth", _IFLA_INFO_DATA: {_VETH_INFO_PEER: peer}}
    body = _ANY_LINK + _end(host, {_IFLA_GROUP: group, _IFLA_LINKINFO: kind})
    text = f"link add {host.name} type veth peer {pod.name} in the sandbox"
    return Operation(text, RTM_NEWLINK, netlink.ADD, body)


def _end(end: VethEnd, more: Values) -> bytes:
    own: Values = {_IFLA_IFNAME: end.name, _IFLA_ADDRESS: end.mac, _IFLA_MTU: end.mtu}
    return encoded({**own, **_ONE_QUEUE, **more})


def create_ifb(name: str) -> Operation:
    """Create an intermediate functional block, up: packets wait in its queues, and come back."""
    kind = {_IFLA_INFO_KIND: "ifb"}
    body = _IFINFO.pack(0, 0, 0, IFF_UP, IFF_UP)
    body += encoded({_IFLA_IFNAME: name, **_ONE_QUEUE, _IFLA_LINKINFO: kind})
    return Operation(f"link add {name} up type ifb", RTM_NEWLINK, netlink.ADD, body)


def _set_link(
    text: str, values: Values, *, index: int = 0, flags: int = 0, changed: int = 0
) -> Operation:
    """Change a link, known by its index or by its name among the values."""
    # Without a bit in `changed` the kernel leaves that flag as it is (`ifi_change`).
    body = _IFINFO.pack(0, 0, index, flags, changed) + encoded(values)
    return Operation(text, RTM_NEWLINK, netlink.NLM_F_ACK, body)


def mark(name: str, alias: str, group: int) -> Operation:
    # Not in the message that brings it up, which would do that first: a change of a link without a
    # carrier has the kernel look through every route of IPv6 (rt6_sync_down_dev).
    # The alias goes without a NUL, or the longest one would be refused.
    values: Values = {_IFLA_IFNAME: name, _IFLA_IFALIAS: alias.encode(), _IFLA_GROUP: group}
    return _set_link(f"link set {name} group {group} alias '{alias}'", values)


def raise_link(name: str) -> Operation:
    text = f"link set {name} up"
    return _set_link(text, {_IFLA_IFNAME: name}, flags=IFF_UP, changed=IFF_UP)


def raise_index(index: int) -> Operation:
    return _set_link(f"link set {index} up", {}, index=index, flags=IFF_UP, changed=IFF_UP)


def rename_index(index: int, name: str) -> list[Operation]:
    """Give the link of this index a name, and leave it up. It loses its routes by this."""
    return [
        # Linux before 6.2 renames no link that is up (dev_change_name).
        _set_link(f"link set {index} down", {}, index=index, changed=IFF_UP),
        _set_link(f"link set {index} name {name}", {_IFLA_IFNAME: name}, index=index),
        raise_index(index),
    ]


def touch(index: int) -> Operation:
    """Change nothing of the link of this index: ENODEV if there is none."""
    return _set_link(f"link set {index}", {}, index=index)


def add_alternative_names(name: str, more: Sequence[str]) -> Operation:
    """Give a link more names, of up to 127 bytes each (ip-link(8), "property add"; Linux 5.5)."""
    listed = b"".join(encoded({_IFLA_ALT_IFNAME: altname}) for altname in more)
    body = _ANY_LINK + encoded({_IFLA_IFNAME: name}) + netlink.nested(_IFLA_PROP_LIST, listed)
    text = f"link property add dev {name} altname, {len(more)} of them"
    return Operation(text, RTM_NEWLINKPROP, netlink.ADD, body)


def prepare_inet(name: str, ipv4: Mapping[int, int], *, has_ipv6: bool) -> Operation:
    """Switch off ARP and automatic IPv6 addresses, and set these of IPv4 (IPV4_DEVCONF_*)."""
    # Sent while the link is down, since a message's flags come into force before its attributes.
    # Without IPv6 on the link the kernel refuses the whole message (inet6_validate_link_af).
    ipv6 = {_IFLA_INET6_ADDR_GEN_MODE: bytes([ADDR_GEN_MODE_NONE])} if has_ipv6 else None
    families: Values = {Family.V4.af: {_IFLA_INET_CONF: ipv4}, Family.V6.af: ipv6}
    values: Values = {_IFLA_IFNAME: name, _IFLA_AF_SPEC: families}
    text = f"link set {name} arp off, without redirects"
    return _set_link(text, values, flags=_IFF_NOARP, changed=_IFF_NOARP)


def delete_link(index: int) -> Operation:
    body = _IFINFO.pack(0, 0, index, 0, 0)
    return Operation(f"link delete {index}", RTM_DELLINK, netlink.NLM_F_ACK, body)


def show_link(name: str) -> Operation:
    return _show(f"link show {name}", name=name)


def show_link_in(netns: int, index: int) -> Operation:
    """Ask for a link in another namespace, by that one's number in this one, or `HERE`."""
    return _show(f"link show {index} in namespace {netns}", index=index, netns=netns)


def settle_link(index: int) -> Operation:
    """Have the link of this index send from now on."""
    # A link that was brought up before its peer learns of the carrier later, from a work queue, and
    # drops what it should send until then. Asking for a link by its index makes the kernel catch up
    # first (rtnl_getlink, linkwatch_sync_dev).
    return _show(f"link show {index}", index=index)


def dump_links() -> Operation:
    """Ask for every link of the socket's namespace.

    Never for another's, by its number: the kernel lists that in buffers of 32 KiB, and stops
    without notice before a link that has hundreds of names.
    """
    return _show("link dump", flags=netlink.NLM_F_DUMP)


def _show(
    text: str, index: int = 0, netns: int = HERE, name: str = "", flags: int = netlink.NLM_F_ACK
) -> Operation:
    chosen = {_IFLA_IFNAME: name or None, _IFLA_TARGET_NETNSID: None if netns == HERE else netns}
    # Without statistics (RTEXT_FILTER_SKIP_STATS): half of what the kernel would say of a link.
    body = _IFINFO.pack(0, 0, index, 0, 0) + encoded({**chosen, _IFLA_EXT_MASK: 1 << 3})
    return Operation(text, RTM_GETLINK, flags, body)


def link_of(body: bytes) -> Link:
    """Decode an RTM_NEWLINK body."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    link_attributes = attributes(body, _IFINFO.size)
    names = link_attributes.get(_IFLA_PROP_LIST, b"")
    info = link_attributes.get(_IFLA_LINKINFO, b"")
    # Absent for a link without a peer, or with its peer in this namespace: -1, which is HERE.
    peer_netns = link_attributes.get(_IFLA_LINK_NETNSID, b"\xff")
    return Link(
        index,
        string_of(link_attributes.get(_IFLA_IFNAME, b"")),
        bool(flags & IFF_UP),
        link_attributes.get(_IFLA_ADDRESS, b""),
        u32_of(link_attributes.get(_IFLA_MTU)),
        string_of(link_attributes.get(_IFLA_IFALIAS, b"")),
        u32_of(link_attributes.get(_IFLA_GROUP)),
        tuple(string_of(name) for _, name in netlink.each_attribute(names)),
        u32_of(link_attributes.get(_IFLA_LINK)),
        int.from_bytes(peer_netns, sys.byteorder, signed=True),
        string_of(attributes(info).get(_IFLA_INFO_KIND, b"")),
        u32_of(link_attributes.get(_IFLA_MASTER)),
        not flags & _IFF_NOARP,
        link_attributes.get(_IFLA_AF_SPEC, b""),
        u32_of(link_attributes.get(_IFLA_PROMISCUITY)),
    )


def inet_settings(link: Link) -> tuple[bytes, bytes]:
    """A link's IPv4 and IPv6 settings, 32 bits each; empty where a family is switched off."""
    families = attributes(link.af_spec)
    v4 = attributes(families.get(Family.V4.af, b"")).get(_IFLA_INET_CONF, b"")
    v6 = attributes(families.get(Family.V6.af, b"")).get(_IFLA_INET6_CONF, b"")
    return v4, v6


def has_family(link: Link, family: Family) -> bool:
    """Whether a link has addresses, routes and neighbours of this family."""
    values = inet_settings(link)[tuple(Family).index(family)]
    at = 4 * DISABLE_IPV6
    return bool(values) and (family is Family.V4 or not u32_of(values[at : at + 4]))


def read_links(channel: Reader) -> list[Link]:
    return channel.dump(dump_links(), link_of)


class Links:
    """Every link of the channel's namespace, read again and again. Thread-safe."""

    def __init__(self, channel: Reader) -> None:
        self._channel = channel
        self._last: dict[bytes, Link] = {}

    def read(self) -> list[Link]:
        # What the last reading had as well is not decoded again: the kernel says forty things of a
        # link, and a node has hundreds.
        last = self._last

        def keep(body: bytes) -> tuple[bytes, Link]:
            return body, last.get(body) or link_of(body)

        self._last = listed = dict(self._channel.dump(dump_links(), keep))
        return list(listed.values())


def add_address(address: Address, index: int) -> Operation:
    """Give a link an address of full prefix length; v6 without duplicate address detection."""
    # Nobody else can have it on this link, and detection would make the pod wait for a second.
    nodad = _IFA_F_NODAD if address.family is Family.V6 else 0
    body = _IFADDR.pack(address.family.af, address.family.width, nodad, 0, index)
    # The same address as local and as peer's: an ordinary one, not of a point-to-point link.
    body += encoded({_IFA_LOCAL: address.packed, _IFA_ADDRESS: address.packed})
    text = f"address add {address.prefix} to link {index}"
    return Operation(text, RTM_NEWADDR, netlink.REPLACE, body)


def delete_address(address: Prefix, index: int) -> Operation:
    body = _IFADDR.pack(address.family.af, address.length, 0, 0, index)
    body += encoded({_IFA_LOCAL: address.network.packed})
    text = f"address delete {address} from link {index}"
    return Operation(text, RTM_DELADDR, netlink.NLM_F_ACK, body)


def address_of(body: bytes) -> tuple[Prefix, int] | None:
    """Decode an RTM_NEWADDR body into (address with its length, host bits kept; link index)."""
    af, length, _, _, index = _IFADDR.unpack_from(body)
    address_attributes = attributes(body, _IFADDR.size)
    # IFA_ADDRESS is the peer's on a point-to-point link; IPv6 has IFA_LOCAL only there.
    raw = address_attributes.get(_IFA_LOCAL, address_attributes.get(_IFA_ADDRESS))
    if Family.of_af(af) is None or raw is None:
        return None
    family, value = Address.unpack(raw)
    return Prefix(family, value, length), index


def read_addresses(channel: Reader, index: int = 0) -> list[tuple[Prefix, int]]:
    """Addresses with length and host bits, and their link's index: of one link, or of all."""
    text = f"address dump of link {index}" if index else "address dump"
    request = Operation(text, RTM_GETADDR, netlink.NLM_F_DUMP, _IFADDR.pack(0, 0, 0, 0, index))
    return [(held, link) for held, link in channel.dump(request, address_of) if index in (0, link)]


def read_holders(channel: Reader) -> dict[Address, str]:
    """Every address of the channel's namespace, with the name of its link."""
    # Two listings: a link may have come or gone in between.
    names = {link.number: link.name for link in read_links(channel)}
    return {
        held.network: names.get(index, "a link that has gone")
        for held, index in read_addresses(channel)
    }


def show_namespace_id(descriptor: int) -> Operation:
    """Ask for the number by which the socket's namespace knows an open one (RTM_GETNSID)."""
    body = _RTGENMSG.pack(0) + encoded({_NETNSA_FD: descriptor})
    return Operation("netns show", RTM_GETNSID, netlink.NLM_F_ACK, body)


def namespace_id_of(body: bytes) -> int:
    """Decode an RTM_NEWNSID body; -1 for a namespace without a number."""
    (number,) = struct.unpack("=i", attributes(body, _RTGENMSG.size)[_NETNSA_NSID])
    return int(number)


# The sums that ip-link(8) shows, a line for each link: one read for all of them (proc(5)).
PROC_NET_DEV = Path("/proc/self/net/dev")

_HEADLINES, _FIELDS, _SENT = 2, 16, 8


class Carried(NamedTuple):
    """Bytes (with Ethernet headers) and packets of a link since it was made.

    `errors` are packets that it could not receive or send, `lost` those that it dropped.
    """

    # A segment-offloaded packet counts once, with one header, as it crosses a veth pair whole.
    received: int
    received_packets: int
    sent: int
    sent_packets: int
    errors: int = 0
    lost: int = 0


def read_carried(path: Path = PROC_NET_DEV) -> dict[str, Carried]:
    """What each link of this namespace has carried, by name (rtnl_link_stats64)."""
    try:
        lines = proc.lines(path)
    except OSError as error:
        raise KernelError(f"read {path}", error.errno or 0) from error
    return dict(_carried(line) for line in lines[_HEADLINES:])


def _carried(line: str) -> tuple[str, Carried]:
    name, _, figures = line.rpartition(":")
    values = [int(value) for value in figures.split() if value.isdecimal()]
    if len(values) < _FIELDS:
        shape = f"a line has {len(values)} figures: {line!r}"
        raise KernelError(f"read {PROC_NET_DEV}", details=shape)
    # Eight figures of each direction, which begin with these four.
    received, received_packets, receive_errors, receive_drops, *_ = values
    sent, sent_packets, send_errors, send_drops, *_ = values[_SENT:]
    errors, lost = receive_errors + send_errors, receive_drops + send_drops
    return name.lstrip(" "), Carried(received, received_packets, sent, sent_packets, errors, lost)
