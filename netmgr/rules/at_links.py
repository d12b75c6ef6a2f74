"""What counting at links is to know beside the pods."""

from __future__ import annotations

from dataclasses import dataclass

from netmgr.prefixes import Prefix


@dataclass(frozen=True, slots=True)
class AtLinks:
    """Who peers are; what is in none of these prefixes is the internet.

    `classes` has the prefixes of each by its name, if they count; `cluster` are all nodes' pods.
    """

    known: tuple[Prefix, ...]
    classes: tuple[tuple[str, tuple[Prefix, ...]], ...] = ()
    cluster: tuple[Prefix, ...] = ()
