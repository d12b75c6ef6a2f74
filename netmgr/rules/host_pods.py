"""Counts host-network pods by their cgroup: one nftables table of its own, whichever backend holds the other rules.

A packet of the node itself has a socket, the socket a cgroup, and that the pod's as an ancestor.
Kubelet puts pods at one of two depths, so a packet is looked up once for each: a set for each
depth, direction and family, whose elements count. The rules match what the node's own do (not
loopback, not internal) at the same place, so that what these count is part of what those count.
That costs a packet of the node itself some 0.5 us, and one of a process in no pod some 0.7 (64-byte
UDP, 2 GHz); a forwarded packet pays nothing.

The table is `inet netmgr-host-pods`; all that is in it is ours. A comment tells whether it is as
this version would make it; if not it is made anew. What is internal changes in place, so that no count is lost.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netmgr.errors import KernelError
from netmgr.model import Traffic
from netmgr.prefixes import Family, Prefix
from netmgr.rules import nft_cgroups
from netmgr.rules.libnftables import LibNftables
from netmgr.rules.model import Element
from netmgr.rules.nft_text import elements

TABLE = "netmgr-host-pods"
SYSFS = Path("/sys/fs/cgroup")
"""Where nft(8) looks for the paths it is given; built into it."""

CAPACITY = 4096
_FAMILIES = {Family.V4: ("ip", "ipv4_addr"), Family.V6: ("ip6", "ipv6_addr")}
_WAYS = (
    ("out", Traffic.INTERNET_OUT, "output", "daddr", "oifname"),
    ("in", Traffic.INTERNET_IN, "input", "saddr", "iifname"),
)


@dataclass(frozen=True, slots=True, order=True)
class Cgroup:
    """A pod's cgroup: its number, which is never used again, its directory, and its depth below the mount."""

    number: int
    path: Path
    depth: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What one cgroup's sockets received or sent since it was admitted."""

    number: int
    family: Family
    traffic: Traffic
    bytes: int
    packets: int


class HostPodRules:
    """The table, in the network namespace of the calling process. All methods raise KernelError.

    Args:
        internal: what is not internet.
        depths: at which depths below the mount of cgroup v2 pods are.
    """

    def __init__(self, internal: Iterable[Prefix], depths: Iterable[int]) -> None:
        self._nft = LibNftables()
        self._depths = tuple(sorted(depths))
        self._internal = frozenset(internal)
        body = "".join(self._body())
        self._mark = f"host pods {hashlib.sha256(body.encode()).hexdigest()[:12]}"
        self._text = f"add table inet {TABLE}\ndelete table inet {TABLE}\n" + body.replace("MARK", self._mark)

    def make(self) -> bool:
        """Make the table if it is not there as it should be; whether that was needed. What is internal is put right."""
        listing = self._listing()
        made = not self._is_whole(listing)
        if made:
            self._nft.run(self._text + self._filled())
        elif self._held(listing) != self._internal:
            self._nft.run(self._filled())
        return made

    def follow(self, internal: Iterable[Prefix]) -> None:
        """Have this be internal from the next `make` on; every counter goes on."""
        self._internal = frozenset(internal)

    def _is_whole(self, listing: Iterable[dict[str, Any]]) -> bool:
        marks = [item["rule"].get("comment") for item in listing if "rule" in item]
        return marks == [self._mark] * (len(_WAYS) * len(_FAMILIES) * len(self._depths))

    def _held(self, listing: Iterable[dict[str, Any]]) -> frozenset[Element]:
        names = {f"internal{family}" for family in _FAMILIES}
        sets = [item["set"] for item in listing if "set" in item and item["set"]["name"] in names]
        return frozenset(element for one in sets for element, _ in elements(one))

    def _filled(self) -> str:
        """What fills the sets of internal prefixes anew, in one transaction."""
        lines = []
        for family in _FAMILIES:
            lines.append(f"flush set inet {TABLE} internal{family}\n")
            blocks = ", ".join(str(block) for block in sorted(self._internal) if block.family is family)
            if blocks:
                lines.append(f"add element inet {TABLE} internal{family} {{ {blocks} }}\n")
        return "".join(lines)

    def _body(self) -> Iterator[str]:
        yield f"add table inet {TABLE}\n"
        for family, (_, kind) in _FAMILIES.items():
            yield f"add set inet {TABLE} internal{family} {{ type {kind}; flags interval; }}\n"
        for way, _, hook, side, link in _WAYS:
            yield f"add chain inet {TABLE} {hook} {{ type filter hook {hook} priority -150; policy accept; }}\n"
            for family, (protocol, _) in _FAMILIES.items():
                for depth in self._depths:
                    name = f"{way}{family}_{depth}"
                    yield f"add set inet {TABLE} {name} {{ type cgroupsv2; size {CAPACITY}; counter; }}\n"
                    yield (
                        f'add rule inet {TABLE} {hook} {link} != "lo" {protocol} {side} != @internal{family} '
                        f'socket cgroupv2 level {depth} @{name} return comment "MARK"\n'
                    )

    def admit(self, cgroups: Iterable[Cgroup]) -> None:
        """Count for these from now on; one that is counted already goes on.

        Raises:
            KernelError: with ENOENT when a cgroup, or the table, is gone; then nothing was changed.
        """
        lines = [
            f'add element inet {TABLE} {name} {{ "{cgroup.path.relative_to(SYSFS)}" }}\n'
            for cgroup in cgroups
            for name in self._sets(cgroup.depth)
        ]
        if lines:
            self._nft.run("".join(lines))

    def expel(self, cgroups: Iterable[Cgroup]) -> None:
        """Forget these, whether or not they still exist."""
        for cgroup in cgroups:
            for name in self._sets(cgroup.depth):
                nft_cgroups.delete(TABLE, name, [cgroup.number])

    def read(self, numbers: Mapping[str, int]) -> list[Reading]:
        """Every counter; `numbers` are those of cgroups by their path below /sys/fs/cgroup."""
        return list(self._readings(numbers))

    def _readings(self, numbers: Mapping[str, int]) -> Iterator[Reading]:
        counting = {
            name: (family, traffic)
            for way, traffic, *_ in _WAYS
            for family in _FAMILIES
            for depth in self._depths
            for name in [f"{way}{family}_{depth}"]
        }
        for item in self._listing():
            found = counting.get(item["set"]["name"]) if "set" in item else None
            for element in item["set"].get("elem", ()) if found else ():
                shown, counter = element["elem"]["val"], element["elem"]["counter"]
                # nft shows a cgroup by its number once it is gone.
                number = int(shown) if shown.isdigit() else numbers.get(shown)
                if found and number is not None:
                    yield Reading(number, *found, counter["bytes"], counter["packets"])

    def _sets(self, depth: int) -> list[str]:
        return [f"{way}{family}_{depth}" for way, *_ in _WAYS for family in _FAMILIES]

    def _listing(self) -> list[dict[str, Any]]:
        try:
            output = self._nft.run(f"list table inet {TABLE}", json=True)
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return []
            raise
        listing: list[dict[str, Any]] = json.loads(output)["nftables"]
        return listing

    def remove(self) -> None:
        """Take the table away."""
        self._nft.run(f"add table inet {TABLE}\ndelete table inet {TABLE}\n")

    def close(self) -> None:
        """Give back the library's context; the table stays and counts on."""
        self._nft.close()
