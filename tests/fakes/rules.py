"""A kernel in memory that holds the ruleset, and through which a packet can be traced.

It implements the backends' protocol on the neutral model and refuses what the kernel
refuses, so that the contract suite can hold it to what the real backends do.
"""

from __future__ import annotations

from netmgr.rules.model import Abilities
from netmgr.simulation.held_rules import HeldRules
from tests.fakes.passage import Connection, Outcome, Packet, Passage


class FakeBackend(HeldRules):
    """Implements netmgr.rules.engine.RuleBackend."""

    def __init__(self, *, rewrites: bool = True) -> None:
        abilities = (
            Abilities()
            if rewrites
            else Abilities(rewrites=False, verdict_maps=False, senders=False, fuses=False)
        )
        super().__init__("fake", abilities)
        self.connections: list[Connection] = []

    def send(self, packet: Packet) -> Outcome:
        """Take a packet past every rule on its way and say what they did."""
        with self._lock:
            return Passage(self.state, self.connections, packet).outcome()
