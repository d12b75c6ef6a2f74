"""What the fake kernel holds of the ruleset."""

from __future__ import annotations

from dataclasses import dataclass, field

from netmgr.rules.model import Element, Hook, Rule, SetSpec


@dataclass
class Hits:
    packets: int = 0
    bytes: int = 0

    def hit(self, length: int) -> None:
        self.packets += 1
        self.bytes += length


@dataclass
class HeldSet:
    spec: SetSpec
    elements: dict[Element, Hits] = field(default_factory=dict)


@dataclass
class State:
    sets: dict[str, HeldSet] = field(default_factory=dict)
    chains: dict[Hook, list[Rule]] = field(default_factory=dict)
    counters: dict[str, Hits] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
