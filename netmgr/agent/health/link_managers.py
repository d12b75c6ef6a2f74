"""Finds programs' settings by which they would rename pods' links, or change what is on them.

Pods' links come with their names, addresses and MTU, and belong to the agent. What a machine's own
programs are configured to do with any link concerns them as well.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Iterator
from configparser import ConfigParser, SectionProxy
from pathlib import Path

from netmgr.documents import patterns
from netmgr.documents.diagnostics import Severity
from netmgr.documents.node import NodeDocument
from netmgr.findings import Finding
from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink
from netmgr.model import LINK_PREFIX

# In a container, the machine's own are where the manifests mount them.
_FOLDERS = ("/etc", "/run", "/usr/lib", "/host/etc", "/host/usr/lib")
SYSTEMD = tuple(Path(place) / "systemd/network" for place in _FOLDERS)
UDEV = tuple(Path(place) / "udev/rules.d" for place in _FOLDERS)
NETWORK_MANAGER = Path("/run/NetworkManager/devices")

_ANY_POD = f"{LINK_PREFIX}0123456789ab"
# Keys of a .link file that change something of a link which came with all of these.
_LINK_SETTINGS = {"name", "alias", "macaddress", "mtubytes", "group"}

_UDEV_TERM = re.compile(r'([A-Z_]+(?:\{[^}]*\})?)\s*(==|!=|\+=|-=|:=|=)\s*"([^"]*)"')
_UDEV_MATCHES = {"SUBSYSTEM", "ACTION", "KERNEL"}
_UDEV_SETTINGS = re.compile(r"NAME|ATTR\{(?:mtu|address|ifalias|netdev_group|flags)\}")


def networkd(_: NodeDocument) -> Iterator[Finding]:
    """Networks of systemd-networkd that take the links of pods (systemd.network(5))."""
    for path in _files(SYSTEMD, "*.network"):
        if _takes_pods_links(_parsed(path), "name"):
            yield Finding(
                Severity.WARNING,
                f"{path} matches the links of pods ({LINK_PREFIX}…), so systemd-networkd would "
                "take away their routes and addresses",
                f"add `Name=!{LINK_PREFIX}*` to its [Match]",
            )


def udev(_: NodeDocument) -> Iterator[Finding]:
    """Link files (systemd.link(5)) and rules of udev that change the links of pods."""
    for path in _files(SYSTEMD, "*.link"):
        parser = _parsed(path)
        changes = _LINK_SETTINGS & set(parser["Link"] if parser.has_section("Link") else ())
        if changes and _takes_pods_links(parser, "originalname"):
            yield Finding(
                Severity.WARNING,
                f"{path} matches the links of pods ({LINK_PREFIX}…), so udev would change their "
                + ", ".join(sorted(changes)),
                f"add `OriginalName=!{LINK_PREFIX}*` to its [Match]",
            )
    for path in _files(UDEV, "*.rules"):
        text = path.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), start=1):
            if _changes_pods_links(line):
                yield Finding(
                    Severity.WARNING,
                    f"rule {number} of {path} matches the links of pods ({LINK_PREFIX}…), so udev "
                    "would rename or change them",
                    f'add `KERNEL!="{LINK_PREFIX}*"` to it, and run udevadm control --reload',
                )


def network_manager(_: NodeDocument) -> Iterator[Finding]:
    """Whether NetworkManager manages the links of pods that are there now."""
    with Netlink() as channel:
        pods = [link for link in links.read_links(channel) if link.name.startswith(LINK_PREFIX)]
    files = [NETWORK_MANAGER / str(link.number) for link in pods]
    states = [path.read_text(encoding="utf-8") for path in files if path.exists()]
    if any("managed=true" in state for state in states):
        yield Finding(
            Severity.WARNING,
            f"NetworkManager manages the links of pods ({LINK_PREFIX}…)",
            "write `[keyfile]` and `unmanaged-devices=interface-name:"
            f"{LINK_PREFIX}*` to /etc/NetworkManager/conf.d/netmgr.conf, and reload it",
        )


def _files(folders: Iterable[Path], pattern: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(folder.glob(pattern))


def _parsed(path: Path) -> ConfigParser:
    """A systemd file; empty where it cannot be parsed."""
    # systemd takes sections and keys several times, keys without a value, and `%` for specifiers.
    parser = ConfigParser(strict=False, interpolation=None, allow_no_value=True, delimiters="=")
    try:
        parser.read_string(path.read_text(encoding="utf-8", errors="replace"))
    # AttributeError: a key without a value that goes on in the next line, up to Python 3.12.
    except (configparser.Error, AttributeError):
        parser.clear()
    return parser


def _takes_pods_links(parser: ConfigParser, key: str) -> bool:
    """Whether the [Match] of a file takes the links of pods, whose names `key` matches."""
    if not parser.has_section("Match"):
        return False
    match: SectionProxy = parser["Match"]
    names = (match.pop(key, None) or "").split()
    refused = [name[1:] for name in names if name.startswith("!")]
    # Whatever else is matched narrows it further, mostly to hardware.
    return not match and _is_any(names) and not _is_any(refused)


def _is_any(names: Iterable[str]) -> bool:
    return patterns.matches(names, _ANY_POD)


def _changes_pods_links(rule: str) -> bool:
    """Whether a rule of udev changes every network link, or those of pods by their names."""
    terms = [] if rule.lstrip().startswith("#") else _UDEV_TERM.findall(rule)
    matches = [(key, how, value) for key, how, value in terms if how in ("==", "!=")]
    changes = [key for key, how, _ in terms if how in ("=", ":=")]
    # Whatever else is matched narrows it further, as above.
    is_broad = {key for key, _, _ in matches} <= _UDEV_MATCHES
    of_links = ("SUBSYSTEM", "==", "net") in matches
    fits = all(
        _is_any(value.split("|")) is (how == "==") for key, how, value in matches if key == "KERNEL"
    )
    return is_broad and of_links and fits and any(map(_UDEV_SETTINGS.fullmatch, changes))
