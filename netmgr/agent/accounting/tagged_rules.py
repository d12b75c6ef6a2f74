"""Other people's tagged rules and the sizes of chains, for readers.

Their number is not ours to bound, nor the size of the tables that they are in. So they are read in
a thread of their own: no request, no reading of counters and no answer to a reader waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from netmgr.agent.accounting.accounting import Accounting
from netmgr.agent.core.components import Agent, Component
from netmgr.agent.core.scheduler import Task
from netmgr.api.snapshot import RuleReading, Snapshot
from netmgr.errors import NetmgrError
from netmgr.kernel.capabilities import Capability
from netmgr.kernel.xtables.variant import give_memory_back
from netmgr.prefixes import Family
from netmgr.rules.tagged import Series, Tagged

log = logging.getLogger(__name__)


class TaggedRules(Component):
    """What PyPI's iptables-exporter would report besides our own rules, as of the last reading."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        # It reads with the sockets of `Accounting`.
        self._rules = agent.get(Accounting).rules
        self._found = Tagged()
        self._fault = ""

    def capabilities(self) -> Iterable[Capability]:
        """Legacy tables are read by a raw socket, whatever backend the agent itself uses."""
        return (Capability.NET_RAW,)

    def tasks(self) -> Iterable[Task]:
        """Read, in a thread of its own: how long that takes depends on other people's rules."""
        seconds = self._agent.document.accounting.reading_seconds
        yield Task(self._read, seconds, thread="tagged-rules")

    def snapshot(self, snapshot: Snapshot) -> None:
        """Add other people's rules to ours, which `Accounting` filled in."""
        tagged = self._found
        merged = {_series(reading): reading for reading in snapshot["rules"]}
        for series in tagged.packets:
            # Those with equal labels are added up, as the exporter does.
            reading = merged.setdefault(series, _reading(series))
            reading["bytes"] += tagged.bytes[series]
            reading["packets"] += tagged.packets[series]
        snapshot["rules"] = list(merged.values())
        snapshot["chain_sizes"] = [
            {
                "ip_version": str(series.family.value),
                "table": series.table,
                "chain": series.chain,
                "rules": count,
            }
            for series, count in tagged.chains.items()
        ]

    def _read(self) -> None:
        fault = ""
        try:
            self._found = self._rules.tagged()
            if self._found.left_out:
                fault = f"{self._found.left_out} tagged rules and chains exceed the bounds"
        except (NetmgrError, OSError) as error:
            fault = str(error)
        # A listing of many rules is large, and glibc would keep its memory for the next one.
        give_memory_back()
        if fault and fault != self._fault:
            log.warning("tagged-rules-incomplete reason=%s", fault)
        self._fault = fault


def _series(reading: RuleReading) -> Series:
    return Series(
        Family(int(reading["ip_version"])), reading["table"], reading["chain"], reading["rule"]
    )


def _reading(series: Series) -> RuleReading:
    return {
        "ip_version": str(series.family.value),
        "table": series.table,
        "chain": series.chain,
        "rule": series.rule,
        "bytes": 0,
        "packets": 0,
    }
