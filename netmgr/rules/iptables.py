"""The iptables backend: tables of either variant for the rules, ipsets for addresses and pods' counters.

A change of the tables is made on a fresh reading; sets are changed one by one. No program is
started and nothing is ever saved and restored.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby

from netmgr.errors import KernelError
from netmgr.model import Sample
from netmgr.prefixes import Family
from netmgr.rules import iptables_chains, iptables_text
from netmgr.rules.ipset import IpSets, Member
from netmgr.rules.iptables_chains import TABLES, builtin, stands_in_builtin
from netmgr.rules.model import Abilities, Drop, Element, Hook, Observed, Rule, Ruleset, Seen, SetSpec, Tally, in_order
from netmgr.rules.policy import INTERNAL_SETS, PodSets
from netmgr.rules.tagged import Place, Serving
from netmgr.rules.transaction import (
    AddElements,
    CreateSet,
    DeleteSet,
    DeleteStray,
    DropChain,
    FillChain,
    Operation,
    RemoveElements,
    ReplaceElements,
)
from netmgr.rules.xt_table import Entry, Opener, Tables


class IptablesBackend:
    """Holds the ruleset in the tables of one variant of iptables, and in ipsets."""

    abilities = Abilities(rewrites=False, compares=0, sorts=False)

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._sets = IpSets()

    @property
    def name(self) -> str:
        """The variant's."""
        return self._tables.name

    def observe(self, desired: Ruleset) -> Observed:
        """Read the sets, and our chains and rules of all tables."""
        held, strays = self._sets.look(desired.sets), self._sets.strays(desired.sets)
        malformed = {name for name, one in held.items() if not one.is_sound}
        # A rule that looks into a set which must be remade cannot stay, so it counts as altered.
        sound = {name: one.index for name, one in held.items() if one.is_sound}
        indexes = {name: one.index for name, one in held.items()}
        members = {name: frozenset(member.element for member in held[name].members) for name in sound}
        chains: dict[Hook, list[Seen]] = {hook: [] for hook in TABLES}
        for family in Family:
            for hooks in _by_table(TABLES):
                with self._tables.opened(TABLES[hooks[0]], family) as table:
                    for hook in hooks:
                        chains[hook] += iptables_chains.seen(table, hook, desired.chains.get(hook, ()), sound, indexes)
        seen = {hook: _in_order(found, desired.chains.get(hook, ())) for hook, found in chains.items()}
        return Observed(members, seen, iptables_chains.counters(desired, seen), frozenset(malformed), strays)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Carry the operations out; what changes tables is written back once for each table.

        Raises:
            TryAgainLater: another program held the lock, or changed a table without holding it.
        """
        for kind, group in groupby(operations, type):
            if kind in (DropChain, FillChain):
                self._change_chains([one for one in group if isinstance(one, DropChain | FillChain)])
            else:
                self._change_sets(list(group))

    def render(self, operations: Sequence[Operation]) -> str:
        """The operations as commands of iptables and ip6tables of the variant, and of ipset."""
        lines = (line for operation in operations for line in iptables_text.commands(operation, self.name))
        return "".join(f"{line}\n" for line in lines)

    def read(self, desired: Ruleset) -> list[Sample]:
        """The pods' counters from the sets, the node's from the article's rules."""
        counting = [spec for spec in desired.sets if spec.counts is not None]
        held = self._sets.look(counting)
        found = [(spec, member) for spec in counting if spec.name in held for member in held[spec.name].members]
        samples = [_sample(spec, member) for spec, member in found]
        indexes = cache(partial(self._sets.indexes, INTERNAL_SETS))
        for family in Family:
            with self._tables.opened("mangle", family) as table:
                samples += iptables_chains.node_samples(table, desired, indexes)
        return samples

    def read_pods(self, pods: PodSets) -> list[Sample]:
        """The counters of these pods."""
        wanted = [(spec, address) for spec, members in pods.items() for address in members]
        return [_sample(spec, member) for spec, member in self._sets.find(wanted)]

    def tallies(self, desired: Ruleset) -> dict[str, tuple[int, int]]:
        """What rules in chains of our own have counted, over the rules that count under one name."""
        found: dict[str, tuple[int, int]] = {}
        counting = [hook for hook, rules in desired.chains.items() if any(_tallies(rule) for rule in rules)]
        for family in Family:
            for hooks in _by_table(counting):
                with self._tables.opened(TABLES[hooks[0]], family) as table:
                    for hook in hooks:
                        for name, packets, octets in iptables_chains.tallies(table, hook, desired.chains[hook]):
                            before = found.get(name, (0, 0))
                            found[name] = before[0] + packets, before[1] + octets
        return found

    def serving(self, desired: Ruleset) -> Serving:
        """The article's rules that are somebody's own and equal ours, or lost the mark."""

        def serve(place: Place, entries: Sequence[Entry]) -> list[Entry]:
            if (place.variant, place.table) != (self.name, "mangle") or not entries:
                return []
            indexes = cache(partial(self._sets.indexes, INTERNAL_SETS))
            rules = [
                rule
                for hook, rules in desired.chains.items()
                if hook in TABLES and builtin(hook) == place.chain
                for rule in rules
                if stands_in_builtin(rule) and rule.family is place.family
            ]
            found = (iptables_chains.counting_entry(entries, rule, indexes) for rule in rules)
            return [entry for entry in found if entry is not None]

        return serve

    def remove(self, desired: Ruleset) -> None:
        """Take our rules, chains and sets away."""
        self._change_chains([DropChain(hook, rules) for hook, rules in desired.chains.items() if hook in TABLES])
        self._tables.leave()
        self._sets.destroy(spec.name for spec in desired.sets)
        self._sets.destroy_strays(self._sets.strays(()))

    def close(self) -> None:
        """Close the sockets and end the ipset thread."""
        self._tables.close()
        self._sets.close()

    def _change_chains(self, changes: Sequence[DropChain | FillChain]) -> None:
        names = {name for change in changes for rule in change.rules for name in rule.set_names}
        indexes = self._sets.indexes(names | INTERNAL_SETS)
        by_hook = {change.hook: change for change in changes}

        def converge(opened: Opener) -> None:
            for family in Family:
                for hooks in _by_table(by_hook):
                    with opened(TABLES[hooks[0]], family) as table:
                        for hook in hooks:
                            iptables_chains.converge(table, by_hook[hook], indexes)

        self._tables.change(converge)

    def _change_sets(self, operations: Sequence[Operation]) -> None:
        """Change sets by operations that are all of one kind."""
        if added := [(one.spec, one.elements) for one in operations if isinstance(one, AddElements)]:
            self._sets.add(added)
        if removed := [(one.spec, one.elements) for one in operations if isinstance(one, RemoveElements)]:
            self._sets.delete(removed)
        if deleted := [one.spec.name for one in operations if isinstance(one, DeleteSet)]:
            self._sets.destroy(deleted)
        if strays := [one.name for one in operations if isinstance(one, DeleteStray)]:
            self._sets.destroy_strays(strays)
        for operation in operations:
            if isinstance(operation, CreateSet):
                self._sets.create(operation.spec)
            elif isinstance(operation, ReplaceElements):
                self._replace(operation.spec, operation.elements)

    def _replace(self, spec: SetSpec, elements: frozenset[Element]) -> None:
        held = self._sets.look([spec]).get(spec.name)
        if held is None:
            raise KernelError(f"ipset replace elements of {spec.name}", errno.ENOENT)
        present = {member.element for member in held.members}
        # Added before others go, so that nothing is in neither the old nor the new set meanwhile.
        self._sets.add([(spec, elements - present)])
        self._sets.delete([(spec, present - elements)])


def _sample(spec: SetSpec, member: Member) -> Sample:
    return Sample(spec.counter(member.element), member.bytes, member.packets)


def _in_order(seen: list[Seen], rules: Sequence[Rule]) -> tuple[Seen, ...]:
    """What was seen, in the order of the rules if each family's stand in theirs."""
    return in_order(seen, [rule.id for family in Family for rule in rules if rule.family is family], rules)


def _tallies(rule: Rule) -> bool:
    return isinstance(rule.action, Drop | Tally)


def _by_table(hooks: Iterable[Hook]) -> Iterator[list[Hook]]:
    for _, group in groupby(sorted(hooks, key=TABLES.__getitem__), TABLES.__getitem__):
        yield list(group)
