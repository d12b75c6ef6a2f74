"""What a kernel holds of a ruleset: sets with their elements, chains with their rules, counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from netmgr.rules.model import Element, Hook, Rule, SetSpec


@dataclass(slots=True)
class Hits:
    """What a counter shows."""

    packets: int = 0
    bytes: int = 0

    def hit(self, size: int) -> None:
        self.packets += 1
        self.bytes += size


@dataclass
class HeldSet:
    """A set, and what each element has counted; those of sets that count nothing stay at zero."""

    spec: SetSpec
    elements: dict[Element, Hits] = field(default_factory=dict)


@dataclass
class State:
    sets: dict[str, HeldSet] = field(default_factory=dict)
    chains: dict[Hook, list[Rule]] = field(default_factory=dict)
    counters: dict[str, Hits] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
