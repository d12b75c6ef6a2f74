"""Which endpoint a connection gets, as tables of numbered slots.

Without affinity every endpoint has one slot, and the kernel draws a slot's number at random.
A change leaves as many slots as possible as they are: the last ones move into the gaps, new
endpoints are put behind.

With affinity the kernel draws the slot by a hash of the client's address, and each slot's
endpoint is chosen by rendezvous hashing (highest random weight): the endpoint whose hash with the
slot's number is highest. So an endpoint that goes moves only its own slots' clients, and a new one
takes over only a fair share. No state about clients is kept: every host with the same endpoints
chooses alike, also after a restart.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Collection, Sequence
from itertools import repeat

from netmgr.services.model import Endpoint

_SLOTS_BY_ENDPOINTS = ((16, 256), (128, 2048))
_MOST_SLOTS = 16384


def rearranged(slots: Sequence[Endpoint], wanted: Collection[Endpoint]) -> tuple[Endpoint, ...]:
    """One slot for each of `wanted`, with as few as possible unlike `slots`."""
    kept: list[Endpoint | None] = []
    missing = set(wanted)
    for endpoint in slots:
        kept.append(endpoint if endpoint in missing else None)
        missing.discard(endpoint)
    newcomers = iter(sorted(missing))
    filled = [*(endpoint or next(newcomers, None) for endpoint in kept), *newcomers]
    index = 0
    while index < len(filled):
        if filled[index] is None:
            # One slot changes instead of all that follow.
            filled[index] = filled[-1]
            filled.pop()
        else:
            index += 1
    return tuple(endpoint for endpoint in filled if endpoint is not None)


def slot_count(endpoints: int) -> int:
    """How many slots share clients out among so many endpoints: at least 16 for each."""
    # Few steps, since most clients move when the number of slots changes.
    for most, slots in _SLOTS_BY_ENDPOINTS:
        if endpoints <= most:
            return slots
    return _MOST_SLOTS


def rendezvous(endpoints: Collection[Endpoint], slots: int) -> tuple[Endpoint, ...]:
    """The endpoint of each slot; empty without endpoints."""
    ordered = sorted(endpoints)
    if len(ordered) < 2:  # noqa: PLR2004 - there is nothing to compare
        return tuple(ordered) * slots
    weights = (
        zip(_weights(endpoint, slots), repeat(index), strict=False)
        for index, endpoint in enumerate(ordered)
    )
    return tuple(ordered[index] for _, index in map(max, *weights))


def _weights(endpoint: Endpoint, slots: int) -> array[int]:
    # One digest for all slots of an endpoint, a word for each: hashing every pair would take a call
    # for each slot.
    name = endpoint.address.packed + endpoint.port.to_bytes(2)
    return array("I", hashlib.shake_128(name).digest(4 * slots))
