"""Turns the node into a router (Documentation/networking/ip-sysctl.rst)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from netmgr.dataplane import rtnetlink
from netmgr.dataplane.links import link_of
from netmgr.dataplane.netlink import Netlink
from netmgr.errors import SetupError
from netmgr.model import LINK_PREFIX
from netmgr.prefixes import Family

_SYSCTLS = (Path("/host/proc/sys/net"), Path("/proc/sys/net"))
"""Where to look. In a container /proc/sys is read-only; the manifests mount the machine's own at the first."""

_FORWARDING = {Family.V4: "ipv4/ip_forward", Family.V6: "ipv6/conf/all/forwarding"}
_ACCEPT_RA_WHILE_FORWARDING = "2"

_TOWARD_A_NETWORK = ("", "bond", "team", "vlan")
"""Kinds of links that lead to the machine's network: hardware, which has no kind, and what is built on it."""


def enable(families: Iterable[Family], uplink: str | None = None) -> list[str]:
    """Have the kernel forward packets of these families; a sentence for each it did not forward before.

    Switching IPv6 forwarding on makes interfaces with `accept_ra=1` deaf to router
    advertisements, by which a node would lose its own default route. So those that lead to the
    machine's network (hardware, `uplink`, and whatever has a default route) are set to 2 first;
    `default` never is, since links that come later, of pods for example, would have it too.

    Raises:
        SetupError: the setting is off and cannot be written (a read-only /proc/sys).
    """
    root = sysctls()
    done = []
    for family in families:
        switch = root / _FORWARDING[family]
        if _read(switch) == "1":
            continue
        if family is Family.V6:
            _keep_router_advertisements(root, uplink)
        write(root, switch, "1")
        done.append(f"forwarding of IPv{family.value} was switched off")
    return done


def _keep_router_advertisements(root: Path, uplink: str | None) -> None:
    for name in sorted(_network_links(uplink)):
        setting = root / "ipv6/conf" / name / "accept_ra"
        if setting.exists() and _read(setting) == "1":
            write(root, setting, _ACCEPT_RA_WHILE_FORWARDING)


def _network_links(uplink: str | None) -> set[str]:
    with Netlink() as kernel:
        links = kernel.dump(rtnetlink.dump_links(), link_of)
        routes = [
            route for family in Family for route in kernel.dump(rtnetlink.dump_routes(family), rtnetlink.route_of)
        ]
    defaults = {route.oif for route in routes if route.destination.length == 0}
    # A pod's link with a default route has it from an advertisement that was taken before.
    others = [link for link in links if link.name != "lo" and not link.name.startswith(LINK_PREFIX)]
    return {
        link.name for link in others if link.name == uplink or link.number in defaults or link.kind in _TOWARD_A_NETWORK
    }


def sysctls() -> Path:
    """The directory of the machine's network settings."""
    return next(place for place in _SYSCTLS if place.is_dir())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise SetupError(f"{path}: this kernel has no such setting; is the protocol disabled?") from None


def write(root: Path, path: Path, value: str) -> None:
    """Write a setting below `root`.

    Raises:
        SetupError: it cannot be written; names the setting as sysctl(8) does.
    """
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        name = str("net" / path.relative_to(root)).replace("/", ".")
        raise SetupError(
            f"{path}: cannot be set to {value} ({error.strerror}); set {name}={value} on the node"
        ) from None
