"""Counts host-network pods by their cgroup, in the nftables table `inet netmgr-host-pods`.

The table is the same with every backend of the other rules. A packet of the node itself pays some
0.5 us for it, one of a process in no pod some 0.7 (64-byte UDP, 2 GHz); a forwarded packet nothing.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path

from netmgr.errors import Ignoring
from netmgr.kernel import nf_tables
from netmgr.model import Counter, Sample, Traffic
from netmgr.prefixes import Family, Prefix
from netmgr.rules import nft_chains, nft_table
from netmgr.rules.model import of_family
from netmgr.rules.nft_chains import Base
from netmgr.rules.nft_table import NftTable

TABLE = "inet netmgr-host-pods"
_NAME = TABLE.removeprefix("inet ")
# Where nft(8) looks for the paths it is given; built into it.
SYSFS = Path("/sys/fs/cgroup")

CAPACITY = 4096
_KEY = struct.Struct("=Q")
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


class CgroupCounters:
    """The table, in the network namespace of the calling process. All methods raise KernelError.

    Args:
        internal: what is not internet.
        depths: depths below the cgroup v2 mount at which pods are.
    """

    def __init__(self, internal: Iterable[Prefix], depths: Iterable[int]) -> None:
        self._table = NftTable(TABLE)
        self._depths = tuple(sorted(depths))
        self._internal = frozenset(internal)

    def make(self) -> bool:
        """Make the table if it is missing or altered, and repair what is internal.

        Returns whether it was made.
        """
        listing = self._table.listing()
        chains = {way[2]: list(self._rules(way)) for way in _WAYS}
        marks = {hook: nft_chains.marks(hook, rules) for hook, rules in chains.items()}
        made = not listing.holds(marks, {hook: _base(hook) for hook in chains})
        held = (listing.prefixes(f"internal{family}") for family in Family)
        if made:
            self._run([*self._made(chains), *self._filled()])
            self._table.listing(chains)
        # In place, so that no count is lost.
        elif self._internal != frozenset(chain.from_iterable(held)):
            self._run(self._filled())
        return made

    def follow(self, internal: Iterable[Prefix]) -> None:
        """Treat these as internal from the next `make` on; counters go on."""
        self._internal = frozenset(internal)

    def _run(self, commands: Iterable[str]) -> None:
        self._table.run(nft_chains.script(commands))

    def _filled(self) -> list[str]:
        lines = []
        for family in Family:
            # One transaction, so that no packet meets an empty set and is taken for the internet's.
            lines.append(f"flush set {TABLE} internal{family}")
            if blocks := ", ".join(map(str, sorted(of_family(self._internal, family)))):
                lines.append(f"add element {TABLE} internal{family} {{ {blocks} }}")
        return lines

    def _made(self, chains: Mapping[str, Sequence[str]]) -> Iterator[str]:
        # Added first, since one that is not there cannot be deleted.
        yield from (f"add table {TABLE}", f"delete table {TABLE}", f"add table {TABLE}")
        for family in Family:
            yield f"add set {TABLE} internal{family} {{ type ipv{family}_addr; flags interval; }}"
        for depth in self._depths:
            for name in self._sets(depth):
                yield f"add set {TABLE} {name} {{ type cgroupsv2; size {CAPACITY}; counter; }}"
        for hook, rules in chains.items():
            yield from nft_chains.fill(TABLE, hook, rules, _base(hook))

    def _rules(self, way: tuple[str, Traffic, str, str, str]) -> Iterator[str]:
        name, _, _, side, link = way
        # A packet of the node itself has a socket, the socket a cgroup that descends from the
        # pod's. Kubelet puts pods at one of two depths, so that each is looked up.
        for family, depth in product(Family, self._depths):
            # What the node's own rules match, in the same hooks: these counts are a part of theirs.
            internet = f"{nft_chains.protocol(family)} {side} != @internal{family}"
            counts = f"socket cgroupv2 level {depth} @{_set_name(name, family, depth)}"
            yield f'{link} != "lo" {internet} {counts} return'

    def admit(self, cgroups: Iterable[Cgroup]) -> None:
        """Count these from now on; one already counted goes on.

        Raises:
            KernelError: with ENOENT when a cgroup, or the table, is gone; then nothing was changed.
        """
        lines: list[str] = []
        for cgroup in cgroups:
            path = cgroup.path.relative_to(SYSFS)
            names = self._sets(cgroup.depth)
            lines += [f'add element {TABLE} {name} {{ "{path}" }}' for name in names]
        if lines:
            self._run(lines)

    def expel(self, cgroups: Iterable[Cgroup]) -> None:
        """Forget these, whether or not they still exist."""
        for cgroup in cgroups:
            # By a message of our own: nft(8) takes a cgroup by its path only, which is gone with
            # the pod.
            key = _KEY.pack(cgroup.number)
            for name in self._sets(cgroup.depth):
                with Ignoring(errno.ENOENT):
                    self._table.socket.commit(nf_tables.delete_elements(_NAME, name, [key]))

    def read(self) -> list[Sample]:
        """What each cgroup's sockets received or sent since it was admitted."""
        samples: list[Sample] = []
        # nft(8) puts an element back by its cgroup's path, in a table that was made for it.
        life = self._table.socket.table_handle(_NAME)
        for (way, traffic, *_), family, depth in product(_WAYS, Family, self._depths):
            listed = self._table.socket.counts(_NAME, _set_name(way, family, depth))
            for key, packets, octets in listed:
                (number,) = _KEY.unpack(key)
                counter = Counter.of_cgroup(number, family, traffic)
                samples.append(Sample(counter, octets, packets, life))
        return samples

    def _sets(self, depth: int) -> list[str]:
        return [_set_name(way, family, depth) for way, *_ in _WAYS for family in Family]

    def remove(self) -> None:
        nft_table.remove(TABLE)

    def close(self) -> None:
        self._table.close()


def _base(hook: str) -> Base:
    return Base("filter", hook, -150)


def _set_name(way: str, family: Family, depth: int) -> str:
    return f"{way}{family}_{depth}"


def number_of(path: str | os.PathLike[str]) -> int:
    """The kernel's number for the cgroup of this directory: its inode's (kernfs).

    Raises:
        FileNotFoundError: there is no such cgroup any more.
    """
    return os.stat(path).st_ino  # noqa: PTH116  a plain call: there may be thousands
