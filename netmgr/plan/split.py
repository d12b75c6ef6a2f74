"""Smaller segments for a demand that no single free block holds.

Growth in steps would find room in pieces; this finds the pieces at once. Every size in which a
subnet is used to its last address is tried, the largest first, as often as it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from netmgr.plan.demand import Want, blocks, hosts_length, pods_length
from netmgr.plan.document import NodePool
from netmgr.plan.limits import CloudLimits
from netmgr.plan.space import Space
from netmgr.prefixes import Family


def pieces(
    spaces: Sequence[Space], fixed: Iterable[Want], missing: dict[str, tuple[NodePool, int]], limits: CloudLimits
) -> dict[str, list[int]] | None:
    """Nodes of each new segment by node pool, or None when they do not fit even in pieces.

    Args:
        spaces: what is free (IPv4), in the order in which to use it; changed.
        fixed: subnets that cannot be divided.
        missing: each node pool and how many nodes it lacks places for.
        limits: the cloud's.
    """
    if not _take(spaces, (want.length for want in fixed)):
        return None
    found: dict[str, list[int]] = {}
    for name, (pool, nodes) in missing.items():
        found[name] = list(_fitting(spaces, pool, nodes, limits))
        if sum(found[name]) < nodes:
            return None
    return found


def _fitting(spaces: Sequence[Space], pool: NodePool, nodes: int, limits: CloudLimits) -> Iterator[int]:
    cut = blocks(pool, Family.V4)
    for size in _sizes(pool, nodes, limits):
        while nodes:
            piece = min(size, nodes)
            lengths = hosts_length(piece, Family.V4, limits), pods_length(piece, cut, limits)
            if not _take(spaces, lengths):
                break
            nodes -= piece
            yield piece


def _sizes(pool: NodePool, nodes: int, limits: CloudLimits) -> list[int]:
    cut = blocks(pool, Family.V4)
    powers = [1 << bits for bits in range((nodes * cut.count).bit_length() + 1)]
    full = {power - limits.reserved for power in powers} | {
        (power - sum(cut.skipped(limits))) // cut.count for power in powers
    }
    return sorted({1, *(size for size in full if 0 < size < nodes)}, reverse=True)


def _take(spaces: Sequence[Space], lengths: Iterable[int]) -> bool:
    """Take subnets of these lengths, all or none."""
    taken = []
    for length in sorted(lengths):
        for space in spaces:
            if (place := space.packed(length)) is not None:
                space.take(place)
                taken.append((space, place))
                break
        else:
            for space, place in taken:
                space.give(place)
            return False
    return True
