"""Other people's tagged rules and the sizes of chains, for readers: read by a thread of their own, at leisure.

Their number is not ours to bound, nor the size of the tables that they are in; so no request, no reading of
pods' counters and no answer to a reader waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack

from netmgr.agent.rhythm import Rhythm
from netmgr.errors import NetmgrError
from netmgr.prefixes import Family
from netmgr.rules import xt_listing
from netmgr.rules.engine import Rules
from netmgr.rules.tagged import Series, Tagged
from netmgr.snapshot import ChainSize, RuleReading

log = logging.getLogger(__name__)


class TaggedRules:
    """What PyPI's iptables-exporter would tell of this machine beside our own rules, as of the last reading."""

    def __init__(self, rules: Rules, seconds: float) -> None:
        self._rules = rules
        self._found = Tagged()
        self._fault = ""
        self._rhythm = Rhythm("tagged-rules", ((seconds, self._read),))

    def start(self, stack: ExitStack) -> None:
        """Read from now on until `stack` ends."""
        self._rhythm.start()
        stack.callback(self._rhythm.stop)

    def beside(self, ours: Iterable[RuleReading]) -> list[RuleReading]:
        """The readings of our own rules and other people's; those of equal labels are added up, as the exporter did."""
        found = self._found
        merged = {_series(reading): reading for reading in ours}
        for one in found.packets:
            reading = merged.setdefault(one, _reading(one))
            reading["bytes"] += found.bytes[one]
            reading["packets"] += found.packets[one]
        return list(merged.values())

    def sizes(self) -> list[ChainSize]:
        """How many rules each chain has."""
        return [
            {"ip_version": str(one.family.value), "table": one.table, "chain": one.chain, "rules": count}
            for one, count in self._found.chains.items()
        ]

    def _read(self) -> None:
        fault = ""
        try:
            self._found = self._rules.tagged()
            if self._found.left_out:
                fault = f"{self._found.left_out} tagged rules and chains are beyond the bounds and not told"
        except (NetmgrError, OSError) as error:
            fault = str(error)
        xt_listing.give_memory_back()
        if fault and fault != self._fault:
            log.warning("tagged-rules-incomplete reason=%s", fault)
        self._fault = fault


def _series(reading: RuleReading) -> Series:
    return Series(Family(int(reading["ip_version"])), reading["table"], reading["chain"], reading["rule"])


def _reading(one: Series) -> RuleReading:
    return {
        "ip_version": str(one.family.value),
        "table": one.table,
        "chain": one.chain,
        "rule": one.rule,
        "bytes": 0,
        "packets": 0,
    }
