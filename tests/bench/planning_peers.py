"""The job of `plan lock` and `plan check` done with netaddr or with the standard library, block by block.

`python -m tests.bench.planning_peers netaddr|ipaddress CLUSTERS NODES`: choose a prefix for each cluster in
10.0.0.0/8, give every node two /28 blocks and an own address in it, then see that no two overlap.
"""

from __future__ import annotations

import ipaddress
import itertools
import sys
from collections.abc import Iterator


def by_netaddr(clusters: int, nodes: int, length: int) -> int:
    """With netaddr as its manual shows it: an IPSet of what is free, IPNetwork.subnet, an IPSet to check."""
    import netaddr  # noqa: PLC0415  only the peer that is measured is loaded

    free = netaddr.IPSet(["10.0.0.0/8"])
    given = []
    for _ in range(clusters):
        held = next(
            next(block.subnet(length)) for block in sorted(free.iter_cidrs(), key=len) if block.prefixlen <= length
        )
        free.remove(held)
        pods, hosts = held.subnet(length + 1)
        given += itertools.islice(pods.subnet(28), 2 * nodes)
        given += itertools.islice(hosts.subnet(32), 4, 4 + nodes)
    held_by_nodes = netaddr.IPSet(given)
    assert held_by_nodes.size == sum(block.size for block in given)
    return len(given)


def by_ipaddress(clusters: int, nodes: int, length: int) -> int:
    """With the standard library: address_exclude for what is free, subnets, and a sorted sweep to check."""
    free = [ipaddress.ip_network("10.0.0.0/8")]
    given: list[ipaddress.IPv4Network] = []
    for _ in range(clusters):
        holder = max((block for block in free if block.prefixlen <= length), key=lambda block: block.prefixlen)
        held = next(holder.subnets(new_prefix=length))
        free.remove(holder)
        free += holder.address_exclude(held)
        pods, hosts = held.subnets()
        given += itertools.islice(pods.subnets(new_prefix=28), 2 * nodes)
        given += itertools.islice(hosts.subnets(new_prefix=32), 4, 4 + nodes)
    assert not any(low.overlaps(high) for low, high in _neighbours(given))
    return len(given)


def _neighbours(
    given: list[ipaddress.IPv4Network],
) -> Iterator[tuple[ipaddress.IPv4Network, ipaddress.IPv4Network]]:
    return itertools.pairwise(sorted(given))


if __name__ == "__main__":
    library, count, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    site = 31 - (2 * each * 16 - 1).bit_length()
    given_out = {"netaddr": by_netaddr, "ipaddress": by_ipaddress}[library](count, each, site)
    assert given_out == 3 * count * each
