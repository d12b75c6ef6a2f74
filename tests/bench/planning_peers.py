"""The job of `plan lock` done block by block, with netaddr or with the standard library.

`python -m tests.bench.planning_peers LIBRARY CLUSTERS NODES FILE`, where LIBRARY is netaddr or
ipaddress: chooses a prefix of 10.0.0.0/8 for each cluster, gives every node an own address and two
/28 blocks in it, and writes all of it down. Each library is used as its manual does, and in its
quickest way where there are several.
"""

from __future__ import annotations

import ipaddress
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

POOL = "10.0.0.0/8"
Texts = dict[str, list[str]]
"""What each cluster has: its prefix first, then its nodes' own addresses and blocks."""


def with_netaddr(clusters: int, nodes: int) -> Texts:
    """Free space is an IPSet."""
    import netaddr  # noqa: PLC0415  only the peer that is measured is loaded

    given: Texts = {}
    free, length = netaddr.IPSet([POOL]), site_length(nodes)
    for number in range(clusters):
        fitting = [block for block in free.iter_cidrs() if block.prefixlen <= length]
        held = next(max(fitting, key=lambda block: block.prefixlen).subnet(length))
        free.remove(held)
        pods, hosts = held.subnet(length + 1)
        own = islice(hosts.subnet(32), 4, 4 + nodes)
        given[f"c{number}"] = _texts(held, own, pods.subnet(28), nodes)
    return given


def with_ipaddress(clusters: int, nodes: int) -> Texts:
    """Free space is a list of networks, split with address_exclude."""
    given: Texts = {}
    free, length = [ipaddress.IPv4Network(POOL)], site_length(nodes)
    for number in range(clusters):
        fitting = [block for block in free if block.prefixlen <= length]
        holder = max(fitting, key=lambda block: block.prefixlen)
        held = next(holder.subnets(new_prefix=length))
        free.remove(holder)
        free += holder.address_exclude(held)
        pods, hosts = held.subnets()
        own = islice(hosts.subnets(new_prefix=32), 4, 4 + nodes)
        given[f"c{number}"] = _texts(held, own, pods.subnets(new_prefix=28), nodes)
    return given


LIBRARIES: dict[str, Callable[[int, int], Texts]] = {
    "netaddr": with_netaddr,
    "ipaddress": with_ipaddress,
}


def site_length(nodes: int) -> int:
    """Length of a cluster's prefix: half of it for blocks, half for the nodes' own addresses."""
    return 31 - (2 * nodes * 16 - 1).bit_length()


def _texts(
    held: object, hosts: Iterable[object], blocks: Iterator[object], nodes: int
) -> list[str]:
    return [str(part) for part in (held, *hosts, *islice(blocks, 2 * nodes))]


if __name__ == "__main__":
    library, clusters, nodes, file = sys.argv[1:]
    Path(file).write_text(json.dumps(LIBRARIES[library](int(clusters), int(nodes))))
