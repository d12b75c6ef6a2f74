"""Counts host-network pods by their cgroup, in the nftables table `inet netmgr-host-pods`.

The table is the same with every backend of the other rules. A packet of the node itself has a
socket, the socket a cgroup that descends from the pod's. Kubelet puts pods at one of two
depths, so a packet is looked up once for each: there is a counting set for each depth, direction
and family. The rules match what the node's own rules do (not loopback, not internal) in the same
hooks, so their counts are a part of the node's.

A packet of the node itself pays some 0.5 us for that, one of a process in no pod some 0.7 (64-byte
UDP, 2 GHz); a forwarded packet pays nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from netmgr.errors import KernelError
from netmgr.kernel import nf_tables
from netmgr.kernel.libnftables import LibNftables
from netmgr.kernel.nf_tables_socket import NftSocket
from netmgr.model import Traffic
from netmgr.prefixes import Family, Prefix
from netmgr.rules.model import Element
from netmgr.rules.nft_listing import elements

TABLE = "netmgr-host-pods"
SYSFS = Path("/sys/fs/cgroup")
"""Where nft(8) looks for the paths it is given; built into it."""

CAPACITY = 4096
_KEY = struct.Struct("=Q")
_FAMILIES = {Family.V4: ("ip", "ipv4_addr"), Family.V6: ("ip6", "ipv6_addr")}
_WAYS = (
    ("out", Traffic.INTERNET_OUT, "output", "daddr", "oifname"),
    ("in", Traffic.INTERNET_IN, "input", "saddr", "iifname"),
)


@dataclass(frozen=True, slots=True, order=True)
class Cgroup:
    """A pod's cgroup: its number, which is never reused, directory, and depth below the mount."""

    number: int
    path: Path
    depth: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What one cgroup's sockets received or sent since it was admitted; `life` as in `Sample`."""

    number: int
    family: Family
    traffic: Traffic
    bytes: int
    packets: int
    life: int


class CgroupCounters:
    """The table, in the network namespace of the calling process. All methods raise KernelError.

    Args:
        internal: what is not internet.
        depths: depths below the cgroup v2 mount at which pods are.
    """

    def __init__(self, internal: Iterable[Prefix], depths: Iterable[int]) -> None:
        self._nft = LibNftables()
        self._socket = NftSocket()
        self._depths = tuple(sorted(depths))
        self._internal = frozenset(internal)
        body = "".join(self._body())
        # Shows whether the table is as this version would make it.
        self._mark = f"host pods {hashlib.sha256(body.encode()).hexdigest()[:12]}"
        self._text = f"add table inet {TABLE}\ndelete table inet {TABLE}\n" + body.replace(
            "MARK", self._mark
        )

    def make(self) -> bool:
        """Make the table if it is missing or altered, and repair what is internal.

        Returns whether it was made.
        """
        listing = self._listing()
        made = not self._is_whole(listing)
        if made:
            self._nft.run(self._text + self._filled())
        # In place, so that no count is lost.
        elif self._held(listing) != self._internal:
            self._nft.run(self._filled())
        return made

    def follow(self, internal: Iterable[Prefix]) -> None:
        """Treat these as internal from the next `make` on; counters go on."""
        self._internal = frozenset(internal)

    def _is_whole(self, listing: Iterable[dict[str, Any]]) -> bool:
        marks = [item["rule"].get("comment") for item in listing if "rule" in item]
        return marks == [self._mark] * (len(_WAYS) * len(_FAMILIES) * len(self._depths))

    def _held(self, listing: Iterable[dict[str, Any]]) -> frozenset[Element]:
        names = {f"internal{family}" for family in _FAMILIES}
        sets = [item["set"] for item in listing if "set" in item and item["set"]["name"] in names]
        return frozenset(element for body in sets for element in elements(body))

    def _filled(self) -> str:
        """Commands to refill the internal prefixes' sets in one transaction."""
        lines = []
        for family in _FAMILIES:
            # One transaction, so that no packet meets an empty set and is taken for the internet's.
            lines.append(f"flush set inet {TABLE} internal{family}\n")
            blocks = ", ".join(
                str(block) for block in sorted(self._internal) if block.family is family
            )
            if blocks:
                lines.append(f"add element inet {TABLE} internal{family} {{ {blocks} }}\n")
        return "".join(lines)

    def _body(self) -> Iterator[str]:
        yield f"add table inet {TABLE}\n"
        for family, (_, kind) in _FAMILIES.items():
            yield f"add set inet {TABLE} internal{family} {{ type {kind}; flags interval; }}\n"
        for way, _, hook, side, link in _WAYS:
            base = f"type filter hook {hook} priority -150; policy accept;"
            yield f"add chain inet {TABLE} {hook} {{ {base} }}\n"
            for family, (protocol, _) in _FAMILIES.items():
                for depth in self._depths:
                    name = _set_name(way, family, depth)
                    kind = f"type cgroupsv2; size {CAPACITY}; counter;"
                    yield f"add set inet {TABLE} {name} {{ {kind} }}\n"
                    yield (
                        f'add rule inet {TABLE} {hook} {link} != "lo" '
                        f"{protocol} {side} != @internal{family} "
                        f'socket cgroupv2 level {depth} @{name} return comment "MARK"\n'
                    )

    def admit(self, cgroups: Iterable[Cgroup]) -> None:
        """Count these from now on; one already counted goes on.

        Raises:
            KernelError: with ENOENT when a cgroup, or the table, is gone; then nothing was changed.
        """
        lines: list[str] = []
        for cgroup in cgroups:
            path = cgroup.path.relative_to(SYSFS)
            names = self._sets(cgroup.depth)
            lines += [f'add element inet {TABLE} {name} {{ "{path}" }}\n' for name in names]
        if lines:
            self._nft.run("".join(lines))

    def expel(self, cgroups: Iterable[Cgroup]) -> None:
        """Forget these, whether or not they still exist."""
        for cgroup in cgroups:
            # By a message of our own: nft(8) takes a cgroup by its path only, which is gone with
            # the pod.
            key = _KEY.pack(cgroup.number)
            for name in self._sets(cgroup.depth):
                try:
                    self._socket.commit(nf_tables.delete_elements(TABLE, name, [key]))
                except KernelError as error:
                    if error.errno != errno.ENOENT:
                        raise

    def read(self) -> list[Reading]:
        readings: list[Reading] = []
        # nft(8) puts an element back by its cgroup's path, in a table that was made for it.
        life = self._socket.table_handle(TABLE)
        for (way, traffic, *_), family, depth in product(_WAYS, _FAMILIES, self._depths):
            listed = self._socket.counts(TABLE, _set_name(way, family, depth))
            readings += [
                Reading(_KEY.unpack(key)[0], family, traffic, octets, packets, life)
                for key, packets, octets in listed
            ]
        return readings

    def _sets(self, depth: int) -> list[str]:
        return [_set_name(way, family, depth) for way, *_ in _WAYS for family in _FAMILIES]

    def _listing(self) -> list[dict[str, Any]]:
        try:
            return self._nft.listing(f"list table inet {TABLE}")
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return []
            raise

    def remove(self) -> None:
        self._nft.run(f"add table inet {TABLE}\ndelete table inet {TABLE}\n")

    def close(self) -> None:
        """Close the library's context and the socket; the table stays and counts on."""
        self._nft.close()
        self._socket.close()


def _set_name(way: str, family: Family, depth: int) -> str:
    return f"{way}{family}_{depth}"


def number_of(path: str | os.PathLike[str]) -> int:
    """The kernel's number for the cgroup of this directory: its inode's (kernfs).

    Raises:
        FileNotFoundError: there is no such cgroup any more.
    """
    return os.stat(path).st_ino  # noqa: PTH116  a plain call: there may be thousands
