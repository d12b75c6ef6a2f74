"""What counting at links is to know beside the pods."""

from __future__ import annotations

from dataclasses import dataclass

from netmgr.prefixes import Prefix


@dataclass(frozen=True, slots=True)
class AtLinks:
    """Who peers are; what is in none of these prefixes is the internet.

    `classes` has the prefixes of each by its name, if they count; `cluster` are all nodes' pods.
    `limited`: packets to pods may wait in an IFB, and no longer show where they came in. Wire bytes
    have `link_layer` more for each packet.
    """

    known: tuple[Prefix, ...]
    classes: tuple[tuple[str, tuple[Prefix, ...]], ...] = ()
    cluster: tuple[Prefix, ...] = ()
    limited: bool = False
    link_layer: int = 0
