"""Gives pods' counters an identity: the upper bits of their packets say which life they are in.

The kernel has none for elements of sets, nftables' or ipset's. Saved, taken away and put back, one
shows bytes that were counted before as if they had just passed. So each begins at a random number
of packets, a multiple of 2**47, and not at zero. One that another program zeroed has left that
life, one that was put back is in another, or shows less than before. No packet pays for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace

from netmgr.model import Counter, Sample
from netmgr.rules.transaction import LIFE_BITS, AddElements, Operation

_LIVES = (1 << 15) - 1
"""As many as leave the whole number below 2**62, so that nothing takes one for a wrap."""


def begin(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations, with a new life for the counters of what they add."""
    return tuple(
        replace(operation, life=1 + secrets.randbelow(_LIVES))
        if isinstance(operation, AddElements) and operation.spec.counts is not None
        else operation
        for operation in operations
    )


def sample(counter: Counter, octets: int, packets: int) -> Sample:
    """What an element shows, its life apart from its packets."""
    return Sample(counter, octets, packets & ((1 << LIFE_BITS) - 1), packets >> LIFE_BITS)
