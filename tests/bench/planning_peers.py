"""The job of `plan lock` and `plan check` done block by block, with netaddr or with the standard
library.

`python -m tests.bench.planning_peers LIBRARY lock|check CLUSTERS NODES FILE`, where LIBRARY is
netaddr or ipaddress. `lock` reads what was given out before, chooses a prefix of 10.0.0.0/8 for
each cluster that has none, gives every node an own address and two /28 blocks in it, and writes all
of it down. `check` reads that file, sees that everything lies in its cluster and that nothing
overlaps, and says what each cluster has left. Each library is used as its manual does, and in its
quickest way where there are several.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

POOL = "10.0.0.0/8"
Texts = dict[str, list[str]]
"""What each cluster has: its prefix first, then its nodes' own addresses and blocks."""


class Peer(Protocol):
    def lock(self, given: Texts, clusters: int, nodes: int, length: int) -> Texts: ...

    def check(self, given: Texts) -> list[int]: ...


class Netaddr:
    """Free space is an IPSet."""

    def __init__(self) -> None:
        import netaddr  # noqa: PLC0415  only the peer that is measured is loaded

        self.netaddr = netaddr

    def lock(self, given: Texts, clusters: int, nodes: int, length: int) -> Texts:
        used = [self.netaddr.IPNetwork(own[0]) for own in given.values()]
        free = self.netaddr.IPSet([POOL]) - self.netaddr.IPSet(used)
        for name in _missing(given, clusters):
            fitting = [block for block in free.iter_cidrs() if block.prefixlen <= length]
            held = next(max(fitting, key=lambda block: block.prefixlen).subnet(length))
            free.remove(held)
            pods, hosts = held.subnet(length + 1)
            given[name] = _texts(
                held, itertools.islice(hosts.subnet(32), 4, 4 + nodes), pods.subnet(28), nodes
            )
        return given

    def check(self, given: Texts) -> list[int]:
        held = {name: [self.netaddr.IPNetwork(text) for text in own] for name, own in given.items()}
        assert all(part in own[0] for own in held.values() for part in own[1:])
        sets = {name: self.netaddr.IPSet(own[1:]) for name, own in held.items()}
        assert all(
            sets[name].size == sum(part.size for part in own[1:]) for name, own in held.items()
        )
        assert all(sets[one].isdisjoint(sets[other]) for one, other in itertools.pairwise(sets))
        return [(self.netaddr.IPSet([own[0]]) - sets[name]).size for name, own in held.items()]


class Ipaddress:
    """Free space is a list of networks, split with address_exclude."""

    def lock(self, given: Texts, clusters: int, nodes: int, length: int) -> Texts:
        free = [ipaddress.IPv4Network(POOL)]
        for own in given.values():
            _exclude(free, ipaddress.IPv4Network(own[0]))
        for name in _missing(given, clusters):
            fitting = [block for block in free if block.prefixlen <= length]
            held = next(max(fitting, key=lambda block: block.prefixlen).subnets(new_prefix=length))
            _exclude(free, held)
            pods, hosts = held.subnets()
            own = itertools.islice(hosts.subnets(new_prefix=32), 4, 4 + nodes)
            given[name] = _texts(held, own, pods.subnets(new_prefix=28), nodes)
        return given

    def check(self, given: Texts) -> list[int]:
        held = {name: [ipaddress.IPv4Network(text) for text in own] for name, own in given.items()}
        assert all(part.subnet_of(own[0]) for own in held.values() for part in own[1:])
        parts = sorted(part for own in held.values() for part in own[1:])
        assert not any(low.overlaps(high) for low, high in itertools.pairwise(parts))
        return [
            own[0].num_addresses - sum(part.num_addresses for part in own[1:])
            for own in held.values()
        ]


def site_length(nodes: int) -> int:
    """Length of a cluster's prefix: half of it for blocks, half for the nodes' own addresses."""
    return 31 - (2 * nodes * 16 - 1).bit_length()


def _exclude(free: list[ipaddress.IPv4Network], held: ipaddress.IPv4Network) -> None:
    holder = next(block for block in free if held.subnet_of(block))
    free.remove(holder)
    free += holder.address_exclude(held)


def _missing(given: Texts, clusters: int) -> list[str]:
    return [name for number in range(clusters) if (name := f"c{number}") not in given]


def _texts(
    held: object, hosts: Iterable[object], blocks: Iterator[object], nodes: int
) -> list[str]:
    return [str(part) for part in (held, *hosts, *itertools.islice(blocks, 2 * nodes))]


def main(library: str, command: str, clusters: int, nodes: int, file: Path) -> None:
    """Do one half of the job."""
    peer: Peer = {"netaddr": Netaddr, "ipaddress": Ipaddress}[library]()
    given = json.loads(file.read_text()) if file.exists() else {}
    if command == "lock":
        file.write_text(json.dumps(peer.lock(given, clusters, nodes, site_length(nodes))))
    else:
        assert sum(len(own) - 1 for own in given.values()) == 3 * clusters * nodes
        assert min(peer.check(given)) > 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
