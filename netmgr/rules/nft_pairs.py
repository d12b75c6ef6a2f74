"""How nftables drops packets between spokes in three rules, however many spokes there are.

The first one passes what stays within a spoke, the last one drops. The second one counts: two maps
lead from the packet's addresses to a number for each of its spokes. The numbers are the key of an
element with a counter, which the kernel adds with the pair's first packet.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from itertools import product

from netmgr.kernel.netlink import Counted
from netmgr.rules import nft_chains
from netmgr.rules.isolation import pair_counter
from netmgr.rules.model import DropBetween, Spoke

# Of the numbers in an element's key, as nft names them.
KEY_TYPES = ["mark", "classid"]
_KEY = struct.Struct("=II")

# nft writes a class id as two hexadecimal numbers of 16 bits, and in another form where either of
# them is 0 or all bits are set.
_HALF, _HALF_BITS = 16, 0xFFFF
_NEVER_ZERO, _NEVER_ALL = 0x00010001, 0x7FFFFFFF


def chain_name(action: DropBetween) -> str:
    return f"between{action.family.value}"


def texts(action: DropBetween) -> tuple[str, ...]:
    protocol = nft_chains.protocol(action.family)
    pairs: list[str] = []
    for spoke in action.spokes:
        pairs += map(" . ".join, product(map(str, spoke.prefixes), repeat=2))
    within = f"{protocol} saddr . {protocol} daddr {{ {', '.join(pairs)} }}"
    # Dropped by a rule of its own: a packet leaves the one that counts where the kernel has no
    # memory for the element.
    return f"{within} return", _count(action), "drop"


def _count(action: DropBetween) -> str:
    protocol, numbers = nft_chains.protocol(action.family), _numbers(action.spokes)
    sites = [
        (str(prefix), numbers[spoke.name]) for spoke in action.spokes for prefix in spoke.prefixes
    ]
    marks = ", ".join(f"{prefix} : {number:#010x}" for prefix, number in sites)
    classes = ", ".join(
        f"{prefix} : {number >> _HALF:x}:{number & _HALF_BITS:x}" for prefix, number in sites
    )
    # On their way from the maps to the key the numbers are in the packet's mark and priority: a
    # rule has no other variables of this size. No other program sees them, since the next rule
    # drops the packet.
    return (
        f"meta mark set {protocol} saddr map {{ {marks} }} "
        f"meta priority set {protocol} daddr map {{ {classes} }} "
        f"update @{action.counts} {{ meta mark . meta priority counter }}"
    )


def read(action: DropBetween, listed: Iterable[Counted]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each counter of a set by its name: packets and bytes."""
    names = {number: name for name, number in _numbers(action.spokes).items()}
    for key, packets, octets in listed:
        mark, class_id = _KEY.unpack(key)
        # A spoke may be there no longer; the kernel never forgets its pairs.
        if mark in names and class_id in names:
            name = pair_counter(names[mark], names[class_id], action.family)
            yield name, (packets, octets)


def _numbers(spokes: Iterable[Spoke]) -> dict[str, int]:
    # A digest of the name, so that a counter stays that of its pair when other spokes come and go.
    names_by_number: dict[int, str] = {}
    for name in sorted(spoke.name for spoke in spokes):
        digest = hashlib.sha256(name.encode()).digest()
        number = int.from_bytes(digest[:4], "big") & _NEVER_ALL | _NEVER_ZERO
        while number in names_by_number:
            # Another odd number: neither half may be 0.
            number = number + 2 & _NEVER_ALL | _NEVER_ZERO
        names_by_number[number] = name
    return {name: number for number, name in names_by_number.items()}
