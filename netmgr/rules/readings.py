"""What the rules have counted beside pods and node: packets dropped, and packets translated.

Both are raw readings of the kernel: they grow until another program flushes the rules, and then begin at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from netmgr.prefixes import Prefix


@dataclass(frozen=True, slots=True)
class Dropped:
    """Packets from one site to another that were dropped here, over all hooks and both families."""

    origin: str
    destination: str
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Packets that were dropped here for what is wrong with them, over all hooks and both families."""

    reason: str
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Drops:
    """All that was dropped here: between sites, and for any other reason."""

    between: tuple[Dropped, ...] = ()
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Translated:
    """Packets of connections to one Service range, both directions together."""

    seen: Prefix
    real: Prefix
    packets: int
    bytes: int
