"""The iptables backend: legacy tables for the rules, ipsets for addresses and pods' counters.

A change of the tables is made under the lock that iptables takes, on a fresh reading, and
written back at once for each table; sets are changed one by one. No program is started and
nothing is ever saved and restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from netmgr.model import Sample
from netmgr.prefixes import Address, Family
from netmgr.rules import iptables_chains, iptables_text, xtables_lock
from netmgr.rules.ipset import IpSets
from netmgr.rules.iptables_chains import TABLES
from netmgr.rules.legacy_tables import opened
from netmgr.rules.model import Hook, Observed, Ruleset, Seen
from netmgr.rules.policy import pod_sets
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeclareCounter,
    DeleteSet,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)


class IptablesBackend:
    """Holds the ruleset in the legacy tables and in ipsets.

    `lock_wait_seconds` bounds how long a change waits for another program to finish its own.
    """

    name = "iptables"

    def __init__(self, *, lock_path: Path = xtables_lock.LOCK_PATH, lock_wait_seconds: float = 5) -> None:
        self._lock_path = lock_path
        self._lock_wait_seconds = lock_wait_seconds
        self._sets = IpSets()

    def observe(self, desired: Ruleset) -> Observed:
        """Read the sets, and our chains and rules of all tables."""
        indexes = self._indexes(desired)
        malformed = {spec.name for spec in desired.sets if spec.name in indexes and not self._sets.is_made_as(spec)}
        # A rule that looks into a set which must be remade cannot stay, so it counts as altered.
        sound = {name: index for name, index in indexes.items() if name not in malformed}
        members = {
            spec.name: frozenset(member.element for member in self._sets.members(spec))
            for spec in desired.sets
            if spec.name in sound
        }
        chains: dict[Hook, list[Seen]] = {hook: [] for hook in Hook}
        for family in Family:
            for hooks in _by_table(Hook):
                with opened(TABLES[hooks[0]], family) as table:
                    for hook in hooks:
                        chains[hook] += iptables_chains.seen(table, hook, desired.chains.get(hook, ()), sound)
        seen = {hook: tuple(rules) for hook, rules in chains.items()}
        return Observed(members, seen, iptables_chains.counters(desired, seen), frozenset(malformed))

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out; what changes tables is written back once for each table.

        Raises:
            TryAgainLater: another program held the lock, or changed a table without holding it.
        """
        for about_chains, group in groupby(operations, lambda one: isinstance(one, DropChain | FillChain)):
            if about_chains:
                self._change_chains([one for one in group if isinstance(one, DropChain | FillChain)])
            else:
                for operation in group:
                    self._change_set(operation)

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations as commands of iptables-legacy, ip6tables-legacy and ipset."""
        return "".join(f"{line}\n" for operation in operations for line in iptables_text.commands(operation))

    def read(self, desired: Ruleset) -> list[Sample]:
        """The pods' counters from the sets, the node's from the article's rules."""
        samples = [
            Sample(spec.counter(member.element), member.bytes, member.packets)
            for spec in desired.sets
            if spec.counts is not None
            for member in self._sets.members(spec)
        ]
        for family in Family:
            with opened("mangle", family) as table:
                samples += iptables_chains.node_samples(table, desired)
        return samples

    def read_pods(self, addresses: Iterable[Address]) -> list[Sample]:
        """The counters of these pods."""
        return [
            Sample(spec.counter(member.element), member.bytes, member.packets)
            for spec, members in pod_sets(addresses).items()
            for address in members
            if isinstance(address, Address)
            for member in self._sets.members(spec, only=address)
        ]

    def remove(self, desired: Ruleset) -> None:
        """Take our rules, chains and sets away."""
        self._change_chains([DropChain(hook, rules) for hook, rules in desired.chains.items()])
        for spec in desired.sets:
            self._sets.destroy(spec.name)

    def close(self) -> None:
        """Close the ipset socket and end its thread."""
        self._sets.close()

    def _indexes(self, ruleset: Ruleset) -> dict[str, int]:
        found = {spec.name: self._sets.index(spec.name) for spec in ruleset.sets}
        return {name: index for name, index in found.items() if index is not None}

    def _change_chains(self, changes: Sequence[DropChain | FillChain]) -> None:
        names = {name for change in changes for rule in change.rules for name in rule.set_names}
        indexes = {name: index for name in names if (index := self._sets.index(name)) is not None}
        by_hook = {change.hook: change for change in changes}
        with xtables_lock.held(self._lock_path, wait_seconds=self._lock_wait_seconds):
            for family in Family:
                for hooks in _by_table(by_hook):
                    with opened(TABLES[hooks[0]], family) as table:
                        for hook in hooks:
                            iptables_chains.converge(table, by_hook[hook], indexes)

    def _change_set(self, operation: Operation) -> None:
        match operation:
            case CreateSet(spec):
                self._sets.create(spec)
            case DeleteSet(spec):
                self._sets.destroy(spec.name)
            case AddElements(spec, elements):
                self._sets.add(spec, elements)
            case RemoveElements(spec, elements):
                self._sets.delete(spec, elements)
            case ReplaceElements(spec, elements):
                present = {member.element for member in self._sets.members(spec)}
                # Added before others go, so that nothing is in neither the old nor the new set meanwhile.
                self._sets.add(spec, elements - present)
                self._sets.delete(spec, present - elements)
            case DeclareCounter():
                pass  # here a rule is its own counter
            case DropChain() | FillChain():
                raise AssertionError(operation)


def _by_table(hooks: Iterable[Hook]) -> Iterator[list[Hook]]:
    for _, group in groupby(sorted(hooks, key=TABLES.__getitem__), TABLES.__getitem__):
        yield list(group)
