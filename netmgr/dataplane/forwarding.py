"""Turns the node into a router (Documentation/networking/ip-sysctl.rst)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from netmgr.errors import SetupError
from netmgr.prefixes import Family

_SYSCTLS = (Path("/host/proc/sys/net"), Path("/proc/sys/net"))
"""Where to look. In a container /proc/sys is read-only; the manifests mount the machine's own at the first."""

_FORWARDING = {Family.V4: "ipv4/ip_forward", Family.V6: "ipv6/conf/all/forwarding"}
_ACCEPT_RA_WHILE_FORWARDING = "2"


def enable(families: Iterable[Family], places: Iterable[Path] = _SYSCTLS) -> list[str]:
    """Have the kernel forward packets of these families; a sentence for each it did not forward before.

    Switching IPv6 forwarding on makes interfaces with `accept_ra=1` deaf to router
    advertisements, by which a node would lose its own default route; those are set to 2 first.

    Raises:
        SetupError: the setting is off and cannot be written (a read-only /proc/sys).
    """
    root = next(place for place in places if place.is_dir())
    done = []
    for family in families:
        switch = root / _FORWARDING[family]
        if _read(switch) == "1":
            continue
        if family is Family.V6:
            _keep_router_advertisements(root)
        _write(root, switch, "1")
        done.append(f"forwarding of IPv{family.value} was switched off")
    return done


def _keep_router_advertisements(root: Path) -> None:
    for setting in sorted((root / "ipv6/conf").glob("*/accept_ra")):
        if setting.parent.name != "lo" and _read(setting) == "1":
            _write(root, setting, _ACCEPT_RA_WHILE_FORWARDING)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise SetupError(f"{path}: this kernel has no such setting; is the protocol disabled?") from None


def _write(root: Path, path: Path, value: str) -> None:
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        name = str("net" / path.relative_to(root)).replace("/", ".")
        raise SetupError(
            f"{path}: cannot be set to {value} ({error.strerror}); set {name}={value} on the node"
        ) from None
