"""Kernel settings that make the node a router, and those that keep pods from configuring it.

Forwarding (Documentation/networking/ip-sysctl.rst) is switched on for the families that pods have.
A pod's link hears neither router advertisements nor ARP (IFF_NOARP, arp_rcv), and a rule drops
neighbour discovery (`netmgr/rules/sources.py`).

A file that cannot be written (a read-only /proc/sys) raises SetupError.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from netmgr.errors import SetupError
from netmgr.kernel import links
from netmgr.kernel.links import Link
from netmgr.kernel.netlink import Netlink, Operation, u32_of
from netmgr.kernel.routes import read_routes
from netmgr.model import LINK_PREFIX, NODE_ROUTE_PROTOCOL, ROUTE_PROTOCOL
from netmgr.prefixes import Family

# In a container /proc/sys is read-only; the manifests mount the machine's own at the first.
_SYSCTLS = (Path("/host/proc/sys/net"), Path("/proc/sys/net"))

_FORWARDING = {Family.V4: "ipv4/ip_forward", Family.V6: "ipv6/conf/all/forwarding"}
_ACCEPT_RA_WHILE_FORWARDING = "2"

# Links to the machine's network: hardware, which has no kind, and what is built on it.
_TOWARD_A_NETWORK = ("", "bond", "team", "vlan")
_NODES_ROUTES = (ROUTE_PROTOCOL, NODE_ROUTE_PROTOCOL)


class _Setting(NamedTuple):
    """A setting of a link: the name of its file, its place in the kernel's list, and its value."""

    family: Family
    name: str
    place: int
    value: int


# What the host's end of a pod's link has before it comes up, whatever `default` and `all` say. By
# the defaults of a kernel that does not forward IPv6, any link takes addresses and a default route
# from router advertisements, and learns a neighbour from each address that asks for one. So a pod
# that may send raw packets (CAP_NET_RAW, which runtimes give by default) could become its node's
# router, or fill its neighbour tables.
# rp_filter is not among them. For it the kernel uses the larger value of the link and of `all`, so
# a distribution's all=2 would turn strict into loose. A rule does that work (rules/sources.py).
_OF_PODS_LINKS = (
    # IPV4_DEVCONF_… of linux/ip.h, less one.
    _Setting(Family.V4, "forwarding", 0, 1),
    _Setting(Family.V4, "accept_redirects", 3, 0),
    _Setting(Family.V4, "accept_source_route", 8, 0),
    # DEVCONF_… of linux/ipv6.h.
    _Setting(Family.V6, "accept_ra", 3, 0),
    _Setting(Family.V6, "accept_redirects", 4, 0),
    _Setting(Family.V6, "autoconf", 5, 0),
    _Setting(Family.V6, "addr_gen_mode", 47, links.ADDR_GEN_MODE_NONE),
    # Last, since the kernel takes the others into account when it switches IPv6 on.
    _Setting(Family.V6, "disable_ipv6", links.DISABLE_IPV6, 0),
)


@cache
def sysctls() -> Path:
    """The directory of the machine's network settings."""
    return next(place for place in _SYSCTLS if place.is_dir())


def enable_forwarding(families: Iterable[Family], uplink: str | None = None) -> list[str]:
    """Have the kernel forward packets of these families; a line for each switch that was off.

    Links toward the machine's network (hardware, `uplink`, and whatever routes lead over) go on
    taking router advertisements.
    """
    done = []
    # Nothing is written where it is on: /proc/sys may be read-only.
    for switch in _switches(families, uplink):
        # Again, since IPv4's switch for all links has switched each of them on.
        if _read(switch) == "1":
            continue
        # With forwarding on, links with accept_ra=1 ignore router advertisements (ip-sysctl.rst),
        # and the node would lose its own default route. So this is done first.
        if switch.match(_FORWARDING[Family.V6]):
            _keep_router_advertisements(uplink)
        _write(switch, "1")
        done.append(f"{name_of(switch)} was 0")
    return done


def switched_off(families: Iterable[Family], uplink: str | None = None) -> list[Path]:
    """The switches that keep the kernel from forwarding packets of these families."""
    return [
        switch for switch in _switches(families, uplink) if switch.exists() and _read(switch) != "1"
    ]


def _switches(families: Iterable[Family], uplink: str | None) -> list[Path]:
    # Of all links and, for IPv4, of each by which pods' packets come from elsewhere
    # (IN_DEV_FORWARD). For IPv6, the switch of a single link decides nothing (ip6_forward).
    wanted = sorted(families)
    switches = [_FORWARDING[family] for family in wanted]
    if Family.V4 in wanted:
        switches += [f"ipv4/conf/{name}/forwarding" for name in sorted(_links_away(uplink))]
    return [sysctls() / switch for switch in switches]


def name_of(setting: Path) -> str:
    """The name of a setting, as sysctl(8) has it."""
    return str("net" / setting.relative_to(sysctls())).replace("/", ".")


def _keep_router_advertisements(uplink: str | None) -> None:
    # Never `default`: links that come later, those of pods too, would inherit it.
    for name in sorted(_links_away(uplink, _TOWARD_A_NETWORK)):
        setting = sysctls() / "ipv6/conf" / name / "accept_ra"
        # 0 is somebody's decision, 1 the kernel's default.
        if setting.exists() and _read(setting) == "1":
            _write(setting, _ACCEPT_RA_WHILE_FORWARDING)


def _links_away(uplink: str | None, kinds: Collection[str] = ()) -> set[str]:
    """Links to elsewhere: `uplink`, those that routes lead over, and any of these kinds."""
    with Netlink() as channel:
        present, routes = links.read_links(channel), read_routes(channel)
    ways = {
        route.oif
        for route in routes
        if not route.destination.length or route.protocol in _NODES_ROUTES
    }
    others = (
        link for link in present if link.name != "lo" and not link.name.startswith(LINK_PREFIX)
    )
    return {
        link.name
        for link in others
        if link.name == uplink or link.number in ways or link.kind in kinds
    }


def prepare(host_link: str, families: Collection[Family]) -> Operation:
    """Give a pod's link its settings, while it is down: IPv6's now, the others by this message.

    `families` are those that the pod has addresses of.
    """
    directory = f"{sysctls()}/ipv6/conf/{host_link}"
    # Absent where IPv6 is off, or the MTU too small for it (RFC 8200, 5).
    has_ipv6 = os.path.isdir(directory)  # noqa: PTH112 - on the path of each ADD
    # As files: of IPv6's settings netlink writes one, though it reads them all.
    if has_ipv6:
        for setting in _wanted(families):
            # Writing that file would spin for the routing lock (addrconf_sysctl_addr_gen_mode).
            if setting.family is Family.V6 and setting.name != "addr_gen_mode":
                _write(f"{directory}/{setting.name}", str(setting.value))
    of_v4 = (setting for setting in _OF_PODS_LINKS if setting.family is Family.V4)
    v4 = {setting.place + 1: setting.value for setting in of_v4}
    return links.prepare_inet(host_link, v4, has_ipv6=has_ipv6)


def bound_segments() -> None:
    """Have TCP send no smaller segments than it must, in the calling thread's namespace."""
    # For both families. Every host takes segments of 536 bytes (RFC 9293, 3.7.1).
    _write(sysctls() / "ipv4/tcp_min_snd_mss", "536")


def lacking(link: Link, families: Collection[Family]) -> list[str]:
    """Which of the settings above the link of a pod with these families does not have."""
    values = dict(zip(Family, links.inet_settings(link), strict=True))
    missing = ["arp off"] if link.has_arp else []
    for family, name, place, value in _wanted(families):
        # There is no list where the family is not on the link.
        if values[family] and u32_of(values[family][4 * place : 4 * place + 4]) != value:
            missing.append(f"ipv{family.value} {name}={value}")
    return missing


def _wanted(families: Collection[Family]) -> Iterable[_Setting]:
    return (
        setting
        for setting in _OF_PODS_LINKS
        if setting.name != "disable_ipv6" or Family.V6 in families
    )


def enable_ipv6(links_of_a_sandbox: Iterable[str]) -> None:
    """Switch IPv6 on for links of the thread's namespace, where it is off but not absent."""
    for name in links_of_a_sandbox:
        if os.path.isdir(directory := f"{sysctls()}/ipv6/conf/{name}"):  # noqa: PTH112 - as above
            _write(f"{directory}/disable_ipv6", "0")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise SetupError(
            f"{path}: this kernel has no such setting; is the protocol disabled?"
        ) from None


def _write(path: Path | str, value: str) -> None:
    """Write a setting if it has another value."""
    # Looked at first, since some writes wait for the routing lock.
    try:
        # Not `write_text`, whose buffers cost three times as much.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            # More bytes than a number has.
            if os.read(descriptor, 16).strip() != value.encode("ascii"):
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, value.encode("ascii"))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SetupError(
            f"{path}: cannot be set to {value} ({error.strerror}); "
            f"set {name_of(Path(path))}={value} on the node"
        ) from None
