"""Spokes as rules see them, and the counters of what they send to each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from netmgr.prefixes import Address, Family, Prefix


@dataclass(frozen=True, slots=True)
class Spoke:
    """One spoke, and every address that its packets can carry here."""

    name: str
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, slots=True)
class DropBetween:
    """Drop a packet from one spoke to another, and count it for the ordered pair.

    The next rule is evaluated for a packet within a spoke. Each packet here is of one or the other.
    The counters are elements of the dynamic set `counts`: a pair has one from its first packet on.
    """

    counts: str
    family: Family
    spokes: tuple[Spoke, ...]

    def counter(self, origin: str, destination: str) -> str:
        """The name of the pair's counter."""
        return pair_counter(origin, destination, self.family)


def pair_counter(origin: str, destination: str, family: Family) -> str:
    """The name of the counter of what one spoke sends to another, for example `isolated_a_b_v4`."""
    return f"isolated_{origin}_{destination}_v{family:d}"


def spoke_of(spokes: Iterable[Spoke], address: Address) -> Spoke | None:
    holding = (spoke for spoke in spokes if any(prefix.holds(address) for prefix in spoke.prefixes))
    return next(holding, None)
