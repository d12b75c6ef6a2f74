"""What a pod can tell its node by the link between them: nothing that the node would configure itself by.

By its kernel's defaults a node that does not forward IPv6 takes addresses and a default route from router
advertisements on any link, and on every link learns a neighbour from each address that asks for one. A pod that
may send raw packets (CAP_NET_RAW, which runtimes give by default) could become its node's router, or fill its
neighbour tables. So the host's end of a pod's link, before it comes up and whatever `default` and `all` say:

- makes no address and takes no router advertisement or redirect (Documentation/networking/ip-sysctl.rst);
- hears no ARP (IFF_NOARP, arp_rcv); neighbour discovery is dropped by a rule (`netmgr/rules/sources.py`).

Netlink writes IPv4's settings of a link (IFLA_INET_CONF) and reads both families'; IPv6's are files.
"""

from __future__ import annotations

import struct
from pathlib import Path

from netmgr.dataplane import forwarding, rtnetlink
from netmgr.dataplane.rtnetlink import NLM_F_ACK, RTM_NEWLINK, Operation

_IFF_NOARP = 0x80
_IFINFO = struct.Struct("=BxHiII")
_IFLA_IFNAME, _IFLA_AF_SPEC = 3, 26
_IFLA_INET_CONF, _IFLA_INET6_CONF = 1, 2
_IFLA_INET6_ADDR_GEN_MODE, _ADDR_GEN_MODE_NONE = 8, 1
_AF_INET, _AF_INET6 = 2, 10

_IPV4 = {"accept_redirects": 4, "accept_source_route": 9}
"""Numbers of settings (IPV4_DEVCONF_…, linux/ip.h), which the kernel counts from 1; all are to be 0."""
_IPV6 = {"accept_ra": 3, "accept_redirects": 4, "autoconf": 5}
"""Numbers of settings (DEVCONF_…, linux/ipv6.h), from 0, by their file's name; all are to be 0."""


def harden(name: str) -> Operation:
    """Give a link the settings that netlink can write. Sent while it is down: a message's flags come first."""
    v4 = rtnetlink.nested(_IFLA_INET_CONF, *(rtnetlink.attribute(number, bytes(4)) for number in _IPV4.values()))
    families = [rtnetlink.nested(_AF_INET, v4)]
    if _ipv6_settings(name).exists():
        # Without IPv6 on the link the kernel refuses the whole message (inet6_validate_link_af).
        v6 = rtnetlink.attribute(_IFLA_INET6_ADDR_GEN_MODE, bytes([_ADDR_GEN_MODE_NONE]))
        families.append(rtnetlink.nested(_AF_INET6, v6))
    body = _IFINFO.pack(0, 0, 0, _IFF_NOARP, _IFF_NOARP) + rtnetlink.attribute(_IFLA_IFNAME, name.encode() + b"\0")
    body += rtnetlink.nested(_IFLA_AF_SPEC, *families)
    return Operation(f"link set {name} arp off, without redirects", RTM_NEWLINK, NLM_F_ACK, body)


def write_settings(name: str) -> None:
    """Write the settings that are files, where the link has IPv6.

    Raises:
        SetupError: one cannot be written (a read-only /proc/sys).
    """
    for setting in _IPV6:
        if (path := _ipv6_settings(name) / setting).exists():
            forwarding.write(forwarding.sysctls(), path, "0")


def _ipv6_settings(name: str) -> Path:
    """Their directory. There is none where IPv6 is switched off, or the link's MTU below its least (RFC 8200, 5)."""
    return forwarding.sysctls() / "ipv6/conf" / name


def lacking(body: bytes) -> tuple[int, tuple[str, ...]]:
    """Index of the link of an RTM_NEWLINK body, and which of the settings above it does not have."""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    families = rtnetlink.attributes(rtnetlink.attributes(body, _IFINFO.size).get(_IFLA_AF_SPEC, b""), 0)
    v4 = rtnetlink.attributes(families.get(_AF_INET, b""), 0).get(_IFLA_INET_CONF, b"")
    v6 = rtnetlink.attributes(families.get(_AF_INET6, b""), 0).get(_IFLA_INET6_CONF, b"")
    found = [] if flags & _IFF_NOARP else ["arp off"]
    found += [f"ipv4 {setting}=0" for setting, number in _IPV4.items() if _value(v4, number - 1)]
    found += [f"ipv6 {setting}=0" for setting, number in _IPV6.items() if _value(v6, number)]
    return index, tuple(found)


def _value(settings: bytes, place: int) -> int:
    """One of an array of 32-bit settings; 0 where the family is switched off and there is no array."""
    return int.from_bytes(settings[4 * place : 4 * place + 4], "little")
