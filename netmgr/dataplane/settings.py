"""Kernel settings that make the node a router, and those that keep pods from configuring it.

Forwarding (Documentation/networking/ip-sysctl.rst) is switched on for the families that pods have.

The node takes no configuration from a pod. By its kernel's defaults a node that does not forward
IPv6 takes addresses and a default route from router advertisements on any link, and on every link
learns a neighbour from each address that asks for one. A pod that may send raw packets
(CAP_NET_RAW, which runtimes give by default) could become its node's router, or fill its
neighbour tables. So the host's end of a pod's link, before it comes up and whatever `default` and
`all` say:

- makes no address and takes no router advertisement or redirect;
- hears no ARP (IFF_NOARP, arp_rcv); a rule drops neighbour discovery (`netmgr/rules/sources.py`).

Netlink reads a link's settings of both families, and writes IPv4's; IPv6's are written as files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from netmgr.errors import SetupError
from netmgr.kernel import links
from netmgr.kernel.links import Link
from netmgr.kernel.netlink import Netlink, Operation, u32_of
from netmgr.kernel.routes import read_routes
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family

_SYSCTLS = (Path("/host/proc/sys/net"), Path("/proc/sys/net"))
"""In a container /proc/sys is read-only; the manifests mount the machine's own at the first."""

_FORWARDING = {Family.V4: "ipv4/ip_forward", Family.V6: "ipv6/conf/all/forwarding"}
_ACCEPT_RA_WHILE_FORWARDING = "2"

_TOWARD_A_NETWORK = ("", "bond", "team", "vlan")
"""Kinds of links to the machine's network: hardware, which has no kind, and what is built on it."""

# rp_filter is not among them. For it the kernel uses the larger value of the link and of `all`, so
# a distribution's all=2 would turn strict into loose. A rule does that work (rules/sources.py).
_IPV4_OFF = {"accept_redirects": 4, "accept_source_route": 9}
"""Numbers of settings to be 0 (IPV4_DEVCONF_…, linux/ip.h), which the kernel counts from 1."""
_IPV6_OFF = {"accept_ra": 3, "accept_redirects": 4, "autoconf": 5}
"""Numbers of settings to be 0 (DEVCONF_…, linux/ipv6.h), from 0, by the names of their files."""


@cache
def sysctls() -> Path:
    """The directory of the machine's network settings."""
    return next(place for place in _SYSCTLS if place.is_dir())


def enable_forwarding(families: Iterable[Family], uplink: str | None = None) -> list[str]:
    """Have the kernel forward packets of these families; a line for each it did not forward before.

    Links toward the machine's network (hardware, `uplink`, and whatever has a default route) go on
    taking router advertisements.

    Raises:
        SetupError: the setting is off and cannot be written (a read-only /proc/sys).
    """
    root = sysctls()
    done = []
    for family in families:
        switch = root / _FORWARDING[family]
        # Nothing is written where it is on: /proc/sys may be read-only.
        if _read(switch) == "1":
            continue
        # With forwarding on, links with accept_ra=1 ignore router advertisements (ip-sysctl.rst),
        # and the node would lose its own default route. So this is done first.
        if family is Family.V6:
            _keep_router_advertisements(root, uplink)
        _write(root, switch, "1")
        done.append(f"forwarding of IPv{family.value} was switched off")
    return done


def switched_off(families: Iterable[Family]) -> list[Path]:
    """The switches of families that the kernel does not forward packets of."""
    switches = [sysctls() / _FORWARDING[family] for family in families]
    return [switch for switch in switches if switch.exists() and _read(switch) != "1"]


def _keep_router_advertisements(root: Path, uplink: str | None) -> None:
    # Never `default`: links that come later, those of pods too, would inherit it.
    for name in sorted(_network_links(uplink)):
        setting = root / "ipv6/conf" / name / "accept_ra"
        if setting.exists() and _read(setting) == "1":
            _write(root, setting, _ACCEPT_RA_WHILE_FORWARDING)


def _network_links(uplink: str | None) -> set[str]:
    with Netlink() as channel:
        present, routes = links.read_links(channel), read_routes(channel)
    defaults = {route.oif for route in routes if route.destination.length == 0}
    found = set()
    for link in present:
        # A pod's link with a default route has it from an advertisement that was taken before.
        if link.name == "lo" or link.name.startswith(LINK_PREFIX):
            continue
        if link.name == uplink or link.number in defaults or link.kind in _TOWARD_A_NETWORK:
            found.add(link.name)
    return found


def restrict(host_link: str) -> Operation:
    """Give a pod's link its settings, while it is down: IPv6's now, the others by this message.

    Raises:
        SetupError: one cannot be written (a read-only /proc/sys).
    """
    root = sysctls()
    directory = f"{root}/ipv6/conf/{host_link}"
    # Absent where IPv6 is off, or the MTU too small for it (RFC 8200, 5).
    has_ipv6 = os.path.isdir(directory)  # noqa: PTH112 - on the path of each ADD
    if has_ipv6:
        for setting in _IPV6_OFF:
            _write(root, f"{directory}/{setting}", "0")
    return links.restrict_inet(host_link, _IPV4_OFF.values(), has_ipv6=has_ipv6)


def lacking(link: Link) -> list[str]:
    """Which of the settings above a pod's link does not have."""
    v4, v6 = links.inet_settings(link)
    # By ARP and router advertisements a pod could become its node's router, or fill its neighbour
    # tables. Runtimes give CAP_NET_RAW by default, and the defaults of the kernel accept both.
    found = ["arp off"] if link.has_arp else []
    found += [f"ipv4 {name}=0" for name, number in _IPV4_OFF.items() if _value(v4, number - 1)]
    found += [f"ipv6 {name}=0" for name, number in _IPV6_OFF.items() if _value(v6, number)]
    return found


def _value(settings: bytes, number: int) -> int:
    """One of an array of settings; 0 where the family is switched off and there is no array."""
    return u32_of(settings[4 * number : 4 * number + 4])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise SetupError(
            f"{path}: this kernel has no such setting; is the protocol disabled?"
        ) from None


def _write(root: Path, path: Path | str, value: str) -> None:
    """Write a setting below `root`.

    Raises:
        SetupError: it cannot be written; names the setting as sysctl(8) does.
    """
    try:
        # Not `write_text`, whose buffers cost three times as much.
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, value.encode("ascii"))
        finally:
            os.close(descriptor)
    except OSError as error:
        name = str("net" / Path(path).relative_to(root)).replace("/", ".")
        raise SetupError(
            f"{path}: cannot be set to {value} ({error.strerror}); set {name}={value} on the node"
        ) from None
